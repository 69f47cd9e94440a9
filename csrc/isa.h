// Which instruction set the kernels use, chosen at run time, and counters that prove it.
//
// Files in csrc/simd are compiled once per instruction set, each into a namespace of its own. An op holds an IsaTable of
// what those give and asks for `active()` at every call.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo {

enum class Isa { generic, avx2 };  // ascending: each CPU that has one has those before it
inline constexpr std::size_t kNumIsas = 2;

std::string_view isa_name(Isa isa);

// Those this binary has and this CPU can run, lowest first.
std::vector<std::string> available_isas();

Isa active_isa();

// Use `name` ("auto": the highest) from now on, in the whole process. Throws std::invalid_argument for one that is not
// available.
void set_isa(std::string_view name);

// An op's kernels by instruction set; null where there are none of its own, and a lower one serves.
template <class Kernels>
struct IsaTable {
    const Kernels* generic;
    const Kernels* avx2;

    const Kernels& active() const {
        if (avx2 && active_isa() >= Isa::avx2) return *avx2;
        return *generic;
    }
};

#if OCTAVO_COMPILED_AVX2
#define OCTAVO_AVX2_OR_NULL(name) &name
#else
#define OCTAVO_AVX2_OR_NULL(name) nullptr
#endif

// How often a kernel ran, by instruction set; an object of static lifetime, listed from its construction on.
class KernelCounter {
public:
    explicit KernelCounter(std::string_view name);

    void add() { calls_[static_cast<std::size_t>(active_isa())].fetch_add(1, std::memory_order_relaxed); }

private:
    friend std::vector<std::pair<std::string, std::uint64_t>> kernel_counts();

    const std::string_view name_;
    std::array<std::atomic<std::uint64_t>, kNumIsas> calls_{};
    KernelCounter* const next_;
};

// ("kernel.isa", calls) of every kernel that ran.
std::vector<std::pair<std::string, std::uint64_t>> kernel_counts();

}  // namespace octavo
