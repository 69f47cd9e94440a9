// Paged attention: an online softmax over tiles of keys at fixed positions.
//
// What one row of one head computes depends on its own query, position and keys alone: every score is one chain of
// fused multiply-adds over the head's entries, every output entry one chain over the keys of a split in ascending order,
// and the row's own first and last visible key, never those of its neighbours, bound what is read.
#include "simd/attention.h"

#include "simd/lanes.h"
#include "simd/math.h"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int kStrip = 2 * kLanes;  // keys that lie side by side in packed keys
constexpr int kRowsPerBlock = 6;    // with two lanes each, they fill the registers
constexpr float kInfinity = __builtin_inff();

// What was summed up for each row: the largest score, the weights, and the weighted values [rows, head_size].
struct Sums {
    float *largest, *weight, *value;
};

struct Work {
    Work(const AttentionCall& call, const AttentionTask& task, float* scratch)
        : call(call), task(task), head_size(call.head_size), num_rows(task.num_tokens * task.num_heads) {
        const auto take = [&scratch](std::size_t count) {
            float* taken = scratch;
            scratch += count;
            return taken;
        };
        const std::size_t matrix = static_cast<std::size_t>(kRowsPerTask) * head_size;
        query = take(matrix);
        keys = take(matrix);
        values = take(matrix);
        split = {take(kRowsPerTask + kLanes), take(kRowsPerTask + kLanes), take(matrix)};
        total = {take(kRowsPerTask + kLanes), take(kRowsPerTask + kLanes), take(matrix)};
        weights = take(kRowsPerBlock * kKeysPerTile);
        nothing = take(head_size);
        for (int i = 0; i < head_size; ++i) nothing[i] = 0.0f;
    }

    const AttentionCall& call;
    const AttentionTask& task;
    const int head_size, num_rows;
    float* query;    // [num_rows, head_size], scaled
    float* keys;     // [strip, head_size, kStrip]
    float* values;   // [kKeysPerTile, head_size]
    float* weights;  // [kRowsPerBlock, kKeysPerTile], scores at first
    float* nothing;  // [head_size] zeros
    Sums split, total;
};
static_assert(kRowsPerTask == kKeysPerTile, "one size of matrix serves rows and keys");

