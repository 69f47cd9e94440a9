// What this machine can do at most: bytes per second, multiply-adds per second, and how long its threads take to meet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "arena.h"
#include "threads/thread_pool.h"

namespace octavo {

// Memory to stream through, in huge pages where the system gives them; first touched by the pool's threads.
class BandwidthProbe {
public:
    BandwidthProbe(ThreadPool& pool, std::size_t bytes);  // rounded up to whole chunks

    std::size_t bytes() const { return num_chunks_ * kChunk; }
    double read_seconds(ThreadPool& pool);  // all of it, once
    double copy_seconds(ThreadPool& pool);  // the first half onto the second

private:
    static constexpr std::size_t kChunk = std::size_t{1} << 20;

    std::size_t num_chunks_;  // even
    Arena arena_;
};

struct MultiplyRate {
    double operations, seconds;
};

// Multiply-adds of `unit` (float32, bfloat16, int8) on all threads of the pool for about `seconds`, counted as two
// operations each. None are done (0 operations) where the active instruction set has no such unit. Throws
// std::invalid_argument for another name.
MultiplyRate multiply_rate(ThreadPool& pool, std::string_view unit, double seconds);

// Mean seconds from handing a job of one empty task per thread to the pool until it is done, all threads awake.
double barrier_seconds(ThreadPool& pool, std::size_t num_barriers);

// Cycles per second of the calling thread's CPU now, from a chain of additions of one cycle each.
double clock_hz();

}  // namespace octavo
