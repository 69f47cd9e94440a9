#include "roofline.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>

#include "isa.h"
#include "simd/roofline.h"

namespace octavo {
namespace {

constexpr IsaTable<RooflineKernels> kRoofline OCTAVO_ISA_TABLE_WITH_AMX(roofline_kernels);

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

const Multiplier& multiplier(std::string_view unit) {
    const RooflineKernels& kernels = kRoofline.active();
    if (unit == "float32") return kernels.float32;
    if (unit == "bfloat16") return kernels.bfloat16;
    if (unit == "int8") return kernels.int8;
    throw std::invalid_argument("no multiply unit " + std::string(unit) + ": float32, bfloat16, int8");
}

// Tasks are short beside the whole, so that threads finish together.
double run_multiplier(ThreadPool& pool, const Multiplier& unit, std::size_t num_tasks, std::size_t rounds) {
    const auto start = Clock::now();
    pool.run(num_tasks, [&](std::size_t, int) { unit.run(rounds); });
    return seconds_since(start);
}

}  // namespace

BandwidthProbe::BandwidthProbe(ThreadPool& pool, std::size_t bytes)
    : num_chunks_((bytes + 2 * kChunk - 1) / (2 * kChunk) * 2), arena_(num_chunks_ * kChunk) {
    pool.run(num_chunks_, [&](std::size_t chunk, int) { std::memset(arena_.data() + chunk * kChunk, 1, kChunk); });
}

double BandwidthProbe::read_seconds(ThreadPool& pool) {
    std::atomic<std::uint64_t> sink{0};
    const auto read = kRoofline.active().read;
    const auto start = Clock::now();
    pool.run(num_chunks_, [&](std::size_t chunk, int) {
        sink.fetch_xor(read(arena_.data() + chunk * kChunk, kChunk), std::memory_order_relaxed);
    });
    return seconds_since(start);
}

double BandwidthProbe::copy_seconds(ThreadPool& pool) {
    const std::size_t half = num_chunks_ / 2;
    const auto copy = kRoofline.active().copy;
    const auto start = Clock::now();
    pool.run(half, [&](std::size_t chunk, int) {
        copy(arena_.data() + chunk * kChunk, arena_.data() + (half + chunk) * kChunk, kChunk);
    });
    return seconds_since(start);
}

MultiplyRate multiply_rate(ThreadPool& pool, std::string_view name, double seconds) {
    const Multiplier& unit = multiplier(name);
    if (!unit.run) return {0, 0};
    constexpr std::size_t kRounds = 10'000;
    const std::size_t threads = static_cast<std::size_t>(pool.num_threads());
    run_multiplier(pool, unit, threads, kRounds);  // wakes threads and clock
    const double one = run_multiplier(pool, unit, threads, kRounds);
    const std::size_t num_tasks = threads * (1 + static_cast<std::size_t>(seconds / one));
    const double spent = run_multiplier(pool, unit, num_tasks, kRounds);
    return {static_cast<double>(num_tasks * kRounds * unit.operations_per_round), spent};
}

double barrier_seconds(ThreadPool& pool, std::size_t num_barriers) {
    const std::size_t threads = static_cast<std::size_t>(pool.num_threads());
    const auto nothing = [](std::size_t, int) {};
    for (int i = 0; i < 100; ++i) pool.run(threads, nothing);
    const auto start = Clock::now();
    for (std::size_t i = 0; i < num_barriers; ++i) pool.run(threads, nothing);
    return seconds_since(start) / static_cast<double>(num_barriers);
}

double clock_hz() {
    constexpr std::size_t kAdditions = 64, kLoops = 200'000;
    std::uint64_t sum = 0, step = 1;
    __asm__ volatile("" : "+r"(step));
    const auto start = Clock::now();
    for (std::size_t loop = 0; loop < kLoops; ++loop) {
#pragma GCC unroll 64
        for (std::size_t i = 0; i < kAdditions; ++i) {
            sum += step;
            __asm__ volatile("" : "+r"(sum));
        }
    }
    return static_cast<double>(kAdditions * kLoops) / seconds_since(start);
}

}  // namespace octavo
