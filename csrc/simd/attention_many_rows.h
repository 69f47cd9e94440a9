// Attention of many rows, such as of a prompt: they share a copy of the tile in float32, and each part of it that the
// first-level cache holds, a strip of keys or a panel of values, is read by all of them before the next.
#pragma once

#include "simd/attention_tile.h"
#include "simd/wide_lanes.h"

namespace octavo::OCTAVO_ISA {

template <class Cache>
void widen_keys(const Strip<Cache>& strip, float* keys) {
    constexpr int p = kPack<Cache>;
    const Cache* words = strip.keys();
    for (int d = 0; d < strip.head_size; d += p, words += kKeysPerStrip * p, keys += kKeysPerStrip * p) {
        for_places<Cache>([&](auto place) {
            constexpr int at = decltype(place)::value;
            for (int lane = 0; lane < kKeysPerStrip; lane += kLanes) {
                store(keys + at * kKeysPerStrip + lane, word_entries<at>(words + lane * p));
            }
        });
    }
}

template <class Cache>
void widen_values(const Strip<Cache>& strip, float* panels) {
    constexpr int p = kPack<Cache>;
    const Cache* words = strip.values();
    for (int token = 0; token < kKeysPerStrip; token += p, panels += kPanelColumns * p) {
        float* panel = panels;
        for (int d = 0; d < strip.head_size; d += kLanes, words += kLanes * p) {
            for_places<Cache>([&](auto place) {
                constexpr int at = decltype(place)::value;
                store(panel + at * kPanelColumns, word_entries<at>(words));
            });
            panel += d % kPanelColumns ? kPanelFloats - kLanes : kLanes;
        }
    }
}

// Keys stay where they lie where that is in float32.
template <class Cache>
void widen(const Work& work, const Tile<Cache>& tile, int num_strips, const float* (&keys)[kStripsPerTile]) {
    for (int s = 0; s < kStripsPerTile; ++s) {
        float* copy = work.keys + s * kKeysPerStrip * work.head_size;
        if constexpr (kPack<Cache> == 1) {
            keys[s] = tile.strips[s].keys();
        } else if (s < num_strips) {
            widen_keys(tile.strips[s], copy);
            keys[s] = copy;
        }
    }
    for (int s = 0; s < num_strips; ++s) widen_values(tile.strips[s], work.values + s * kKeysPerStrip * kPanelColumns);
}

// The loops over entries and keys are unrolled: a branch costs as much as a product where two threads share a core.
template <int kRows>
__attribute__((noinline)) void score_strip(const float* query, const float* keys, int head_size, float* scores) {
    constexpr int kVectors = kKeysPerStrip / kWideLanes;
    Wide sums[kRows][kVectors];
    for (auto& row : sums) {
        for (Wide& sum : row) sum = Wide::zero();
    }
#pragma GCC unroll 4
    for (int d = 0; d < head_size; ++d, keys += kKeysPerStrip) {
        multiply_add(sums, [&](int r) { return Wide::broadcast(query[r * head_size + d]); },
                     [&](int c) { return Wide::load(keys + c * kWideLanes); });
    }
    for (int r = 0; r < kRows; ++r) {
        for (int c = 0; c < kVectors; ++c) sums[r][c].store(scores + r * kKeysPerTile + c * kWideLanes);
    }
}

template <int kRows, class Vector, int kColumns>
__attribute__((noinline)) void add_panel(const float* weights, const float* decay, const float* panel, KeyRange range,
                                         int head_size, float* sums) {
    constexpr int kWidth = sizeof(Vector) / sizeof(float), kVectors = kColumns / kWidth;
    Vector sum[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
        const Vector shrink = Vector::broadcast(decay[r]);
        for (int c = 0; c < kVectors; ++c) sum[r][c] = Vector::load(sums + r * head_size + c * kWidth) * shrink;
    }
    const float *entries = panel + range.first * kPanelColumns, *end = panel + range.last * kPanelColumns;
#pragma GCC unroll 4
    for (weights += range.first; entries < end; entries += kPanelColumns, ++weights) {
        multiply_add(sum, [&](int r) { return Vector::broadcast(weights[r * kKeysPerTile]); },
                     [&](int c) { return Vector::load(entries + c * kWidth); });
    }
    for (int r = 0; r < kRows; ++r) {
        for (int c = 0; c < kVectors; ++c) sum[r][c].store(sums + r * head_size + c * kWidth);
    }
}

template <class Vector, int kColumns>
void add_panel_to_rows(const Work& work, const float* decay, int d) {
    const float* panel = work.values + d / kPanelColumns * kPanelFloats;
    for (const Block* block = work.blocks; block < work.blocks + work.num_blocks; ++block) {
        with_rows(block->num_rows, [&](auto all_rows) {
            const auto add = [&](auto rows, int r, KeyRange range, const float* shrink) {
                const int row = block->row + r;
                add_panel<decltype(rows)::value, Vector, kColumns>(work.weights + row * kKeysPerTile, shrink, panel, range,
                                                                   work.head_size,
                                                                   work.split.value + row * work.head_size + d);
            };
            add_in_order<decltype(all_rows)::value>(work, *block, decay + block->row, add);
        });
    }
}

// Scores of all rows, a strip after the other; the next tile is fetched meanwhile.
template <class Cache>
void score_rows(const Work& work, const Tile<Cache>& tile, const float* const* keys) {
    for (int s = 0; s < kStripsPerTile; ++s) {
        const KeyRange strip{s * kKeysPerStrip, (s + 1) * kKeysPerStrip};
        for (int b = 0; b < work.num_blocks; ++b) {
            const Block& block = work.blocks[b];
            tile.next[s].read_ahead(b, work.num_blocks);
            if (strip.first >= block.any.last || strip.last <= block.any.first) continue;
            with_rows(block.num_rows, [&](auto rows) {
                score_strip<decltype(rows)::value>(work.query + block.row * work.head_size, keys[s], work.head_size,
                                                   work.weights + block.row * kKeysPerTile + strip.first);
            });
        }
    }
}

template <class Cache>
void weigh_rows(Work& work, const Tile<Cache>& tile, float* decay) {
    const TileScales<Cache> scales(tile);
    for (const Block* block = work.blocks; block < work.blocks + work.num_blocks; ++block) {
        with_rows(block->num_rows, [&](auto rows) {
            weigh_block<decltype(rows)::value>(work, *block, scales, work.weights + block->row * kKeysPerTile,
                                               decay + block->row);
        });
    }
}

template <class Cache>
void attend_many_rows(Work& work, const Tile<Cache>& tile, int num_strips) {
    const float* keys[kStripsPerTile] = {};
    float decay[kRowsPerTask];
    widen(work, tile, num_strips, keys);
    score_rows(work, tile, keys);
    weigh_rows(work, tile, decay);
    int d = 0;
    for (; d + kPanelColumns <= work.head_size; d += kPanelColumns) add_panel_to_rows<Wide, kPanelColumns>(work, decay, d);
    if (d < work.head_size) add_panel_to_rows<Lanes, kLanes>(work, decay, d);
}

}  // namespace octavo::OCTAVO_ISA
