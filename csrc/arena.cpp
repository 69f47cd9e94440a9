#include "arena.h"

#include <algorithm>
#include <cstring>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace octavo {

#if defined(__linux__)

Arena::Arena(std::size_t bytes) : bytes_(std::max<std::size_t>(bytes, 64)) {
    constexpr std::size_t kHugePage = 2 << 20;
    void* found = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<char*>(found);
    if (bytes_ >= kHugePage) madvise(data_, bytes_, MADV_HUGEPAGE);
}

Arena::~Arena() { munmap(data_, bytes_); }

#else

Arena::Arena(std::size_t bytes) : bytes_(std::max<std::size_t>(bytes, 64)) {
    data_ = static_cast<char*>(::operator new(bytes_, std::align_val_t{64}));
    std::memset(data_, 0, bytes_);
}

Arena::~Arena() { ::operator delete(data_, std::align_val_t{64}); }

#endif

}  // namespace octavo
