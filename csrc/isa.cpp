#include "isa.h"

#include <algorithm>
#include <stdexcept>

#include "cpu_features.h"

namespace octavo {
namespace {

constexpr std::array<std::string_view, kNumIsas> kNames{"generic", "avx2"};

bool can_run(Isa isa) {
    if (isa == Isa::generic) return true;
#if OCTAVO_COMPILED_AVX2
    static const std::vector<std::string> features = cpu_features();
    const auto has = [](const char* name) { return std::ranges::find(features, name) != features.end(); };
    return has("avx2") && has("fma") && has("f16c");
#else
    return false;
#endif
}

Isa highest() { return can_run(Isa::avx2) ? Isa::avx2 : Isa::generic; }

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
