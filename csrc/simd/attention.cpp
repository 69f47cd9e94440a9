// Paged attention: an online softmax over tiles of keys at fixed positions.
//
// What one row of one head computes depends on its own query, position and keys alone: every score is one chain of
// fused multiply-adds over the head's entries, every output entry one chain over the keys of a split in ascending order,
// and the row's own first and last visible key, never those of its neighbours, bound what is summed.
#include "simd/attention.h"

#include "simd/kv_strips.h"
#include "simd/math.h"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int kStripsPerTile = kKeysPerTile / kKeysPerStrip;
#if OCTAVO_ISA_generic
constexpr int kRowsPerBlock = 2;
#else
constexpr int kRowsPerBlock = 6;
#endif
constexpr int kRegisters = kLanes == 16 ? 32 : 16;
// Head sizes are multiples of 8, so that wider vectors may find less at a head's end.
constexpr bool kHasTails = kLanes > 8;
constexpr int kMaxRows = rows_per_task(0);
constexpr float kInfinity = __builtin_inff();
constexpr float kLog2E = 1.44269504088896341f;

// Whether sums of `rows` times `vectors` fit into the registers, beside the fewer of both and one of the others; words of
// several entries want one more.
template <class Cache>
constexpr bool fits(int rows, int vectors) {
    return rows * vectors + (rows < vectors ? rows : vectors) + (kPack<Cache> > 1 ? 2 : 1) <= kRegisters;
}

// How many strips or columns of `width` vectors each of `rows` rows takes at once, for enough chains: 1, 2 or 4.
template <class Cache>
constexpr int wide(int rows, int width) {
    return fits<Cache>(rows, 4 * width) ? 4 : fits<Cache>(rows, 2 * width) ? 2 : 1;
}

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

struct Work {
    Work(const AttentionCall& call, const AttentionTask& task, float* scratch)
        : call(call), task(task), head_size(call.head_size) {
        for (const RowRun* run = task.runs; run < task.runs + task.num_runs; ++run) add_rows(*run);
        const auto take = [&scratch](std::size_t count) {
            float* taken = scratch;
            scratch += count;
            return taken;
        };
        const std::size_t matrix = static_cast<std::size_t>(rows_per_task(head_size)) * head_size;
        query = take(matrix);
        split = {take(kMaxRows + kLanes), take(kMaxRows + kLanes), take(matrix)};
        total = {take(kMaxRows + kLanes), take(kMaxRows + kLanes), take(matrix)};
        keys = take(kKeysPerTile * head_size);
        values = take(kKeysPerTile * head_size);
        weights = take(kRowsPerBlock * kKeysPerTile);
    }

    void add_rows(const RowRun& run) {
        for (int token = 0; token < run.num_tokens; ++token) {
            for (int head = 0; head < task.num_heads; ++head) {
                rows[num_rows++] = {run.row + token, run.position + token, task.first_head + head};
            }
        }
    }

    const AttentionCall& call;
    const AttentionTask& task;
    const int head_size;
    int num_rows = 0;
    Row rows[kMaxRows];
    KeyRange ranges[kMaxRows];  // visible keys of the tile
    float* query;               // [num_rows, head_size], scaled
    float *keys, *values;       // a tile's strips as float32
    float* weights;             // [kRowsPerBlock, kKeysPerTile], scores at first
    Sums split, total;
};

OCTAVO_INLINE int lower(int a, int b) { return a < b ? a : b; }
OCTAVO_INLINE int higher(int a, int b) { return a > b ? a : b; }

OCTAVO_INLINE std::int64_t first_visible(const AttentionCall& call, std::int64_t position) {
    if (call.window) return position < call.window ? 0 : position - call.window + 1;
    if (call.chunk) return position / call.chunk * call.chunk;
    return 0;
}

