// The attention kernel, as each instruction set gives it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd/instruction_sets.h"

namespace octavo {

// Keys of one tile. Tiles lie at multiples of it, and splits of a request's keys at multiples of kKeysPerSplit, so that
// where sums begin and end depends on positions alone.
inline constexpr int kKeysPerTile = 64;
inline constexpr int kKeysPerSplit = 512;

// Most rows (tokens times query heads) of one task.
inline constexpr int kRowsPerTask = 64;

// One layer's call. Query head h reads KV head h / (num_heads / num_kv_heads). 0 stands for no window, chunk or softcap.
struct AttentionCall {
    const void* query;           // [num_tokens, num_heads, head_size]
    void* out;                   // the same
    const void* cache;           // [2, num_blocks, block_size, num_kv_heads, head_size]
    std::ptrdiff_t half_stride;  // elements from keys to values
    std::ptrdiff_t block_stride;
    const std::int32_t* block_table;  // [num_requests, table_stride]
    std::ptrdiff_t table_stride;
    const float* sinks;  // [num_heads] or null
    int block_size, num_heads, num_kv_heads, head_size;
    float scale, softcap;
    std::int64_t window, chunk;
};

// Consecutive rows of one request, for query heads that share a KV head, over the keys of splits
// [first_split, last_split).
struct AttentionTask {
    std::int32_t request, kv_head, first_head, num_heads;
    std::int64_t row;       // of the step
    std::int64_t position;  // of that row in its request
    std::int32_t num_tokens;
    std::int32_t first_split, last_split;
    float* partial;  // where the sums of a single split go, or null: the task has all splits and writes the result
};

// A split's sums for one row: the largest score, the sum of weights, and the weighted sum of values.
inline constexpr int kPartialHeader = 8;
constexpr __attribute__((always_inline)) std::size_t partial_floats(int head_size) {
    return kPartialHeader + static_cast<std::size_t>(head_size);
}

// Floats of scratch memory that one thread needs: five matrices of a tile, and less than two more rows of each.
constexpr __attribute__((always_inline)) std::size_t scratch_floats(int head_size) {
    return 5 * static_cast<std::size_t>(kRowsPerTask) * (static_cast<std::size_t>(head_size) + 8) + 1024;
}

using AttentionKernel = void (*)(const AttentionCall&, const AttentionTask&, float* scratch);
// Puts the partial sums of a task's splits together, in ascending order, and writes the rows' results.
using AttentionMerge = void (*)(const AttentionCall&, const AttentionTask&, const float* partials, float* scratch);

struct AttentionKernels {
    AttentionKernel attend[2][2];  // [query is bfloat16][cache is bfloat16]
    AttentionMerge merge[2];
};

OCTAVO_DECLARE_KERNELS(AttentionKernels, attention_kernels)

}  // namespace octavo
