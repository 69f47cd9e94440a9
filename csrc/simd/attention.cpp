// Paged attention: an online softmax over tiles of keys at fixed positions.
//
// What one row of one head computes depends on its own query, position and keys alone: every score is one chain of
// fused multiply-adds over the head's entries, every output entry one chain over the keys of a split in ascending order
// (where tiles multiply: of their products, see simd/tiles.h), and the row's own first and last visible key, never those of its neighbours, bound what is summed.
#include "simd/attention.h"

#include "simd/attention_few_rows.h"
#include "simd/attention_many_rows.h"
#if OCTAVO_ISA_amx
#include "simd/attention_tiles.h"
#endif

namespace octavo::OCTAVO_ISA {
namespace {

// Scores are in units of log 2, so that weights are powers of two; a softcap wants them as they are. Queries of keys that
// are transformed are so too.
template <class Query, class Cache>
void load_query(Work& work) {
    const AttentionCall& call = work.call;
    const float unit = call.softcap != 0.0f ? call.scale : call.scale * kLog2E;
    const Lanes scale = broadcast(kHasScales<Cache> ? unit / static_cast<float>(hadamard_size(work.head_size)) : unit);
    for (int r = 0; r < work.num_rows; ++r) {
        const Row& row = work.rows[r];
        const Query* from = static_cast<const Query*>(call.query) + (row.token * call.num_heads + row.head) * work.head_size;
        float* to = work.query + r * work.head_size;
        for (int d = 0; d < work.head_size; d += kLanes) store(to + d, load(from + d) * scale);
        if constexpr (kHasScales<Cache>) hadamard(to, work.head_size);
    }
}

template <class Cache>
void attend_tile(Work& work, const Tile<Cache>& tile, int num_strips) {
    if (work.num_rows <= kRowsPerBlock) return attend_few_rows(work, tile);
    attend_many_rows(work, tile, num_strips);
}

// ---- Splits and results ----

OCTAVO_INLINE void swap(Sums& a, Sums& b) {
    const Sums was = a;
    a = b;
    b = was;
}

void clear(Sums& sums, int num_rows, int head_size) {
    for (int r = 0; r < num_rows; ++r) sums.largest[r] = -kInfinity, sums.weight[r] = 0.0f;
    std::memset(sums.value, 0, static_cast<std::size_t>(num_rows) * head_size * sizeof(float));
}

// Calls attend_tile(work, tile, strips of it that any row sees) for each tile.
template <class Cache, class AttendTile>
void attend_split(Work& work, int split, AttendTile attend_tile) {
    clear(work.split, work.num_rows, work.head_size);
    const std::int64_t start = static_cast<std::int64_t>(split) * work.call.keys_per_split;
    const std::int64_t split_end = start + work.call.keys_per_split;
    const std::int64_t begin = work.span.first > start ? work.span.first : start;
    const std::int64_t end = work.span.last < split_end ? work.span.last : split_end;
    if (begin >= end) return;
    Tile<Cache> tile;
    find_strips(work.call, work.task, begin, end, tile.strips);
    for (std::int64_t position = begin; position < end; position += kKeysPerTile) {
        std::memcpy(tile.next, tile.strips, sizeof tile.next);
        find_next_strips(work, position, tile.next);
        attend_tile(work, tile, look_at_tile(work, position));
        std::memcpy(tile.strips, tile.next, sizeof tile.strips);
    }
}

// Adds a split's sums of one row to the total. A split without visible keys changes nothing, to the bit.
OCTAVO_INLINE void merge_row(const Sums& total, int row, float largest, float weight, const float* value, int head_size) {
    const float before = total.largest[row];
    if (weight == 0.0f) return;
    const float after = largest > before ? largest : before;
    const Lanes keep = broadcast(power_of_two(before - after)), take = broadcast(power_of_two(largest - after));
    float* sums = total.value + row * head_size;
    for (int d = 0; d < head_size; d += kLanes) {
        store(sums + d, fma(load(value + d), take, load(sums + d) * keep));
    }
    float merged[kLanes];
    store(merged, fma(broadcast(weight), take, broadcast(total.weight[row]) * keep));
    total.weight[row] = merged[0];
    total.largest[row] = after;
}

// The factor that turns a row's weighted values into their mean; a sink has a weight and no value.
OCTAVO_INLINE float final_factor(const Work& work, int row) {
    const float largest = work.total.largest[row], weight = work.total.weight[row];
    if (!work.call.sinks) return 1.0f / weight;
    const float sink = work.call.sinks[work.rows[row].head] * kLog2E;
    const float after = sink > largest ? sink : largest;
    const float keep = power_of_two(largest - after);
    return keep / (weight * keep + power_of_two(sink - after));
}

template <class Query>
void write_rows(const Work& work) {
    const AttentionCall& call = work.call;
    for (int r = 0; r < work.num_rows; ++r) {
        const Row& row = work.rows[r];
        Query* out = static_cast<Query*>(call.out) + (row.token * call.num_heads + row.head) * work.head_size;
        const float* sums = work.total.value + r * work.head_size;
        const Lanes factor = broadcast(final_factor(work, r));
        // Adding zero makes one of the two zeros.
        for (int d = 0; d < work.head_size; d += kLanes) store(out + d, fma(load(sums + d), factor, zero_lanes()));
    }
}

void store_partials(const Work& work) {
    int row = 0;
    for (const RowRun* run = work.task.runs; run < work.task.runs + work.task.num_runs; ++run) {
        float* to = run->partial;
        for (int i = 0; i < run->num_tokens * work.task.num_heads; ++i, ++row, to += partial_floats(work.head_size)) {
            to[0] = work.split.largest[row];
            to[1] = work.split.weight[row];
            std::memcpy(to + kPartialHeader, work.split.value + row * work.head_size, work.head_size * sizeof(float));
        }
    }
}

template <class Query, class Cache, class AttendTile>
void attend_splits(Work& work, AttendTile attend_tile) {
    const AttentionTask& task = work.task;
    attend_split<Cache>(work, task.first_split, attend_tile);
    if (task.runs[0].partial) return store_partials(work);
    swap(work.split, work.total);
    for (int split = task.first_split + 1; split < task.last_split; ++split) {
        attend_split<Cache>(work, split, attend_tile);
        for (int row = 0; row < work.num_rows; ++row) {
            merge_row(work.total, row, work.split.largest[row], work.split.weight[row],
                      work.split.value + row * work.head_size, work.head_size);
        }
    }
    write_rows<Query>(work);
}

template <class Query, class Cache>
void attend(const AttentionCall& call, const AttentionTask& task, float* scratch) {
    Work work(call, task, scratch);
    load_query<Query, Cache>(work);
    attend_splits<Query, Cache>(work, attend_tile<Cache>);
}

#if OCTAVO_ISA_amx
void attend_by_tiles(const AttentionCall& call, const AttentionTask& task, float* scratch) {
    Work work(call, task, scratch);
    const int rows = rows_per_tile(work.num_rows);
    const TileScope scope(attention_tile_shapes(rows, work.head_size));
    copy_query(work);
    attend_splits<Half, Half>(work, [rows](Work& work, const Tile<Half>& tile, int) {
        attend_rows_by_tiles(work, tile, rows);
    });
}
#else
constexpr AttentionKernel attend_by_tiles = nullptr;
#endif

template <class Query>
void merge(const AttentionCall& call, const AttentionTask& task, float* scratch) {
    Work work(call, task, scratch);
    clear(work.total, work.num_rows, work.head_size);
    const float* partials = task.runs[0].partial;
    for (int split = task.first_split; split < task.last_split; ++split) {
        for (int row = 0; row < work.num_rows; ++row, partials += partial_floats(work.head_size)) {
            merge_row(work.total, row, partials[0], partials[1], partials + kPartialHeader, work.head_size);
        }
    }
    write_rows<Query>(work);
}

}  // namespace

extern const AttentionKernels attention_kernels{
    {{attend<float, float>, attend<float, Half>, attend<float, Byte>},
     {attend<Half, float>, attend<Half, Half>, attend<Half, Byte>}},
    attend_by_tiles,
    {merge<float>, merge<Half>}};

}  // namespace octavo::OCTAVO_ISA
