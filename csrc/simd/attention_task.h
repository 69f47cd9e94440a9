// A task of attention as its kernel sees it: the rows, which keys of a tile they see, and where their sums lie.
#pragma once

#include "simd/attention.h"
#include "simd/kv_strips.h"

namespace octavo::OCTAVO_ISA {

constexpr int kStripsPerTile = kKeysPerTile / kKeysPerStrip;
#if OCTAVO_ISA_generic
constexpr int kRowsPerBlock = 2;
#else
constexpr int kRowsPerBlock = 6;
#endif
// Values that many rows read lie in panels of so many columns, [kKeysPerTile, kPanelColumns]. A line lies between them, for
// else the same line of each would want the same place in the first-level cache.
constexpr int kPanelColumns = 2 * kLanes;
constexpr int kPanelFloats = (kKeysPerTile + 1) * kPanelColumns;
constexpr float kInfinity = __builtin_inff();
constexpr float kLog2E = 1.44269504088896341f;

// Keys of a tile by their place in it; none if first >= last.
struct KeyRange {
    int first, last;
    bool is_empty() const { return first >= last; }
};

// What was summed up for each row: the largest score, the weights, and the weighted values [rows, head_size].
struct Sums {
    float *largest, *weight, *value;
};

struct Row {
    std::int64_t token, position;
    int head;
};

// Rows that are computed together, and the keys of the tile that any and that all of them see.
struct Block {
    int row, num_rows;
    KeyRange any, all;
};

// The keys from a task's first tile to its last that is seen.
struct KeySpan {
    std::int64_t first, last;
};

inline KeySpan span_of(const AttentionCall& call, const AttentionTask& task) {
    std::int64_t first = INT64_MAX, last = 0;
    for (const RowRun* run = task.runs; run < task.runs + task.num_runs; ++run) {
        const std::int64_t seen = first_visible(call, run->position), end = run->position + run->num_tokens;
        first = seen < first ? seen : first;
        last = end > last ? end : last;
    }
    const std::int64_t start = std::int64_t{task.first_split} * call.keys_per_split;
    const std::int64_t end = std::int64_t{task.last_split} * call.keys_per_split;
    return {first < start ? start : first / kKeysPerTile * kKeysPerTile, last < end ? last : end};
}

struct Work {
    Work(const AttentionCall& call, const AttentionTask& task, float* scratch)
        : call(call), task(task), span(span_of(call, task)), head_size(call.head_size) {
        for (const RowRun* run = task.runs; run < task.runs + task.num_runs; ++run) add_rows(*run);
        const auto take = [&scratch](std::size_t count) {
            float* taken = scratch;
            scratch += count;
            return taken;
        };
        const std::size_t matrix = std::size_t{kRowsPerTask} * head_size;
        query = take(matrix);
        split = {take(kRowsPerTask + kLanes), take(kRowsPerTask + kLanes), take(matrix)};
        total = {take(kRowsPerTask + kLanes), take(kRowsPerTask + kLanes), take(matrix)};
        keys = take(kKeysPerTile * head_size);
        values = take((head_size + kPanelColumns - 1) / kPanelColumns * kPanelFloats);
        weights = take(kRowsPerTask * kKeysPerTile);
    }

    void add_rows(const RowRun& run) {
        const std::int64_t last = run.position + run.num_tokens - 1;
        lowest = run.position < lowest ? run.position : lowest;
        highest = last > highest ? last : highest;
        for (int token = 0; token < run.num_tokens; ++token) {
            for (int head = 0; head < task.num_heads; ++head) {
                rows[num_rows++] = {run.row + token, run.position + token, task.first_head + head};
            }
        }
    }

    const AttentionCall& call;
    const AttentionTask& task;
    const KeySpan span;
    const int head_size;
    std::int64_t lowest = INT64_MAX, highest = 0;  // positions of rows
    int num_rows = 0;
    Row rows[kRowsPerTask];
    KeyRange ranges[kRowsPerTask];  // visible keys of the tile
    bool sees_all = false;          // every row of every key of the tile
    int num_blocks = 0;
    Block blocks[kRowsPerTask];     // of rows that see any of them
    float* query;                   // [num_rows, head_size], scaled; by tiles bfloat16 as they are
    float *keys, *values;           // a tile's as float32: strips of keys, panels [kKeysPerTile, kPanelColumns] of values;
                                    // by tiles spare sums, and pairs of bfloat16 values
    float* weights;                 // [num_rows, kKeysPerTile], scores at first
    Sums split, total;
};

OCTAVO_INLINE int lower(int a, int b) { return a < b ? a : b; }
OCTAVO_INLINE int higher(int a, int b) { return a > b ? a : b; }

OCTAVO_INLINE KeyRange visible(const AttentionCall& call, std::int64_t position, std::int64_t tile) {
    const auto place = [tile](std::int64_t key) {
        return static_cast<int>(key <= tile ? 0 : key - tile >= kKeysPerTile ? kKeysPerTile : key - tile);
    };
    return {place(first_visible(call, position)), place(position + 1)};
}

// Blocks of rows [row, end), all of which see keys.
inline void add_blocks(Work& work, int row, int end) {
    while (row < end) {
        const int num_blocks = (end - row + kRowsPerBlock - 1) / kRowsPerBlock;
        const int num_rows = (end - row + num_blocks - 1) / num_blocks;  // even sizes: 7 is 4 + 3, not 6 + 1
        Block block{row, num_rows, work.ranges[row], work.ranges[row]};
        for (const KeyRange* own = work.ranges + row; own < work.ranges + row + num_rows; ++own) {
            block.any = {lower(block.any.first, own->first), higher(block.any.last, own->last)};
            block.all = {higher(block.all.first, own->first), lower(block.all.last, own->last)};
        }
        work.blocks[work.num_blocks++] = block;
        row += num_rows;
    }
}

// Finds who sees which keys of the tile, and returns how many strips any do.
inline int look_at_tile(Work& work, std::int64_t position) {
    const bool sees_all = work.lowest >= position + kKeysPerTile - 1 && first_visible(work.call, work.highest) <= position;
    if (sees_all && work.sees_all) return kStripsPerTile;  // as the tile before
    work.sees_all = sees_all;
    int last = 0;
    for (int r = 0; r < work.num_rows; ++r) {
        work.ranges[r] = visible(work.call, work.rows[r].position, position);
        last = higher(last, work.ranges[r].last);
    }
    work.num_blocks = 0;
    for (int row = 0, end = 0; row < work.num_rows; row = end + 1) {
        for (end = row; end < work.num_rows && !work.ranges[end].is_empty();) ++end;
        add_blocks(work, row, end);
    }
    return (last + kKeysPerStrip - 1) / kKeysPerStrip;
}

}  // namespace octavo::OCTAVO_ISA
