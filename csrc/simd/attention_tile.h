// A tile of keys and values, and what is done to it for few rows and for many: softmax weights, and sums in order.
#pragma once

#include "simd/attention_task.h"
#include "simd/math.h"

namespace octavo::OCTAVO_ISA {

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
void find_next_strips(const Work& work, std::int64_t tile, Strip<Cache> (&strips)[kStripsPerTile]) {
    if (tile + kKeysPerTile < work.span.last) {
        return find_strips(work.call, work.task, tile + kKeysPerTile, work.span.last, strips);
    }
    if (!work.task.next) return;
    const KeySpan next = span_of(work.call, *work.task.next);
    find_strips(work.call, *work.task.next, next.first, next.last, strips);
}

template <int kValue>
struct Constant {
    static constexpr int value = kValue;
};

// Calls use(place) for each place of a word, as a constant.
template <class Cache, class Use>
OCTAVO_INLINE void for_places(Use use) {
    use(Constant<0>{});
    if constexpr (kPack<Cache> > 1) use(Constant<1>{});
    if constexpr (kPack<Cache> > 2) use(Constant<2>{}), use(Constant<3>{});
}

// Scales of a tile's keys and values by strip, where int8 has some.
template <class Cache>
struct TileScales {
    explicit TileScales(const Tile<Cache>& tile) {
        for (int s = 0; kHasScales<Cache> && s < kStripsPerTile; ++s) {
            keys[s] = tile.strips[s].key_scales(), values[s] = tile.strips[s].value_scales();
        }
    }

    const float *keys[kStripsPerTile], *values[kStripsPerTile];
};

// ---- Weights ----

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

// Finishes a row's scores of the keys of strips [first, last), selects out those of invisible keys, and returns the largest.
template <bool kScaled>
__attribute__((noinline)) float finish_scores(const AttentionCall& call, float* scores, const float* const* scales,
                                              int first, int last, KeyRange range) {
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

// The weights of a block's scores, added up. Sets in `decay` what the rows' earlier sums shrink by.
template <int kRows, class Cache>
void weigh_block(Work& work, const Block& block, const TileScales<Cache>& scales, float* block_scores, float* decay) {
    constexpr bool kScaled = kHasScales<Cache>;
    const int first = block.any.first / kKeysPerStrip, last = (block.any.last + kKeysPerStrip - 1) / kKeysPerStrip;
    float largest[kLanes] = {}, added[kLanes] = {};
    for (int r = 0; r < kRows; ++r) {
        float* scores = block_scores + r * kKeysPerTile;
        const KeyRange range = work.ranges[block.row + r];
        const float in_tile = finish_scores<kScaled>(work.call, scores, scales.keys, first, last, range);
        const float before = work.split.largest[block.row + r];
        largest[r] = in_tile > before ? in_tile : before;
        added[r] = weigh<kScaled>(scores, scales.values, first, last, largest[r]);
    }
    float* weight = work.split.weight + block.row;
    const Lanes shrink = power_of_two(load(work.split.largest + block.row) - load(largest));
    store_first(decay, shrink, kRows);
    store_first(weight, fma(load(weight), shrink, load(added)), kRows);
    for (int r = 0; r < kRows; ++r) work.split.largest[block.row + r] = largest[r];
}

// ---- Products ----

// sums[r][c] += row(r) * column(c). The fewer of both stay in registers beside the sums.
template <class Vector, int kRows, int kColumns, class RowEntry, class Column>
OCTAVO_INLINE void multiply_add(Vector (&sums)[kRows][kColumns], RowEntry row, Column column) {
    if constexpr (kRows <= kColumns) {
        Vector entry[kRows];
        for (int r = 0; r < kRows; ++r) entry[r] = row(r);
        for (int c = 0; c < kColumns; ++c) {
            const Vector other = column(c);
            for (int r = 0; r < kRows; ++r) sums[r][c] = fma(entry[r], other, sums[r][c]);
        }
    } else {
        Vector entry[kColumns];
        for (int c = 0; c < kColumns; ++c) entry[c] = column(c);
        for (int r = 0; r < kRows; ++r) {
            const Vector other = row(r);
            for (int c = 0; c < kColumns; ++c) sums[r][c] = fma(other, entry[c], sums[r][c]);
        }
    }
}

constexpr float kNoDecay[kLanes] = {1, 1, 1, 1, 1, 1};

// Calls add(rows, row, range, decay) until each row of a block has all keys that it sees, in ascending order: those that
// all see for the whole block, and before and after them each row its own.
template <int kRows, class Add>
OCTAVO_INLINE void add_in_order(const Work& work, const Block& block, const float* decay, Add add) {
    if (block.any.first == block.all.first && block.any.last == block.all.last) {
        return add(Constant<kRows>{}, 0, block.all, decay);
    }
    const bool shares = !block.all.is_empty(), begins_together = shares && block.any.first == block.all.first;
    for (int r = 0; !begins_together && r < kRows; ++r) {
        const KeyRange own = work.ranges[block.row + r];
        add(Constant<1>{}, r, shares ? KeyRange{own.first, block.all.first} : own, decay + r);
    }
    if (!shares) return;
    add(Constant<kRows>{}, 0, block.all, begins_together ? decay : kNoDecay);
    for (int r = 0; r < kRows; ++r) {
        const KeyRange rest{block.all.last, work.ranges[block.row + r].last};
        if (!rest.is_empty()) add(Constant<1>{}, r, rest, kNoDecay);
    }
}

// Calls use(rows) with a block's number of rows as a constant.
template <int kRows = kRowsPerBlock, class Use>
OCTAVO_INLINE void with_rows(int num_rows, Use use) {
    if (num_rows == kRows) return use(Constant<kRows>{});
    if constexpr (kRows > 1) with_rows<kRows - 1>(num_rows, use);
}

}  // namespace octavo::OCTAVO_ISA