OCTAVO_INLINE std::int64_t lower(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

OCTAVO_INLINE std::int64_t first_visible(const AttentionCall& call, std::int64_t position) {
    if (call.window) return position < call.window ? 0 : position - call.window + 1;
    if (call.chunk) return position / call.chunk * call.chunk;
    return 0;
}

// Keys of a tile by their place in it; none if first >= last.
struct KeyRange {
    int first, last;
    bool operator==(const KeyRange& other) const { return first == other.first && last == other.last; }
};

OCTAVO_INLINE KeyRange clip(std::int64_t first, std::int64_t last, std::int64_t tile) {
    const auto place = [tile](std::int64_t key) {
        return static_cast<int>(key < tile ? 0 : lower(key - tile, kKeysPerTile));
    };
    return {place(first), place(last)};
}

OCTAVO_INLINE KeyRange visible(const Work& work, int token, std::int64_t tile) {
    const std::int64_t position = work.task.position + token;
    return clip(first_visible(work.call, position), position + 1, tile);
}

// ---- Filling the scratch memory ----

template <class Query>
void load_query(Work& work) {
    const AttentionCall& call = work.call;
    const std::size_t width = static_cast<std::size_t>(call.num_heads) * work.head_size;
    const Query* first = static_cast<const Query*>(call.query) + work.task.row * width +
                         static_cast<std::size_t>(work.task.first_head) * work.head_size;
    const int heads_width = work.task.num_heads * work.head_size;
    const Lanes scale = broadcast(call.scale);
    for (int token = 0; token < work.task.num_tokens; ++token) {
        const Query* from = first + token * width;
        float* to = work.query + token * heads_width;
        for (int i = 0; i < heads_width; i += kLanes) store(to + i, load(from + i) * scale);
    }
}

// Where the keys of a tile lie; those out of sight are zeros.
template <class Cache>
struct KeyRows {
    KeyRange range;
    const Cache* at[kKeysPerTile];
};

template <class Cache>
void find_keys(const Work& work, std::int64_t tile, KeyRows<Cache>& rows) {
    const AttentionCall& call = work.call;
    const AttentionTask& task = work.task;
    rows.range = clip(first_visible(call, task.position), task.position + task.num_tokens, tile);
    const std::int32_t* blocks = call.block_table + task.request * call.table_stride;
    const std::ptrdiff_t token_stride = static_cast<std::ptrdiff_t>(call.num_kv_heads) * call.head_size;
    const Cache* head = static_cast<const Cache*>(call.cache) + task.kv_head * call.head_size;
    const int start = static_cast<int>(tile) + rows.range.first;
    int block = start / call.block_size, offset = start % call.block_size;
    for (int i = 0; i < kKeysPerTile; ++i) rows.at[i] = reinterpret_cast<const Cache*>(work.nothing);
    for (int i = rows.range.first; i < rows.range.last; ++i) {
        rows.at[i] = head + blocks[block] * call.block_stride + offset * token_stride;
        if (++offset == call.block_size) ++block, offset = 0;
    }
}

// Asks for a row of the next tile: its pages are scattered, and the hardware does not foresee them.
template <class Cache>
OCTAVO_INLINE void prefetch(const Cache* row, int head_size) {
    constexpr int kLine = 64 / sizeof(Cache);
    for (int d = 0; d < head_size; d += kLine) __builtin_prefetch(row + d, 0, 2);
}

// Packs the tile's keys [first, last), multiples of kLanes; `strips` is where that of the first one goes.
template <class Cache>
OCTAVO_INLINE void pack_keys(const KeyRows<Cache>& rows, const KeyRows<Cache>& next, int first, int last, int head_size,
                             float* strips) {
    for (int key = first; key < last; key += kLanes) {
        for (int i = 0; i < kLanes; ++i) prefetch(next.at[key + i], head_size);
        float* to = strips + (key / kStrip - first / kStrip) * kStrip * head_size + key % kStrip;
        for (int d = 0; d < head_size; d += kLanes) {
            Lanes square[kLanes];
            for (int i = 0; i < kLanes; ++i) square[i] = load(rows.at[key + i] + d);
            transpose(square);
            for (int i = 0; i < kLanes; ++i) store(to + (d + i) * kStrip, square[i]);
        }
    }
}

template <class Cache>
OCTAVO_INLINE void copy_values(Work& work, const KeyRows<Cache>& rows, const KeyRows<Cache>& next) {
    for (int key = rows.range.first; key < rows.range.last; ++key) {
        if (key < next.range.last) prefetch(next.at[key] + work.call.half_stride, work.head_size);
        const Cache* from = rows.at[key] + work.call.half_stride;
        float* to = work.values + key * work.head_size;
        for (int d = 0; d < work.head_size; d += kLanes) store(to + d, load(from + d));
    }
}

template <class Cache>
void load_tile(Work& work, const KeyRows<Cache>& rows, const KeyRows<Cache>& next) {
    const int first = rows.range.first / kStrip * kStrip;
    const int last = (rows.range.last + kLanes - 1) / kLanes * kLanes;
    pack_keys(rows, next, first, last, work.head_size, work.keys + first * work.head_size);
    copy_values(work, rows, next);
}

// ---- A block of rows that see the same keys of a tile ----

// sums[r][c] += row(r) * column(c). The fewer of both stay in registers beside the sums.
template <int kRows, int kColumns, class Row, class Column>
OCTAVO_INLINE void multiply_add(Lanes (&sums)[kRows][kColumns], Row row, Column column) {
    if constexpr (kRows <= kColumns) {
        Lanes entry[kRows];
        for (int r = 0; r < kRows; ++r) entry[r] = row(r);
        for (int c = 0; c < kColumns; ++c) {
            const Lanes other = column(c);
            for (int r = 0; r < kRows; ++r) sums[r][c] = fma(entry[r], other, sums[r][c]);
        }
    } else {
        Lanes entry[kColumns];
        for (int c = 0; c < kColumns; ++c) entry[c] = column(c);
        for (int r = 0; r < kRows; ++r) {
            const Lanes other = row(r);
            for (int c = 0; c < kColumns; ++c) sums[r][c] = fma(other, entry[c], sums[r][c]);
        }
    }
}

// Scores of kRows rows and of the keys of kStrips strips.
template <int kRows, int kStrips>
OCTAVO_INLINE void multiply_keys(const float* query, const float* keys, int head_size, float* scores) {
    constexpr int kColumns = 2 * kStrips;
    Lanes sums[kRows][kColumns];
    for (int r = 0; r < kRows; ++r) {
        for (int c = 0; c < kColumns; ++c) sums[r][c] = zero_lanes();
    }
    for (int d = 0; d < head_size; ++d) {
        multiply_add(sums, [&](int r) { return broadcast(query[r * head_size + d]); },
                     [&](int c) { return load(keys + (c / 2 * head_size + d) * kStrip + c % 2 * kLanes); });
    }
    for (int r = 0; r < kRows; ++r) {
        for (int c = 0; c < kColumns; ++c) store(scores + r * kKeysPerTile + c * kLanes, sums[r][c]);
    }
}

template <int kRows>
OCTAVO_INLINE void score_block(Work& work, int row, KeyRange range) {
    constexpr int kWide = kRows <= 3 ? 2 : 1;  // few rows take more strips at once, for as many chains
    const float* query = work.query + row * work.head_size;
    int strip = range.first / kStrip;
    const int end = (range.last + kStrip - 1) / kStrip;
    for (; strip + kWide <= end; strip += kWide) {
        multiply_keys<kRows, kWide>(query, work.keys + strip * kStrip * work.head_size, work.head_size,
                                    work.weights + strip * kStrip);
    }
    for (; strip < end; ++strip) {
        multiply_keys<kRows, 1>(query, work.keys + strip * kStrip * work.head_size, work.head_size,
                                work.weights + strip * kStrip);
    }
}

// Caps a row's scores, selects out those of invisible keys, and returns the largest.
OCTAVO_INLINE float cap_and_mask(float* scores, KeyRange range, float softcap) {
    const int first = range.first / kLanes * kLanes;
    if (softcap != 0.0f) {
        const Lanes cap = broadcast(softcap);
        for (int i = first; i < range.last; i += kLanes) {
            store(scores + i, cap * hyperbolic_tangent(load(scores + i) / cap));
        }
    }
    for (int i = first; i < range.first; ++i) scores[i] = -kInfinity;
    for (int i = range.last; i % kLanes; ++i) scores[i] = -kInfinity;
    Lanes largest = broadcast(-kInfinity);
    for (int i = first; i < range.last; i += kLanes) largest = larger(load(scores + i), largest);
    return largest_lane(largest);
}

// Turns a block's scores into weights, relative to each row's largest score so far, and adds them up. Returns in `decay`
// what the rows' earlier sums shrink by.
template <int kRows>
OCTAVO_INLINE void weigh_block(Work& work, int row, KeyRange range, float (&decay)[kLanes]) {
    float largest[kLanes] = {}, added[kLanes] = {};
    for (int r = 0; r < kRows; ++r) {
        const float in_tile = cap_and_mask(work.weights + r * kKeysPerTile, range, work.call.softcap);
        const float before = work.split.largest[row + r];
        largest[r] = in_tile > before ? in_tile : before;
    }
    const Lanes shrink = exponential(load(work.split.largest + row) - load(largest));
    store(decay, shrink);
    for (int r = 0; r < kRows; ++r) {
        float* scores = work.weights + r * kKeysPerTile;
        Lanes sum = zero_lanes();
        for (int i = range.first / kLanes * kLanes; i < range.last; i += kLanes) {
            const Lanes weight = exponential(load(scores + i) - broadcast(largest[r]));
            store(scores + i, weight);
            sum = sum + weight;
        }
        added[r] = sum_lanes(sum);
    }
    store_first(work.split.weight + row, fma(load(work.split.weight + row), shrink, load(added)), kRows);
    for (int r = 0; r < kRows; ++r) work.split.largest[row + r] = largest[r];
}

// Values of a tile, copied or where they lie.
struct CopiedValues {
    const float* first;
    int head_size;
    OCTAVO_INLINE const float* of(int key) const { return first + key * head_size; }
};
template <class Cache>
struct CacheValues {
    const KeyRows<Cache>& rows;
    std::ptrdiff_t half_stride;
    OCTAVO_INLINE const Cache* of(int key) const { return rows.at[key] + half_stride; }
};

// kColumns lanes, from entry d on, of kRows rows of weighted values.
template <int kRows, int kColumns, class Values>
OCTAVO_INLINE void add_columns(const float* weights, const float (&decay)[kLanes], const Values& values, int d,
                               KeyRange range, int head_size, float* sums) {
    Lanes sum[kRows][kColumns];
    for (int r = 0; r < kRows; ++r) {
        for (int c = 0; c < kColumns; ++c) sum[r][c] = load(sums + r * head_size + c * kLanes) * broadcast(decay[r]);
    }
    for (int key = range.first; key < range.last; ++key) {
        const auto* value = values.of(key) + d;
        multiply_add(sum, [&](int r) { return broadcast(weights[r * kKeysPerTile + key]); },
                     [&](int c) { return load(value + c * kLanes); });
    }
    for (int r = 0; r < kRows; ++r) {
        for (int c = 0; c < kColumns; ++c) store(sums + r * head_size + c * kLanes, sum[r][c]);
    }
}

template <int kRows, class Values>
OCTAVO_INLINE void add_values(Work& work, int row, KeyRange range, const float (&decay)[kLanes], const Values& values) {
    constexpr int kWide = kRows <= 3 ? 4 : 2;
    float* sums = work.split.value + row * work.head_size;
    int d = 0;
    for (; d + kWide * kLanes <= work.head_size; d += kWide * kLanes) {
        add_columns<kRows, kWide>(work.weights, decay, values, d, range, work.head_size, sums + d);
    }
    for (; d < work.head_size; d += kLanes) {
        add_columns<kRows, 1>(work.weights, decay, values, d, range, work.head_size, sums + d);
    }
}

template <int kRows>
void attend_block(Work& work, int row, KeyRange range) {
    float decay[kLanes];
    score_block<kRows>(work, row, range);
    weigh_block<kRows>(work, row, range, decay);
    add_values<kRows>(work, row, range, decay, CopiedValues{work.values, work.head_size});
}

void attend_rows(Work& work, int row, int end, KeyRange range) {
    static constexpr void (*kBlocks[])(Work&, int, KeyRange) = {
        attend_block<1>, attend_block<2>, attend_block<3>, attend_block<4>, attend_block<5>, attend_block<6>};
    while (row < end) {
        const int blocks = (end - row + kRowsPerBlock - 1) / kRowsPerBlock;
        const int rows = (end - row + blocks - 1) / blocks;  // even sizes: 7 is 4 + 3, not 6 + 1
        kBlocks[rows - 1](work, row, range);
        row += rows;
    }
}

// A tile for the few rows of one token. Each part of the keys is multiplied as soon as it is packed, and values are read
// where they lie: copies of the whole tile would push each other out of the first-level cache.
template <int kRows, class Cache>
void attend_token(Work& work, const KeyRows<Cache>& rows, const KeyRows<Cache>& next) {
    constexpr int kWide = kRows <= 3 ? 2 : 1, kPart = kWide * kStrip;
    const KeyRange range = rows.range;
    for (int key = range.first / kPart * kPart; key < range.last; key += kPart) {
        pack_keys(rows, next, key, key + kPart, work.head_size, work.keys);
        multiply_keys<kRows, kWide>(work.query, work.keys, work.head_size, work.weights + key);
    }
    float decay[kLanes];
    weigh_block<kRows>(work, 0, range, decay);
    for (int key = next.range.first; key < next.range.last; ++key) {
        prefetch(next.at[key] + work.call.half_stride, work.head_size);
    }
    add_values<kRows>(work, 0, range, decay, CacheValues<Cache>{rows, work.call.half_stride});
}

template <class Cache>
void attend_token_rows(Work& work, const KeyRows<Cache>& rows, const KeyRows<Cache>& next) {
    static constexpr void (*kTokens[])(Work&, const KeyRows<Cache>&, const KeyRows<Cache>&) = {
        attend_token<1, Cache>, attend_token<2, Cache>, attend_token<3, Cache>,
        attend_token<4, Cache>, attend_token<5, Cache>, attend_token<6, Cache>};
    kTokens[work.num_rows - 1](work, rows, next);
}

// ---- Tiles, splits, results ----

void attend_tile(Work& work, std::int64_t tile) {
    const int num_tokens = work.task.num_tokens;
    int token = 0;
    while (token < num_tokens) {
        const KeyRange range = visible(work, token, tile);
        int end = token + 1;
        while (end < num_tokens && visible(work, end, tile) == range) ++end;
        if (range.first < range.last) attend_rows(work, token * work.task.num_heads, end * work.task.num_heads, range);
        token = end;
    }
}

void clear(Sums& sums, int num_rows, int head_size) {
    for (int r = 0; r < num_rows; ++r) sums.largest[r] = -kInfinity, sums.weight[r] = 0.0f;
    for (int i = 0; i < num_rows * head_size; i += kLanes) store(sums.value + i, zero_lanes());
}

template <class Cache>
void attend_split(Work& work, int split) {
    clear(work.split, work.num_rows, work.head_size);
    const std::int64_t first = first_visible(work.call, work.task.position);
    const std::int64_t start = static_cast<std::int64_t>(split) * kKeysPerSplit;
    const std::int64_t seen = first <= start ? start : first / kKeysPerTile * kKeysPerTile;
    const std::int64_t end = lower(start + kKeysPerSplit, work.task.position + work.task.num_tokens);
    KeyRows<Cache> rows[2];
    find_keys(work, seen, rows[0]);
    for (std::int64_t tile = seen; tile < end; tile += kKeysPerTile) {
        const int now = static_cast<int>(tile / kKeysPerTile - seen / kKeysPerTile) % 2;
        find_keys(work, tile + kKeysPerTile, rows[1 - now]);
        if (work.task.num_tokens == 1 && work.num_rows <= kRowsPerBlock) {
            attend_token_rows(work, rows[now], rows[1 - now]);
        } else {
            load_tile(work, rows[now], rows[1 - now]);
            attend_tile(work, tile);
        }
    }
}

// Adds a split's sums of one row to the total. A split without visible keys changes nothing, to the bit.
OCTAVO_INLINE void merge_row(const Sums& total, int row, float largest, float weight, const float* value, int head_size) {
    const float before = total.largest[row];
    if (weight == 0.0f) return;
    const float after = largest > before ? largest : before;
    const Lanes keep = broadcast(exponential(before - after)), take = broadcast(exponential(largest - after));
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
    const float sink = work.call.sinks[work.task.first_head + row % work.task.num_heads];
    const float after = sink > largest ? sink : largest;
    const float keep = exponential(largest - after);
    return keep / (weight * keep + exponential(sink - after));
}

template <class Query>
void write_rows(const Work& work) {
    const AttentionCall& call = work.call;
    for (int row = 0; row < work.num_rows; ++row) {
        const std::int64_t token = work.task.row + row / work.task.num_heads;
        const std::int64_t head = work.task.first_head + row % work.task.num_heads;
        Query* out = static_cast<Query*>(call.out) + (token * call.num_heads + head) * work.head_size;
        const float* sums = work.total.value + row * work.head_size;
        const Lanes factor = broadcast(final_factor(work, row));
        for (int d = 0; d < work.head_size; d += kLanes) store(out + d, load(sums + d) * factor);
    }
}

void store_partial(const Work& work) {
    float* to = work.task.partial;
    for (int row = 0; row < work.num_rows; ++row, to += partial_floats(work.head_size)) {
        to[0] = work.split.largest[row];
        to[1] = work.split.weight[row];
        std::memcpy(to + kPartialHeader, work.split.value + row * work.head_size, work.head_size * sizeof(float));
    }
}

template <class Query, class Cache>
void attend(const AttentionCall& call, const AttentionTask& task, float* scratch) {
    Work work(call, task, scratch);
    load_query<Query>(work);
    if (task.partial) {
        attend_split<Cache>(work, task.first_split);
        return store_partial(work);
    }
    clear(work.total, work.num_rows, work.head_size);
    for (int split = task.first_split; split < task.last_split; ++split) {
        attend_split<Cache>(work, split);
        for (int row = 0; row < work.num_rows; ++row) {
            merge_row(work.total, row, work.split.largest[row], work.split.weight[row],
                      work.split.value + row * work.head_size, work.head_size);
        }
    }
    write_rows<Query>(work);
}

template <class Query>
void merge(const AttentionCall& call, const AttentionTask& task, const float* partials, float* scratch) {
    Work work(call, task, scratch);
    clear(work.total, work.num_rows, work.head_size);
    for (int split = task.first_split; split < task.last_split; ++split) {
        for (int row = 0; row < work.num_rows; ++row, partials += partial_floats(work.head_size)) {
            merge_row(work.total, row, partials[0], partials[1], partials + kPartialHeader, work.head_size);
        }
    }
    write_rows<Query>(work);
}

using Half = std::uint16_t;

}  // namespace

extern const AttentionKernels attention_kernels{
    {{attend<float, float>, attend<float, Half>}, {attend<Half, float>, attend<Half, Half>}},
    {merge<float>, merge<Half>}};

}  // namespace octavo::OCTAVO_ISA
