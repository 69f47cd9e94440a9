// AMX: tiles of 16 rows by 64 bytes in eight registers, and products of them. A namespace's files that use it are compiled
// for amx alone.
//
// A tile of the left operand holds rows of k, one of the right has in each row the words of 4 bytes that hold neighbours
// in k of 16 columns, as panels have (simd/linear.h, simd/quantized.h) and strips of the cache (kv_cache.h).
#pragma once

#include "simd/vector.h"

#if OCTAVO_EMULATE_AVX512
#include "simd/tiles_emulated.h"
#endif

namespace octavo::OCTAVO_ISA {

inline constexpr int kTileRows = 16;
inline constexpr std::size_t kTileRowBytes = 64;

// What a tile register holds, as the instruction that configures them reads it.
struct TileShapes {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};

    OCTAVO_INLINE void set(int tile, int num_rows, std::size_t bytes_of_row = kTileRowBytes) {
        rows[tile] = static_cast<std::uint8_t>(num_rows);
        row_bytes[tile] = static_cast<std::uint16_t>(bytes_of_row);
    }
};
static_assert(sizeof(TileShapes) == 64);

#if OCTAVO_EMULATE_AVX512

OCTAVO_INLINE void configure_tiles(const TileShapes& shapes) { emulated_tiles.configure(shapes.rows, shapes.row_bytes); }
OCTAVO_INLINE void release_tiles() { emulated_tiles = {}; }
template <int kTile>
OCTAVO_INLINE void zero_tile() {
    emulated_tiles.zero(kTile);
}
template <int kTile>
OCTAVO_INLINE void load_tile(const void* rows, std::size_t stride) {
    emulated_tiles.load(kTile, rows, stride);
}
template <int kTile>
OCTAVO_INLINE void store_tile(void* rows, std::size_t stride) {
    emulated_tiles.store(kTile, rows, stride);
}
template <int kSums, int kLeft, int kRight>
OCTAVO_INLINE void add_products_bfloat16() {
    emulated_tiles.add_products_bfloat16(kSums, kLeft, kRight);
}
template <int kSums, int kLeft, int kRight>
OCTAVO_INLINE void add_products_int8() {
    emulated_tiles.add_products_int8(kSums, kLeft, kRight);
}

#else

OCTAVO_INLINE void configure_tiles(const TileShapes& shapes) { __asm__ volatile("ldtilecfg %0" ::"m"(shapes)); }
OCTAVO_INLINE void release_tiles() { __asm__ volatile("tilerelease"); }
template <int kTile>
OCTAVO_INLINE void zero_tile() {
    __asm__ volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
template <int kTile>
OCTAVO_INLINE void load_tile(const void* rows, std::size_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(rows), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
OCTAVO_INLINE void store_tile(void* rows, std::size_t stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(rows), "r"(stride), "i"(kTile) : "memory");
}
// float32 sums += bfloat16 rows of kLeft by pairs of kRight: the tile's products at even places of k in ascending order,
// those at odd places the same, both added, and that to the sum; subnormal numbers are zero.
template <int kSums, int kLeft, int kRight>
OCTAVO_INLINE void add_products_bfloat16() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kLeft), "i"(kRight));
}
// int32 sums += signed bytes by signed bytes.
template <int kSums, int kLeft, int kRight>
OCTAVO_INLINE void add_products_int8() {
    __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kLeft), "i"(kRight));
}

#endif

// Tiles of these shapes as long as it lives. A thread gives them back between tasks: what it holds is saved and restored
// wherever the system interrupts it.
class TileScope {
public:
    explicit OCTAVO_INLINE TileScope(const TileShapes& shapes) { configure_tiles(shapes); }
    OCTAVO_INLINE ~TileScope() { release_tiles(); }
    TileScope(const TileScope&) = delete;
    TileScope& operator=(const TileScope&) = delete;
};

}  // namespace octavo::OCTAVO_ISA
