// The packed linear of bfloat16 on AMX tiles: up to 32 rows by a panel of 32 columns are four tiles of sums.
//
// Any number of rows takes tiles, for their products round otherwise than the vector instruction's.
#pragma once

#include "simd/linear.h"
#include "simd/tiles.h"

namespace octavo::OCTAVO_ISA {

inline constexpr std::size_t kStepLines = kTileRows, kStepK = 2 * kStepLines;  // of k at once
inline constexpr std::size_t kPanelLine = 2 * kTileRowBytes;                   // bytes: two tiles side by side
inline constexpr std::size_t kStepBytes = kStepLines * kPanelLine;
inline constexpr std::size_t kRowsOfTiles = 2 * kTileRows;                     // of a block

// The tiles' registers: of sums those of the first rows, then those of the second.
enum TileNumber { kSums00, kSums01, kSums10, kSums11, kLeft0, kLeft1, kRight0, kRight1 };

inline TileShapes shapes_for(std::size_t num_rows) {
    const int rows = static_cast<int>(num_rows), first = rows < kTileRows ? rows : kTileRows, second = rows - first;
    TileShapes shapes;
    shapes.set(kSums00, first), shapes.set(kSums01, first), shapes.set(kLeft0, first);
    if (second) shapes.set(kSums10, second), shapes.set(kSums11, second), shapes.set(kLeft1, second);
    shapes.set(kRight0, kTileRows), shapes.set(kRight1, kTileRows);
    return shapes;
}

// Some rows by one panel.
struct TileBlock {
    const std::uint16_t* x;
    std::size_t num_rows, k;
    const char* panel;
    const char* ahead;       // what to have in the cache by the end,
    std::size_t ahead_step;  // bytes of it per step
    float* sums;             // [num_rows], `sums_stride` bytes apart
    std::size_t sums_stride;
};

template <bool kTwo>
OCTAVO_INLINE void add_step(const char* left, std::size_t left_stride, const char* right) {
    load_tile<kLeft0>(left, left_stride);
    load_tile<kRight0>(right, kPanelLine);
    add_products_bfloat16<kSums00, kLeft0, kRight0>();
    load_tile<kRight1>(right + kTileRowBytes, kPanelLine);
    add_products_bfloat16<kSums01, kLeft0, kRight1>();
    if constexpr (kTwo) {
        load_tile<kLeft1>(left + kTileRows * left_stride, left_stride);
        add_products_bfloat16<kSums10, kLeft1, kRight0>();
        add_products_bfloat16<kSums11, kLeft1, kRight1>();
    }
}

// What is left of k, filled up with zeros: what lies behind is of another row, or of another panel.
template <bool kTwo>
void add_last_step(const TileBlock& block, std::size_t first) {
    const std::size_t left = block.k - first;
    alignas(64) char rows[kRowsOfTiles][kTileRowBytes] = {}, lines[kStepBytes] = {};
    for (std::size_t i = 0; i < block.num_rows; ++i) std::memcpy(rows[i], block.x + i * block.k + first, 2 * left);
    std::memcpy(lines, block.panel + first / 2 * kPanelLine, (left + 1) / 2 * kPanelLine);
    add_step<kTwo>(rows[0], kTileRowBytes, lines);
}

template <bool kTwo>
void multiply_block(const TileBlock& block) {
    zero_tile<kSums00>(), zero_tile<kSums01>();
    if constexpr (kTwo) zero_tile<kSums10>(), zero_tile<kSums11>();
    const char *left = reinterpret_cast<const char*>(block.x), *right = block.panel, *ahead = block.ahead;
    std::size_t i = 0;
    for (; i + kStepK <= block.k; i += kStepK, left += kTileRowBytes, right += kStepBytes, ahead += block.ahead_step) {
        for (std::size_t at = 0; at < block.ahead_step; at += 64) __builtin_prefetch(ahead + at);
        add_step<kTwo>(left, 2 * block.k, right);
    }
    if (i < block.k) add_last_step<kTwo>(block, i);
    char* sums = reinterpret_cast<char*>(block.sums);
    store_tile<kSums00>(sums, block.sums_stride), store_tile<kSums01>(sums + kTileRowBytes, block.sums_stride);
    if constexpr (kTwo) {
        sums += kTileRows * block.sums_stride;
        store_tile<kSums10>(sums, block.sums_stride), store_tile<kSums11>(sums + kTileRowBytes, block.sums_stride);
    }
}

}  // namespace octavo::OCTAVO_ISA
