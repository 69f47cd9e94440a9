// The attention kernel, as each instruction set gives it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv_cache.h"
#include "simd/instruction_sets.h"

namespace octavo {

// Keys of one tile. Tiles lie at multiples of it, and splits of a request's keys at multiples of kKeysPerSplit, so that
// where sums begin and end depends on positions alone.
inline constexpr int kKeysPerTile = 64;
inline constexpr int kKeysPerSplit = 512;

// One layer's call. Query head h reads KV head h / (num_heads / num_kv_heads). 0 stands for no window, chunk or softcap.
struct AttentionCall {
    const void* query;  // [num_tokens, num_heads, head_size]
    void* out;          // the same
    KvCache cache;
    const std::int32_t* block_table;  // [num_requests, table_stride]
    std::ptrdiff_t table_stride;
    const float* sinks;  // [num_heads] or null
    int num_heads, num_kv_heads, head_size;
    float scale, softcap;
    std::int64_t window, chunk;
    int keys_per_split;  // kKeysPerSplit, but in a test of what must not happen
};

// Consecutive rows of one request.
struct RowRun {
    std::int32_t request, num_tokens;
    std::int64_t row;       // of the step
    std::int64_t position;  // of that row in its request
    float* partial;         // where the sums of the rows over a single split go, or null
};

// Rows of query heads that share a KV head, over the keys of splits [first_split, last_split). Several runs hold the same
// blocks there. Without partial sums there is one run, and the task has all its splits and writes the result.
struct AttentionTask {
    std::int32_t kv_head, first_head, num_heads;
    std::int32_t num_runs;
    const RowRun* runs;
    std::int32_t first_split, last_split;
    const AttentionTask* next = nullptr;  // of the same thread, as it seems: its first keys are read ahead
};

// Most rows (tokens times query heads) of one task: what is summed up for them stays in the second-level cache.
inline constexpr int kRowsPerTask = 96;

// A split's sums for one row: the largest score, the sum of weights, and the weighted sum of values.
inline constexpr int kPartialHeader = 8;
constexpr __attribute__((always_inline)) std::size_t partial_floats(int head_size) {
    return kPartialHeader + static_cast<std::size_t>(head_size);
}

// Floats of scratch memory that one thread needs: matrices of a task's rows and of a tile's keys, the rows' weights of
// those, and a few rows.
constexpr __attribute__((always_inline)) std::size_t scratch_floats(int head_size) {
    return std::size_t{3 * kRowsPerTask + 2 * kKeysPerTile} * head_size + kRowsPerTask * kKeysPerTile + 2048;
}

// The first key that a row sees.
constexpr __attribute__((always_inline)) std::int64_t first_visible(const AttentionCall& call, std::int64_t position) {
    if (call.window) return position < call.window ? 0 : position - call.window + 1;
    if (call.chunk) return position / call.chunk * call.chunk;
    return 0;
}

// Heads of a multiple of so many entries can be multiplied by tiles, which hold twice as many.
inline constexpr int kEntriesByTiles = 16;

using AttentionKernel = void (*)(const AttentionCall&, const AttentionTask&, float* scratch);
// Puts the partial sums of a task of one run together, split by split from its `partial` on, and writes the results.
using AttentionMerge = void (*)(const AttentionCall&, const AttentionTask&, float* scratch);

struct AttentionKernels {
    AttentionKernel attend[2][kNumCacheTypes];  // [query is bfloat16]
    AttentionKernel attend_by_tiles;            // of AMX, where both are bfloat16 and heads fit; or null
    AttentionMerge merge[2];
};

OCTAVO_DECLARE_KERNELS(AttentionKernels, attention_kernels)

}  // namespace octavo
