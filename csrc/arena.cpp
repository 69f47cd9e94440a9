#include "arena.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace octavo {
namespace {

constexpr std::size_t kHugePage = 2 << 20;
constexpr std::size_t kShared = 16 * kHugePage;  // address space, not memory: pages are had when they are written
constexpr std::size_t kAlignment = 128;

std::size_t round_up(std::size_t number, std::size_t step) { return (number + step - 1) / step * step; }

#if defined(__linux__)

// Zeroed pages from a huge page's start on; bytes are a multiple of those.
std::shared_ptr<const void> map_pages(std::size_t bytes) {
    const std::size_t all = bytes + kHugePage;
    void* found = mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) throw std::bad_alloc();
    char* first = static_cast<char*>(found);
    const std::size_t before = round_up(reinterpret_cast<std::size_t>(first), kHugePage) - reinterpret_cast<std::size_t>(first);
    if (before) munmap(first, before);
    if (before < kHugePage) munmap(first + before + bytes, kHugePage - before);
    madvise(first + before, bytes, MADV_HUGEPAGE);
    return {first + before, [bytes](const void* pages) { munmap(const_cast<void*>(pages), bytes); }};
}

#else

std::shared_ptr<const void> map_pages(std::size_t bytes) {
    void* found = ::operator new(bytes, std::align_val_t{kAlignment});
    std::memset(found, 0, bytes);
    return {found, [](const void* pages) { ::operator delete(const_cast<void*>(pages), std::align_val_t{kAlignment}); }};
}

#endif

// Pages that small arenas are cut from, one after the other; what is given back is not cut again, and so stays zeroed.
class SharedPages {
public:
    std::shared_ptr<const void> cut(std::size_t bytes) {
        const std::lock_guard lock(mutex_);
        if (bytes > left_) {
            pages_ = map_pages(kShared);
            left_ = kShared;
        }
        const char* cut = static_cast<const char*>(pages_.get()) + (kShared - left_);
        left_ -= bytes;
        return {pages_, cut};
    }

private:
    std::mutex mutex_;
    std::shared_ptr<const void> pages_;
    std::size_t left_ = 0;
};

std::shared_ptr<const void> allocate(std::size_t bytes) {
    static SharedPages shared;  // the process's, as malloc's are
    return bytes > kShared / 4 ? map_pages(round_up(bytes, kHugePage)) : shared.cut(round_up(bytes, kAlignment));
}

}  // namespace

Arena::Arena(std::size_t bytes)
    : bytes_(std::max(bytes, kAlignment)), pages_(allocate(bytes_)),
      data_(static_cast<char*>(const_cast<void*>(pages_.get()))) {}

}  // namespace octavo