OCTAVO_INLINE KeyRange visible(const AttentionCall& call, std::int64_t position, std::int64_t tile) {
    const auto place = [tile](std::int64_t key) {
        return static_cast<int>(key <= tile ? 0 : key - tile >= kKeysPerTile ? kKeysPerTile : key - tile);
    };
    return {place(first_visible(call, position)), place(position + 1)};
}

// 2^x for x <= 0: 0 below -126, where numbers are no longer normal; NaN stays NaN. A relative error of 1e-7.
OCTAVO_INLINE Lanes power_of_two(Lanes x) {
    const Lanes low = broadcast(-126.0f), shift = broadcast(12582912.0f);
    const Lanes clamped = larger(low, x);
    const Lanes shifted = clamped + shift;
    const Lanes rest = clamped - (shifted - shift);
    Lanes p = fma(broadcast(1.326472731307149e-3f), rest, broadcast(9.671512991189957e-3f));
    p = fma(p, rest, broadcast(5.550733581185341e-2f));
    p = fma(p, rest, broadcast(2.4022242426872253e-1f));
    p = fma(p, rest, broadcast(6.931470036506653e-1f));
    p = fma(p, rest, broadcast(1.0f));
    return select_less(x, low, zero_lanes(), scale_by_power(p, shifted));
}

OCTAVO_INLINE float power_of_two(float x) {
    float out[kLanes];
    store(out, power_of_two(broadcast(x)));
    return out[0];
}

// Calls step(d, count) for the lanes of a row of head_size entries; the last may be fewer than kLanes.
template <class Step>
OCTAVO_INLINE void for_entries_of_head(int head_size, Step step) {
    int d = 0;
    for (; d + kLanes <= head_size; d += kLanes) step(d, kLanes);
    if (kHasTails && d < head_size) step(d, head_size - d);
}
template <class T>
OCTAVO_INLINE Lanes load_some(const T* p, int count) {
    return !kHasTails || count == kLanes ? load(p) : load_first(p, count);
}
template <class T>
OCTAVO_INLINE void store_some(T* p, Lanes a, int count) {
    if (!kHasTails || count == kLanes) return store(p, a);
    store_first(p, a, count);
}

// ---- Queries and tiles ----

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
        for_entries_of_head(work.head_size, [&](int d, int count) {
            store_some(to + d, load_some(from + d, count) * scale, count);
        });
        if constexpr (kHasScales<Cache>) hadamard(to, work.head_size);
    }
}

// A tile where it lies. Strips of the next are read ahead: their blocks are scattered, and the hardware does not foresee
// them.
template <class Cache>
struct Tile {
    Strip<Cache> strips[kStripsPerTile], next[kStripsPerTile];
};

template <class Cache>
void find_strips(const AttentionCall& call, const AttentionTask& task, std::int64_t tile, std::int64_t end,
                 Strip<Cache> (&strips)[kStripsPerTile]) {
    const std::int32_t* blocks = call.block_table + task.runs[0].request * call.table_stride;
    for (int i = 0; i < kStripsPerTile; ++i) {
        const std::int64_t key = tile + i * kKeysPerStrip;
        if (key >= end) {
            strips[i] = strips[i ? i - 1 : 0];  // never summed
            continue;
        }
        const auto offset = static_cast<int>(key % call.cache.block_size);
        strips[i] = strip_of<Cache>(call.cache, blocks[key / call.cache.block_size], task.kv_head, offset);
    }
}

// What is read after the tile at `tile`: the next one of the task, or the first of the task that comes after it.
template <class Cache>
void find_next_strips(const AttentionCall& call, const AttentionTask& task, std::int64_t tile, std::int64_t end,
                      Strip<Cache> (&strips)[kStripsPerTile]) {
    if (tile + kKeysPerTile < end) return find_strips(call, task, tile + kKeysPerTile, end, strips);
    if (!task.next) return;
    const RowRun& run = task.next->runs[0];
    const std::int64_t start = static_cast<std::int64_t>(task.next->first_split) * call.keys_per_split;
    const std::int64_t seen = first_visible(call, run.position), first = start < seen ? seen : start;
    find_strips(call, *task.next, first / kKeysPerTile * kKeysPerTile, run.position + run.num_tokens, strips);
}

