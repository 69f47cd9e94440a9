// An op's rows, shared out over the thread pool.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "simd/elementwise.h"
#include "threads/thread_pool.h"

namespace octavo {

// Some microseconds of work; less is not worth another thread's attention.
inline constexpr std::size_t kEntriesPerTask = 16384;

// Calls work(Rows) for all rows, in pieces of about kEntriesPerTask entries.
template <class Work>
void over_rows(ThreadPool& pool, std::size_t num_rows, std::size_t width, Work work) {
    const std::size_t step = std::max<std::size_t>(1, kEntriesPerTask / std::max<std::size_t>(1, width));
    pool.run((num_rows + step - 1) / step, [&](std::size_t task, int) {
        work(Rows{task * step, std::min(num_rows, (task + 1) * step)});
    });
}

// Throws std::out_of_range for one that is not.
inline void check_below(const char* what, const std::int64_t* numbers, std::size_t count, std::int64_t lowest, std::int64_t end) {
    for (std::size_t i = 0; i < count; ++i) {
        if (numbers[i] >= lowest && numbers[i] < end) continue;
        throw std::out_of_range(what + (" " + std::to_string(numbers[i])) + " is not below " + std::to_string(end));
    }
}

}  // namespace octavo
