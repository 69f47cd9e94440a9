// Attention of bfloat16 queries, keys and values by AMX's tiles: of few rows and of many by the same products, so that a
// row's bits do not depend on its neighbours.
//
// Scores are products of queries and keys, summed up in float32. Weights are rounded to bfloat16, and it is the rounded
// ones that are added up: they divide what they have weighed, and a mean of equal values is that value. What a row does not
// see and a neighbour does is multiplied by a weight of zero: of finite values that adds a zero, and others are kept apart.
#pragma once

#include "simd/attention_tile.h"
#include "simd/tiles.h"
#include "simd/wide_lanes.h"

namespace octavo::OCTAVO_ISA {

constexpr int kPairsPerTile = kKeysPerTile / 2, kPairsPerStrip = kKeysPerStrip / 2;
constexpr int kVectorsPerTile = kKeysPerTile / 16;

// Tiles 0 .. 3 hold sums; 4 and 5 what is multiplied, and 6 and 7 that of the last entries of heads of an odd number of
// sixteens. Weights of the tile's first half of keys are in 4, those of its second in 3, which has the same shape.
static_assert(kStripsPerTile == 4 && kPairsPerTile == 2 * kTileRows);

// Rows of each of a task's tiles, split evenly: 17 are 9 and 8. The last may have some that are nobody's.
OCTAVO_INLINE int rows_per_tile(int num_rows) {
    const int num_tiles = (num_rows + kTileRows - 1) / kTileRows;
    return (num_rows + num_tiles - 1) / num_tiles;
}

inline TileShapes attention_tile_shapes(int rows, int head_size) {
    TileShapes shapes;
    for (int tile = 0; tile < 5; ++tile) shapes.set(tile, rows);
    shapes.set(5, kTileRows);
    if (head_size % 32) shapes.set(6, rows, kTileRowBytes / 2), shapes.set(7, kTileRows / 2);
    return shapes;
}

// Queries as they are: scores are scaled, not they, which would round them once more.
OCTAVO_INLINE Half* queries(const Work& work) { return reinterpret_cast<Half*>(work.query); }
OCTAVO_INLINE Half* pairs_of_values(const Work& work) { return reinterpret_cast<Half*>(work.values); }

inline void copy_query(const Work& work) {
    const std::size_t bytes = work.head_size * sizeof(Half);
    for (int r = 0; r < work.num_rows; ++r) {
        const Row& row = work.rows[r];
        const std::int64_t at = (row.token * work.call.num_heads + row.head) * work.head_size;
        std::memcpy(queries(work) + r * work.head_size, static_cast<const Half*>(work.call.query) + at, bytes);
    }
}

// ---- Scores and weights ----

// Adds the products of one part of the rows' entries and that of each strip's keys to the four tiles of scores.
template <int kQuery, int kKeys, class Keys>
OCTAVO_INLINE void multiply_strips(const Half* query, std::size_t row_bytes, Keys keys) {
    load_tile<kQuery>(query, row_bytes);
    load_tile<kKeys>(keys(0), kTileRowBytes), add_products_bfloat16<0, kQuery, kKeys>();
    load_tile<kKeys>(keys(1), kTileRowBytes), add_products_bfloat16<1, kQuery, kKeys>();
    load_tile<kKeys>(keys(2), kTileRowBytes), add_products_bfloat16<2, kQuery, kKeys>();
    load_tile<kKeys>(keys(3), kTileRowBytes), add_products_bfloat16<3, kQuery, kKeys>();
}

// Scores of a tile's rows, and of all its keys: those that nobody sees are of no account. Meanwhile those of the
// next tile are fetched.
template <bool kReadsAhead>
OCTAVO_INLINE void score_by_tiles(const Half* query, const Tile<Half>& tile, int head_size, float* scores) {
    const std::size_t row_bytes = head_size * sizeof(Half);
    int d = 0;
    const auto keys = [&](int strip) {
        const std::ptrdiff_t at = d * kKeysPerStrip;
        for (int row = 0; kReadsAhead && row < kTileRows; ++row) {
            __builtin_prefetch(tile.next[strip].keys() + at + row * 2 * kKeysPerStrip, 0, 2);
        }
        return tile.strips[strip].keys() + at;
    };
    zero_tile<0>(), zero_tile<1>(), zero_tile<2>(), zero_tile<3>();
    for (; d + 32 <= head_size; d += 32) multiply_strips<4, 5>(query + d, row_bytes, keys);
    if (d < head_size) multiply_strips<6, 7>(query + d, row_bytes, keys);
    constexpr std::size_t kStride = kKeysPerTile * sizeof(float);
    store_tile<0>(scores, kStride), store_tile<1>(scores + 16, kStride);
    store_tile<2>(scores + 32, kStride), store_tile<3>(scores + 48, kStride);
}

// 2^x for x <= 0; below -126 zero or subnormal, which bfloat16 here does not know; NaN stays NaN. A relative error of
// 1e-4, a twentieth of what rounding to bfloat16 loses.
OCTAVO_INLINE F32x16 rough_power_of_two(F32x16 x) {
    const auto broadcast = [](float number) { return F32x16::broadcast(number); };
    const F32x16 shift = broadcast(12582912.0f);
    const F32x16 clamped = larger(broadcast(-127.0f), x);  // whose power is 1 less all of its exponent
    const F32x16 shifted = clamped + shift;
    const F32x16 rest = clamped - (shifted - shift);
    F32x16 p = fma(broadcast(5.500893294811249e-2f), rest, broadcast(2.422109693288803e-1f));
    p = fma(p, rest, broadcast(6.932829022407532e-1f));
    p = fma(p, rest, broadcast(1.0f));
    return scale_by_power(p, shifted);
}

inline void cap_scores(const AttentionCall& call, float* scores) {
    const Lanes scale = broadcast(call.scale / call.softcap), unit = broadcast(call.softcap * kLog2E);
    for (int i = 0; i < kKeysPerTile; i += kLanes) store(scores + i, unit * hyperbolic_tangent(load(scores + i) * scale));
}

OCTAVO_INLINE void shrink_row(Work& work, int row, float factor) {
    float* sums = work.split.value + row * work.head_size;
    work.split.weight[row] *= factor;
    for (int d = 0; d < work.head_size; d += 16) (F32x16::load(sums + d) * F32x16::broadcast(factor)).store(sums + d);
}

// Puts a row's weights where its scores are, and adds them up.
template <bool kSeesAll>
OCTAVO_INLINE void weigh_row(Work& work, int row, float unit) {
    float* scores = work.weights + row * kKeysPerTile;
    const KeyRange range = work.ranges[row];
    const std::uint64_t seen = kSeesAll ? ~0ull : (~0ull << range.first) & (~0ull >> (kKeysPerTile - range.last));
    F32x16 x[kVectorsPerTile];
    for (int i = 0; i < kVectorsPerTile; ++i) {
        x[i] = F32x16::load(scores + 16 * i) * F32x16::broadcast(unit);
        if (!kSeesAll) x[i] = select(static_cast<std::uint16_t>(seen >> (16 * i)), x[i], F32x16::broadcast(-kInfinity));
    }
    const float in_tile = largest_lane(larger(larger(x[0], x[1]), larger(x[2], x[3])));
    const float before = work.split.largest[row];
    if (in_tile > before) {  // ever less often, the more keys are behind
        work.split.largest[row] = in_tile;
        shrink_row(work, row, power_of_two(before - in_tile));
    }
    const F32x16 largest = F32x16::broadcast(work.split.largest[row]);
    F32x16 sum = F32x16::zero();
    for (int i = 0; i < kVectorsPerTile; i += 2) {
        const BF16Pairs weights = round_to_pairs(rough_power_of_two(x[i] - largest), rough_power_of_two(x[i + 1] - largest));
        weights.store(scores + 8 * i);
        sum = add_dot(sum, weights, BF16Pairs::broadcast(0x3f803f80));  // ones
    }
    work.split.weight[row] += sum_lanes(sum);
}

inline void weigh_scores(Work& work) {
    const AttentionCall& call = work.call;
    const float unit = call.softcap != 0.0f ? 1.0f : call.scale * kLog2E;
    for (int row = 0; row < work.num_rows; ++row) {
        float* scores = work.weights + row * kKeysPerTile;
        if (call.softcap != 0.0f) cap_scores(call, scores);
        if (work.sees_all) {
            weigh_row<true>(work, row, unit);
        } else if (!work.ranges[row].is_empty()) {
            weigh_row<false>(work, row, unit);
        } else {
            std::memset(scores, 0, kKeysPerTile * sizeof(Half));
        }
    }
}

// ---- Values ----

// Values of the keys in `range` by pairs, as they lie in strips; those of others, which may be anything, are zero. The next
// tile's are fetched meanwhile.
inline void copy_values(const Tile<Half>& tile, KeyRange range, int head_size, Half* pairs) {
    for (int pair = 0; pair < kPairsPerTile; ++pair) {
        const int strip = pair / kPairsPerStrip;
        const std::ptrdiff_t at = pair % kPairsPerStrip * 2 * head_size;
        const auto seen = [&](int key) { return key >= range.first && key < range.last ? 0xffffu : 0u; };
        const BF16Pairs mask = BF16Pairs::broadcast(seen(2 * pair) | seen(2 * pair + 1) << 16);
        const Half *values = tile.strips[strip].values() + at;
        const Half* next = tile.next[strip].values() + at;
        for (int i = 0; i < 2 * head_size; i += 32, pairs += 32) {
            __builtin_prefetch(next + i, 0, 2);
            (BF16Pairs::load(values + i) & mask).store(pairs);
        }
    }
}

// An exponent of ones carries into the sign's place.
inline bool are_finite(const Half* numbers, int count) {
    std::uint16_t carried = 0;
    for (int i = 0; i < count; ++i) carried |= static_cast<std::uint16_t>((numbers[i] & 0x7f80) + 0x80);
    return (carried & 0x8000) == 0;
}

// Adds a tile's rows of weighted values to `sums`.
inline void multiply_values(const float* weights, const Half* pairs, int head_size, float* sums) {
    const std::size_t stride = kKeysPerTile * sizeof(float), row_bytes = head_size * sizeof(float);
    load_tile<4>(weights, stride);
    load_tile<3>(weights + 16, stride);
    for (int d = 0; d < head_size; d += 16, pairs += 32) {
        load_tile<0>(sums + d, row_bytes);
        load_tile<5>(pairs, row_bytes), add_products_bfloat16<0, 4, 5>();
        load_tile<5>(pairs + kTileRows * 2 * head_size, row_bytes), add_products_bfloat16<0, 3, 5>();
        store_tile<0>(sums + d, row_bytes);
    }
}

// The same where a value is not finite that some of the rows do not see, for under a weight of zero it stays so: each row
// is multiplied by the values of its own keys, and nothing else is taken from that.
inline void multiply_own_values(const Work& work, const Tile<Half>& tile, int row, int end) {
    const int head_size = work.head_size;
    float *sums = work.split.value + row * head_size, *spare = work.keys;
    const std::size_t row_bytes = head_size * sizeof(float);
    for (int r = row; r < end; ++r) {
        const int place = (r - row) * head_size;
        copy_values(tile, work.ranges[r], head_size, pairs_of_values(work));
        std::memcpy(spare, sums, (end - row) * row_bytes);
        multiply_values(work.weights + row * kKeysPerTile, pairs_of_values(work), head_size, spare);
        std::memcpy(sums + place, spare + place, row_bytes);
    }
}

// ---- Tiles ----

inline KeyRange seen_by_any(const Work& work, int row, int end) {
    if (work.sees_all) return {0, kKeysPerTile};
    KeyRange any{kKeysPerTile, 0};
    for (; row < end; ++row) {
        const KeyRange own = work.ranges[row];
        if (!own.is_empty()) any = {lower(any.first, own.first), higher(any.last, own.last)};
    }
    return any;
}

// What one step has stored is not loaded right after it: a tile cannot be loaded from stores that are still on their way.
inline void attend_rows_by_tiles(Work& work, const Tile<Half>& tile, int rows) {
    const int head_size = work.head_size;
    const auto for_tiles = [&](auto use) {
        for (int row = 0; row < work.num_rows; row += rows) {
            const int end = lower(row + rows, work.num_rows);
            if (!seen_by_any(work, row, end).is_empty()) use(row, end);
        }
    };
    Half* pairs = pairs_of_values(work);
    bool reads_ahead = true;  // once
    for_tiles([&](int row, int) {
        const Half* query = queries(work) + row * head_size;
        float* scores = work.weights + row * kKeysPerTile;
        reads_ahead ? score_by_tiles<true>(query, tile, head_size, scores) : score_by_tiles<false>(query, tile, head_size, scores);
        reads_ahead = false;
    });
    copy_values(tile, seen_by_any(work, 0, work.num_rows), head_size, pairs);
    const bool together = work.sees_all || are_finite(pairs, kKeysPerTile * head_size);
    weigh_scores(work);
    for_tiles([&](int row, int end) {
        if (!together) return multiply_own_values(work, tile, row, end);
        multiply_values(work.weights + row * kKeysPerTile, pairs, head_size, work.split.value + row * head_size);
    });
}

}  // namespace octavo::OCTAVO_ISA