template <int kAt>
struct Place {
    static constexpr int value = kAt;
};

// Calls use(place) for each place of a word, as a constant.
template <class Cache, class Use>
OCTAVO_INLINE void for_places(Use use) {
    use(Place<0>{});
    if constexpr (kPack<Cache> > 1) use(Place<1>{});
    if constexpr (kPack<Cache> > 2) use(Place<2>{}), use(Place<3>{});
}

// As word_entries, of the first `count` words; the others are zeros.
template <int kAt, class Cache>
OCTAVO_INLINE Lanes some_entries(const Cache* words, int count) {
    if (!kHasTails || count == kLanes) return word_entries<kAt>(words);
    Cache padded[kLanes * kPack<Cache>] = {};
    for (int i = 0; i < count * kPack<Cache>; ++i) padded[i] = words[i];
    return word_entries<kAt>(padded);
}

// The tile as float32, for many rows to read.
template <class Cache>
void widen(const Work& work, const Tile<Cache>& tile, int num_strips) {
    constexpr int p = kPack<Cache>;
    for (int s = 0; s < num_strips; ++s) {
        const Strip<Cache>& strip = tile.strips[s];
        tile.next[s].read_ahead();
        float* keys = work.keys + s * kKeysPerStrip * work.head_size;
        float* values = work.values + s * kKeysPerStrip * work.head_size;
        for_places<Cache>([&](auto place) {
            constexpr int at = decltype(place)::value;
            for (int d = 0; d < work.head_size; d += p) {
                for (int lane = 0; lane < kKeysPerStrip; lane += kLanes) {
                    store(keys + (d + at) * kKeysPerStrip + lane,
                          word_entries<at>(strip.keys() + (d / p * kKeysPerStrip + lane) * p));
                }
            }
            for (int token = 0; token < kKeysPerStrip; token += p) {
                for (int d = 0; d < work.head_size; d += kLanes) {
                    const int count = lower(kLanes, work.head_size - d);
                    const Cache* words = strip.values() + (token / p * work.head_size + d) * p;
                    store_some(values + (token + at) * work.head_size + d, some_entries<at>(words, count), count);
                }
            }
        });
    }
}

// What a block of rows reads: words of keys and values by strip, and with kAhead those to read ahead.
template <class Cache, bool kAhead>
struct TileView {
    const Cache *keys[kStripsPerTile], *values[kStripsPerTile], *next_keys[kStripsPerTile], *next_values[kStripsPerTile];
    const float *key_scales[kStripsPerTile], *value_scales[kStripsPerTile];  // of int8, else null
};

template <bool kAhead, class Cache>
TileView<Cache, kAhead> view_in_place(const Tile<Cache>& tile) {
    TileView<Cache, kAhead> view;
    for (int s = 0; s < kStripsPerTile; ++s) {
        view.keys[s] = tile.strips[s].keys(), view.values[s] = tile.strips[s].values();
        view.next_keys[s] = tile.next[s].keys(), view.next_values[s] = tile.next[s].values();
        view.key_scales[s] = kHasScales<Cache> ? tile.strips[s].key_scales() : nullptr;
        view.value_scales[s] = kHasScales<Cache> ? tile.strips[s].value_scales() : nullptr;
    }
    return view;
}

template <class Cache>
TileView<float, false> view_widened(const Work& work, const Tile<Cache>& tile) {
    TileView<float, false> view;
    for (int s = 0; s < kStripsPerTile; ++s) {
        view.keys[s] = view.next_keys[s] = work.keys + s * kKeysPerStrip * work.head_size;
        view.values[s] = view.next_values[s] = work.values + s * kKeysPerStrip * work.head_size;
        view.key_scales[s] = kHasScales<Cache> ? tile.strips[s].key_scales() : nullptr;
        view.value_scales[s] = kHasScales<Cache> ? tile.strips[s].value_scales() : nullptr;
    }
    return view;
}

