// Attention of a few rows, such as of a decoding request: each reads a tile where it lies, and the next is fetched meanwhile.
#pragma once

#include "simd/attention_tile.h"

namespace octavo::OCTAVO_ISA {

constexpr int kRegisters = 16;

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

// What a block of rows reads where it lies: words of keys and values by strip, and those to read ahead.
template <class Cache>
struct TileView {
    explicit TileView(const Tile<Cache>& tile) {
        for (int s = 0; s < kStripsPerTile; ++s) {
            keys[s] = tile.strips[s].keys(), values[s] = tile.strips[s].values();
            next_keys[s] = tile.next[s].keys(), next_values[s] = tile.next[s].values();
        }
    }

    const Cache *keys[kStripsPerTile], *values[kStripsPerTile], *next_keys[kStripsPerTile], *next_values[kStripsPerTile];
};

// Scores of kRows rows and of the keys of kStrips strips.
template <int kRows, int kStrips, class Cache>
OCTAVO_INLINE void multiply_keys(const float* query, const TileView<Cache>& tile, int strip, int head_size,
                                 float* scores) {
    constexpr int p = kPack<Cache>, kStep = kKeysPerStrip * p;
    Lanes sums[kRows][kStrips * kParts];
    for (int r = 0; r < kRows; ++r) {
        for (int c = 0; c < kStrips * kParts; ++c) sums[r][c] = zero_lanes();
    }
    for (int d = 0; d < head_size; d += p) {
        const std::size_t at = static_cast<std::size_t>(d / p) * kStep;
        for (int s = 0; s < kStrips; ++s) __builtin_prefetch(tile.next_keys[strip + s] + at, 0, 2);
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

template <int kRows, class Cache>
__attribute__((noinline)) void score_block(const float* query, const TileView<Cache>& tile, KeyRange range, int head_size,
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

// kColumns vectors, from entry d on, of kRows rows of weighted values, which shrink by decay first.
template <int kRows, int kColumns, class Cache>
OCTAVO_INLINE void add_columns(const float* weights, const float* decay, const TileView<Cache>& tile, int d,
                               KeyRange range, int head_size, float* sums) {
    constexpr int p = kPack<Cache>;
    Lanes sum[kRows][kColumns];
    for (int r = 0; r < kRows; ++r) {
        for (int c = 0; c < kColumns; ++c) {
            sum[r][c] = load(sums + r * head_size + c * kLanes) * broadcast(decay[r]);
        }
    }
    for (int start = range.first / kKeysPerStrip * kKeysPerStrip; start < range.last; start += kKeysPerStrip) {
        const int strip = start / kKeysPerStrip;
        const int first = higher(range.first - start, 0), last = lower(range.last - start, kKeysPerStrip);
        const std::size_t at = (static_cast<std::size_t>(first / p) * head_size + d) * p;
        const Cache *words = tile.values[strip] + at, *ahead = tile.next_values[strip] + at;
        const float* weight = weights + start + first / p * p;
        for (int token = first / p * p; token < last; token += p) {
            __builtin_prefetch(ahead, 0, 2);
            if (kColumns * kLanes > 16) __builtin_prefetch(ahead + 16 * p, 0, 2);
            for_places<Cache>([&](auto place) {
                constexpr int i = decltype(place)::value;
                if (p > 1 && (token + i < first || token + i >= last)) return;  // parts of a word at the range's ends
                multiply_add(sum, [&](int r) { return broadcast(weight[r * kKeysPerTile + i]); }, [&](int c) {
                    return word_entries<i>(words + c * kLanes * p);
                });
            });
            words += head_size * p, ahead += head_size * p, weight += p;
        }
    }
    for (int r = 0; r < kRows; ++r) {
        for (int c = 0; c < kColumns; ++c) store(sums + r * head_size + c * kLanes, sum[r][c]);
    }
}

template <int kRows, class Cache>
__attribute__((noinline)) void add_values(const float* weights, const float* decay, const TileView<Cache>& tile,
                                          KeyRange range, int head_size, float* sums) {
    constexpr int kWide = wide<Cache>(kRows, 1);
    int d = 0;
    for (; d + kWide * kLanes <= head_size; d += kWide * kLanes) {
        add_columns<kRows, kWide>(weights, decay, tile, d, range, head_size, sums + d);
    }
    for (; d < head_size; d += kLanes) {
        add_columns<kRows, 1>(weights, decay, tile, d, range, head_size, sums + d);
    }
}

template <int kRows, class Cache>
void attend_block(Work& work, const Block& block, const TileView<Cache>& tile, const TileScales<Cache>& scales) {
    const int head_size = work.head_size;
    float decay[kLanes];
    score_block<kRows>(work.query + block.row * head_size, tile, block.any, head_size, work.weights);
    weigh_block<kRows>(work, block, scales, work.weights, decay);
    add_in_order<kRows>(work, block, decay, [&](auto rows, int r, KeyRange range, const float* shrink) {
        add_values<decltype(rows)::value>(work.weights + r * kKeysPerTile, shrink, tile, range, head_size,
                                          work.split.value + (block.row + r) * head_size);
    });
}

template <class Cache>
void attend_few_rows(Work& work, const Tile<Cache>& tile) {
    const TileView<Cache> view(tile);
    const TileScales<Cache> scales(tile);
    for (const Block* block = work.blocks; block < work.blocks + work.num_blocks; ++block) {
        with_rows(block->num_rows, [&](auto rows) { attend_block<decltype(rows)::value>(work, *block, view, scales); });
    }
}

}  // namespace octavo::OCTAVO_ISA
