#include "isa.h"

#include <algorithm>
#include <initializer_list>
#include <stdexcept>

#include "cpu_features.h"

namespace octavo {
namespace {

constexpr std::array<std::string_view, kNumIsas> kNames{"generic", "avx2", "avx512", "amx"};

#if OCTAVO_EMULATE_AVX512
constexpr bool kEmulates = true;  // avx512 and amx
#else
constexpr bool kEmulates = false;
#endif

// What each is compiled with: see CMakeLists.txt.
bool can_run(Isa isa) {
    if (isa == Isa::generic) return true;
#if OCTAVO_COMPILED_X86
    static const std::vector<std::string> features = cpu_features();
    const auto have = [](std::initializer_list<std::string_view> names) {
        return std::ranges::all_of(names, [](auto name) { return std::ranges::find(features, name) != features.end(); });
    };
    if (!have({"avx2", "fma", "f16c"})) return false;
    if (isa == Isa::avx2 || kEmulates) return true;
    return have({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16", "avx512_vnni"}) &&
           (isa == Isa::avx512 || have({"amx_tile", "amx_bf16", "amx_int8"}));
#else
    return false;
#endif
}

// An emulation is for tests that ask for it, and far too slow for others.
Isa highest() {
    for (const Isa isa : {Isa::amx, Isa::avx512}) {
        if (can_run(isa) && !kEmulates) return isa;
    }
    return can_run(Isa::avx2) ? Isa::avx2 : Isa::generic;
}

std::atomic<Isa>& active() {
    static std::atomic<Isa> isa{highest()};
    return isa;
}

std::atomic<KernelCounter*>& counters() {
    static std::atomic<KernelCounter*> first{nullptr};
    return first;
}

}  // namespace

std::string_view isa_name(Isa isa) { return kNames[static_cast<std::size_t>(isa)]; }

std::vector<std::string> available_isas() {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < kNumIsas; ++i) {
        if (can_run(static_cast<Isa>(i))) names.emplace_back(kNames[i]);
    }
    return names;
}

std::vector<std::string> emulated_isas() {
    if (!kEmulates || !can_run(Isa::avx512)) return {};
    return {std::string(isa_name(Isa::avx512)), std::string(isa_name(Isa::amx))};
}

Isa active_isa() { return active().load(std::memory_order_relaxed); }

void set_isa(std::string_view name) {
    if (name == "auto") return active().store(highest());
    const auto found = std::ranges::find(kNames, name);
    const Isa isa = static_cast<Isa>(found - kNames.begin());
    if (found == kNames.end() || !can_run(isa)) {
        throw std::invalid_argument("instruction set " + std::string(name) + " is not available here");
    }
    active().store(isa);
}

KernelCounter::KernelCounter(std::string_view name) : name_(name), next_(counters().load()) { counters() = this; }

std::vector<std::pair<std::string, std::uint64_t>> kernel_counts() {
    std::vector<std::pair<std::string, std::uint64_t>> counts;
    for (const KernelCounter* counter = counters(); counter; counter = counter->next_) {
        for (std::size_t isa = 0; isa < kNumIsas; ++isa) {
            const std::uint64_t calls = counter->calls_[isa].load(std::memory_order_relaxed);
            if (calls) counts.emplace_back(std::string(counter->name_) + "." + std::string(kNames[isa]), calls);
        }
    }
    return counts;
}

}  // namespace octavo
