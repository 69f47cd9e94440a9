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

// Ascending: each CPU that has one has those before it. avx512 is that with the bfloat16 and int8 dot products (Zen 4,
// Cooper Lake, Sapphire Rapids and later); CPUs of before them are served by avx2. amx is that with tiles of them as well.
enum class Isa { generic, avx2, avx512, amx };
inline constexpr std::size_t kNumIsas = 4;

std::string_view isa_name(Isa isa);

// Those this binary has and this CPU can run, lowest first.
std::vector<std::string> available_isas();

// Those of them whose instructions are emulated, in a build for tests.
std::vector<std::string> emulated_isas();

Isa active_isa();

// Use `name` ("auto": the highest) from now on, in the whole process. Throws std::invalid_argument for one that is not
// available.
void set_isa(std::string_view name);

// An op's kernels by instruction set; null where there are none of its own, and a lower one serves.
template <class Kernels>
struct IsaTable {
    std::array<const Kernels*, kNumIsas> kernels;

    // The highest that is in use and has kernels here.
    Isa chosen() const {
        std::size_t isa = static_cast<std::size_t>(active_isa());
        while (!kernels[isa]) --isa;
        return static_cast<Isa>(isa);
    }
    const Kernels& of(Isa isa) const { return *kernels[static_cast<std::size_t>(isa)]; }
    const Kernels& active() const { return of(chosen()); }
};

#if OCTAVO_COMPILED_X86
#define OCTAVO_X86_OR_NULL(name) &name
#else
#define OCTAVO_X86_OR_NULL(name) nullptr
#endif

// The table of kernels of one name in each namespace (simd/instruction_sets.h): without, and with, some of amx's own.
#define OCTAVO_ISA_TABLE(name) \
    { {&generic::name, OCTAVO_X86_OR_NULL(avx2::name), OCTAVO_X86_OR_NULL(avx512::name), nullptr} }
#define OCTAVO_ISA_TABLE_WITH_AMX(name) \
    { {&generic::name, OCTAVO_X86_OR_NULL(avx2::name), OCTAVO_X86_OR_NULL(avx512::name), OCTAVO_X86_OR_NULL(amx::name)} }

// How often a kernel ran, by instruction set; an object of static lifetime, listed from its construction on.
class KernelCounter {
public:
    explicit KernelCounter(std::string_view name);

    void add(Isa isa) { calls_[static_cast<std::size_t>(isa)].fetch_add(1, std::memory_order_relaxed); }

private:
    friend std::vector<std::pair<std::string, std::uint64_t>> kernel_counts();

    const std::string_view name_;
    std::array<std::atomic<std::uint64_t>, kNumIsas> calls_{};
    KernelCounter* const next_;
};

// ("kernel.isa", calls) of every kernel that ran.
std::vector<std::pair<std::string, std::uint64_t>> kernel_counts();

}  // namespace octavo