// ---- A block of rows ----

// sums[r][c] += row(r) * column(c). The fewer of both stay in registers beside the sums.
template <int kRows, int kColumns, class RowEntry, class Column>
OCTAVO_INLINE void multiply_add(Lanes (&sums)[kRows][kColumns], RowEntry row, Column column) {
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
template <int kRows, int kStrips, class Cache, bool kAhead>
OCTAVO_INLINE void multiply_keys(const float* query, const TileView<Cache, kAhead>& tile, int strip, int head_size, float* scores) {
    constexpr int p = kPack<Cache>, kStep = kKeysPerStrip * p;
    Lanes sums[kRows][kStrips * kParts];
    for (int r = 0; r < kRows; ++r) {
        for (int c = 0; c < kStrips * kParts; ++c) sums[r][c] = zero_lanes();
    }
    for (int d = 0; d < head_size; d += p) {
        const std::size_t at = static_cast<std::size_t>(d / p) * kStep;
        for (int s = 0; kAhead && s < kStrips; ++s) __builtin_prefetch(tile.next_keys[strip + s] + at, 0, 2);
        for_places<Cache>([&](auto place) {
            constexpr int i = decltype(place)::value;
            multiply_add(sums, [&](int r) { return broadcast(query[r * head_size + d + i]); }, [&](int c) {
                return word_entries<i>(tile.keys[strip + c / kParts] + at + c % kParts * kLanes * p);
            });
        });
    }
    for (int r = 0; r < kRows; ++r) {
        for (int c = 0; c < kStrips * kParts; ++c) store(scores + r * kKeysPerTile + c * kLanes, sums[r][c]);
    }
}

template <int kRows, class Cache, bool kAhead>
__attribute__((noinline)) void score_block(const float* query, const TileView<Cache, kAhead>& tile, KeyRange range, int head_size,
                               float* scores) {
    constexpr int kWide = wide<Cache>(kRows, kParts);
    int strip = range.first / kKeysPerStrip;
    const int end = (range.last + kKeysPerStrip - 1) / kKeysPerStrip;
    for (; strip + kWide <= end; strip += kWide) {
        multiply_keys<kRows, kWide>(query, tile, strip, head_size, scores + strip * kKeysPerStrip);
    }
    for (; strip < end; ++strip) {
        multiply_keys<kRows, 1>(query, tile, strip, head_size, scores + strip * kKeysPerStrip);
    }
}

// Finishes a row's scores of the keys of strips [first, last), selects out those of invisible keys, and returns the largest.
template <bool kScaled>
__attribute__((noinline)) float finish_scores(const AttentionCall& call, float* scores, const float* const* scales, int first, int last,
                                  KeyRange range) {
    for (int strip = first; kScaled && strip < last; ++strip) {
        float* some = scores + strip * kKeysPerStrip;
        for (int i = 0; i < kKeysPerStrip; i += kLanes) store(some + i, load(some + i) * load(scales[strip] + i));
    }
    first *= kKeysPerStrip, last *= kKeysPerStrip;
    if (call.softcap != 0.0f) {
        const Lanes cap = broadcast(call.softcap), unit = broadcast(call.softcap * kLog2E);
        for (int i = first; i < last; i += kLanes) store(scores + i, unit * hyperbolic_tangent(load(scores + i) / cap));
    }
    for (int i = first; i < range.first; ++i) scores[i] = -kInfinity;
    for (int i = range.last; i < last; ++i) scores[i] = -kInfinity;
    Lanes largest = broadcast(-kInfinity);
    for (int i = first; i < last; i += kLanes) largest = larger(load(scores + i), largest);
    return largest_lane(largest);
}

// Turns a row's scores into weights relative to `largest`, and returns their sum.
template <bool kScaled>
__attribute__((noinline)) float weigh(float* scores, const float* const* scales, int first, int last, float largest) {
    const Lanes most = broadcast(largest);
    Lanes sums[kParts];
    for (Lanes& sum : sums) sum = zero_lanes();
    for (int strip = first; strip < last; ++strip) {
        for (int part = 0; part < kParts; ++part) {
            float* some = scores + strip * kKeysPerStrip + part * kLanes;
            const Lanes weight = power_of_two(load(some) - most);
            sums[part] = sums[part] + weight;
            store(some, kScaled ? weight * load(scales[strip] + part * kLanes) : weight);
        }
    }
    return sum_lanes(kParts == 2 ? sums[0] + sums[kParts - 1] : sums[0]);
}

// The weights of a block's scores, added up. Returns in `decay` what the rows' earlier sums shrink by.
template <int kRows, bool kScaled>
void weigh_block(Work& work, int row, KeyRange all, const float* const* key_scales,
                               const float* const* value_scales, float (&decay)[kLanes]) {
    const int first = all.first / kKeysPerStrip, last = (all.last + kKeysPerStrip - 1) / kKeysPerStrip;
    float largest[kLanes] = {}, added[kLanes] = {};
    for (int r = 0; r < kRows; ++r) {
        float* scores = work.weights + r * kKeysPerTile;
        const float in_tile = finish_scores<kScaled>(work.call, scores, key_scales, first, last, work.ranges[row + r]);
        const float before = work.split.largest[row + r];
        largest[r] = in_tile > before ? in_tile : before;
        added[r] = weigh<kScaled>(scores, value_scales, first, last, largest[r]);
    }
    const Lanes shrink = power_of_two(load(work.split.largest + row) - load(largest));
    store(decay, shrink);
    store_first(work.split.weight + row, fma(load(work.split.weight + row), shrink, load(added)), kRows);
    for (int r = 0; r < kRows; ++r) work.split.largest[row + r] = largest[r];
}

// kColumns vectors, from entry d on, of kRows rows of weighted values, which shrink by decay first.
template <int kRows, int kColumns, class Cache, bool kAhead>
OCTAVO_INLINE void add_columns(const float* weights, const float* decay, const TileView<Cache, kAhead>& tile, int d, int count,
                               KeyRange range, int head_size, float* sums) {
    constexpr int p = kPack<Cache>;
    Lanes sum[kRows][kColumns];
    for (int r = 0; r < kRows; ++r) {
        for (int c = 0; c < kColumns; ++c) {
            sum[r][c] = load_some(sums + r * head_size + c * kLanes, count) * broadcast(decay[r]);
        }
    }
    for (int start = range.first / kKeysPerStrip * kKeysPerStrip; start < range.last; start += kKeysPerStrip) {
        const int strip = start / kKeysPerStrip;
        const int first = higher(range.first - start, 0), last = lower(range.last - start, kKeysPerStrip);
        const std::size_t at = (static_cast<std::size_t>(first / p) * head_size + d) * p;
        const Cache *words = tile.values[strip] + at, *ahead = tile.next_values[strip] + at;
        const float* weight = weights + start + first / p * p;
        for (int token = first / p * p; token < last; token += p) {
            if (kAhead) __builtin_prefetch(ahead, 0, 2);
            if (kAhead && kColumns * kLanes > 16) __builtin_prefetch(ahead + 16 * p, 0, 2);
            // Those of the next columns: a tile and its rows are more than the first-level cache holds.
            if (!kAhead) __builtin_prefetch(words + kColumns * kLanes * p, 0, 3);
            for_places<Cache>([&](auto place) {
                constexpr int i = decltype(place)::value;
                if (p > 1 && (token + i < first || token + i >= last)) return;  // parts of a word at the range's ends
                multiply_add(sum, [&](int r) { return broadcast(weight[r * kKeysPerTile + i]); }, [&](int c) {
                    return some_entries<i>(words + c * kLanes * p, count);
                });
            });
            words += head_size * p, ahead += head_size * p, weight += p;
        }
    }
    for (int r = 0; r < kRows; ++r) {
        for (int c = 0; c < kColumns; ++c) store_some(sums + r * head_size + c * kLanes, sum[r][c], count);
    }
}

template <int kRows, class Cache, bool kAhead>
__attribute__((noinline)) void add_values(const float* weights, const float* decay, const TileView<Cache, kAhead>& tile, KeyRange range,
                              int head_size, float* sums) {
    constexpr int kWide = wide<Cache>(kRows, 1);
    int d = 0;
    for (; d + kWide * kLanes <= head_size; d += kWide * kLanes) {
        add_columns<kRows, kWide>(weights, decay, tile, d, kLanes, range, head_size, sums + d);
    }
    for (; d < head_size; d += kLanes) {
        add_columns<kRows, 1>(weights, decay, tile, d, lower(kLanes, head_size - d), range, head_size, sums + d);
    }
}

constexpr float kNoDecay[kLanes] = {1, 1, 1, 1, 1, 1};

// Rows that see different keys: each adds its own before and after those that all see, in ascending order.
template <int kRows, class Cache, bool kAhead>
void add_ragged_values(Work& work, int row, const TileView<Cache, kAhead>& tile, KeyRange common,
                                                 const float* decay) {
    const int head_size = work.head_size;
    const auto add_row = [&](int r, KeyRange range, const float* shrink) {
        add_values<1>(work.weights + r * kKeysPerTile, shrink, tile, range, head_size,
                      work.split.value + (row + r) * head_size);
    };
    for (int r = 0; r < kRows; ++r) {
        const KeyRange own = work.ranges[row + r];
        add_row(r, common.is_empty() ? own : KeyRange{own.first, common.first}, decay + r);
    }
    if (common.is_empty()) return;
    add_values<kRows>(work.weights, kNoDecay, tile, common, head_size, work.split.value + row * head_size);
    for (int r = 0; r < kRows; ++r) {
        const KeyRange rest{common.last, work.ranges[row + r].last};
        if (!rest.is_empty()) add_row(r, rest, kNoDecay);
    }
}

template <int kRows, bool kScaled, class Cache, bool kAhead>
void attend_block(Work& work, int row, const TileView<Cache, kAhead>& tile) {
    KeyRange all = work.ranges[row], common = all;
    for (int r = 1; r < kRows; ++r) {
        const KeyRange own = work.ranges[row + r];
        all = {lower(all.first, own.first), higher(all.last, own.last)};
        common = {higher(common.first, own.first), lower(common.last, own.last)};
    }
    float decay[kLanes];
    score_block<kRows>(work.query + row * work.head_size, tile, all, work.head_size, work.weights);
    weigh_block<kRows, kScaled>(work, row, all, tile.key_scales, tile.value_scales, decay);
    if (all.first == common.first && all.last == common.last) {
        add_values<kRows>(work.weights, decay, tile, common, work.head_size, work.split.value + row * work.head_size);
    } else {
        add_ragged_values<kRows>(work, row, tile, common, decay);
    }
}

template <int kRows, bool kScaled, class Cache, bool kAhead>
void attend_some(Work& work, int rows, int row, const TileView<Cache, kAhead>& tile) {
    if (rows == kRows) return attend_block<kRows, kScaled>(work, row, tile);
    if constexpr (kRows > 1) attend_some<kRows - 1, kScaled>(work, rows, row, tile);
}

template <bool kScaled, class Cache, bool kAhead>
void attend_rows(Work& work, int row, int end, const TileView<Cache, kAhead>& tile) {
    while (row < end) {
        const int blocks = (end - row + kRowsPerBlock - 1) / kRowsPerBlock;
        const int rows = (end - row + blocks - 1) / blocks;  // even sizes: 7 is 4 + 3, not 6 + 1
        attend_some<kRowsPerBlock, kScaled>(work, rows, row, tile);
        row += rows;
    }
}

// Those rows that see any key of the tile.
template <bool kScaled, class Cache, bool kAhead>
void attend_seeing_rows(Work& work, const TileView<Cache, kAhead>& tile) {
    for (int row = 0; row < work.num_rows;) {
        int end = row;
        while (end < work.num_rows && !work.ranges[end].is_empty()) ++end;
        attend_rows<kScaled>(work, row, end, tile);
        row = end + 1;
    }
}

template <class Cache>
void attend_tile(Work& work, const Tile<Cache>& tile, std::int64_t position) {
    int last = 0;
    for (int r = 0; r < work.num_rows; ++r) {
        work.ranges[r] = visible(work.call, work.rows[r].position, position);
        last = higher(last, work.ranges[r].last);
    }
    constexpr bool kScaled = kHasScales<Cache>;
    if (work.num_rows <= kRowsPerBlock) return attend_seeing_rows<kScaled>(work, view_in_place<true>(tile));
    if constexpr (kPack<Cache> == 1) return attend_seeing_rows<kScaled>(work, view_in_place<false>(tile));
    widen(work, tile, (last + kKeysPerStrip - 1) / kKeysPerStrip);
    attend_seeing_rows<kScaled>(work, view_widened(work, tile));
}

// ---- Splits and results ----

void clear(Sums& sums, int num_rows, int head_size) {
    for (int r = 0; r < num_rows; ++r) sums.largest[r] = -kInfinity, sums.weight[r] = 0.0f;
    std::memset(sums.value, 0, static_cast<std::size_t>(num_rows) * head_size * sizeof(float));
}

template <class Cache>
void attend_split(Work& work, int split) {
    clear(work.split, work.num_rows, work.head_size);
    std::int64_t first = INT64_MAX, last = 0;
    for (int r = 0; r < work.num_rows; ++r) {
        const std::int64_t position = work.rows[r].position, seen = first_visible(work.call, position);
        first = seen < first ? seen : first;
        last = position >= last ? position + 1 : last;
    }
    const std::int64_t start = static_cast<std::int64_t>(split) * work.call.keys_per_split;
    const std::int64_t begin = first <= start ? start : first / kKeysPerTile * kKeysPerTile;
    const std::int64_t end = last < start + work.call.keys_per_split ? last : start + work.call.keys_per_split;
    if (begin >= end) return;
    const std::int64_t task_end = static_cast<std::int64_t>(work.task.last_split) * work.call.keys_per_split;
    Tile<Cache> tile;
    find_strips(work.call, work.task, begin, end, tile.strips);
    for (std::int64_t position = begin; position < end; position += kKeysPerTile) {
        std::memcpy(tile.next, tile.strips, sizeof tile.next);
        find_next_strips(work.call, work.task, position, last < task_end ? last : task_end, tile.next);
        attend_tile(work, tile, position);
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
    for_entries_of_head(head_size, [&](int d, int count) {
        store_some(sums + d, fma(load_some(value + d, count), take, load_some(sums + d, count) * keep), count);
    });
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
        for_entries_of_head(work.head_size, [&](int d, int count) {
            // Adding zero makes one of the two zeros.
            store_some(out + d, fma(load_some(sums + d, count), factor, zero_lanes()), count);
        });
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

template <class Query, class Cache>
void attend(const AttentionCall& call, const AttentionTask& task, float* scratch) {
    Work work(call, task, scratch);
    load_query<Query, Cache>(work);
    if (task.runs[0].partial) {
        attend_split<Cache>(work, task.first_split);
        return store_partials(work);
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
    {merge<float>, merge<Half>}};

}  // namespace octavo::OCTAVO_ISA
