// Quantised weights on AMX tiles: 16 rows by the 16 columns of a panel, a tile of integer sums for each group.
//
// Sums of integers are exact, so results are those of the vector instructions, which serve fewer rows.
#pragma once

#include "simd/quantized_group.h"
#include "simd/tiles.h"

namespace octavo::OCTAVO_ISA {

inline constexpr std::size_t kGroupsAtOnce = 4;  // unpacked together: with all rows', in the first-level cache
inline constexpr std::size_t kPanelsAtOnce = 4;  // that meet the rows' groups there
inline constexpr int kGroupLines = 8;            // of a right-hand tile: four of k each

// Tile registers. What differs by rows is there for sixteen of them, and for as many as are left over.
enum GroupTile { kSums = 0, kLeft = 2, kSumsOfRest = 3, kLeftOfRest = 5, kRight = 6 };

// Groups with a scale for each half are two products.
inline TileShapes group_shapes(std::size_t num_rows, int parts_of_group) {
    const int rest = static_cast<int>(num_rows % kTileRows), lines = kGroupLines / parts_of_group;
    TileShapes shapes;
    for (int i = 0; i < 2; ++i) {
        shapes.set(kSums + i, kTileRows);
        if (rest) shapes.set(kSumsOfRest + i, rest);
        shapes.set(kRight + i, lines);
    }
    shapes.set(kLeft, kTileRows, static_cast<std::size_t>(4 * lines));
    if (rest) shapes.set(kLeftOfRest, rest, static_cast<std::size_t>(4 * lines));
    return shapes;
}

// Of a whole tile or of what is left over: fewer are faster on vectors, as measured.
template <WeightFormat kFormat>
inline constexpr std::size_t kLeastTileRows = layout_of(kFormat).scales == Scales::block_of_halves ? 16 : 9;

// Some groups of a panel as tiles read them: signed bytes.
template <WeightFormat kFormat>
struct UnpackedGroups {
    static constexpr PanelLayout kLayout = layout_of(kFormat);
    static constexpr int kParts = kLayout.scales == Scales::block_of_halves ? 2 : 1;

    std::size_t count = 0;
    alignas(64) std::int8_t weights[kGroupsAtOnce][kGroupLines][64];
    Columns scale[kGroupsAtOnce], minimum[kGroupsAtOnce], half_scales[kGroupsAtOnce][kParts];

    // At most kGroupsAtOnce from group `first` of the panel on.
    OCTAVO_INLINE UnpackedGroups(const char* panel, std::size_t first, std::size_t num_groups) {
        for (std::size_t g = first; g < num_groups && count < kGroupsAtOnce; ++g) {
            const std::size_t number = g / kLayout.groups_of_block(), in_block = g % kLayout.groups_of_block();
            const char* block = panel + kLayout.panel_header() + number * kLayout.block_bytes();
            const char* group = block + kLayout.block_header() + in_block * kLayout.group_bytes();
            fetch_ahead<kFormat>(group);
            put({block, group});
        }
    }

private:
    OCTAVO_INLINE void put(const Group<kFormat>& group) {
        const __m512i offset = _mm512_set1_epi8(static_cast<char>(kLayout.offset));
        for (int line = 0; line < kGroupLines; ++line) {
            _mm512_store_si512(weights[count][line], _mm512_sub_epi8(group.weights[line].v, offset));
        }
        if constexpr (kLayout.scales != Scales::column) scale[count] = group.scale;
        if constexpr (kLayout.has_minimum()) minimum[count] = group.minimum;
        if constexpr (kParts == 2) {
            for (int half = 0; half < 2; ++half) half_scales[count][half] = to_float({group.half_scales.v[half]});
        }
        ++count;
    }
};

// The integer sums of up to sixteen rows and each of some groups.
template <WeightFormat kFormat>
struct TileSums {
    using Groups = UnpackedGroups<kFormat>;
    static constexpr int kParts = Groups::kParts;

    alignas(64) std::int32_t sums[kGroupsAtOnce][kParts][kTileRows][16];

    template <bool kRest>
    OCTAVO_INLINE void compute(const Groups& groups, std::size_t g, const ActivationGroup* x) {
        compute_part<kRest, 0>(groups, g, x);
        if constexpr (kParts == 2) compute_part<kRest, 1>(groups, g, x);
    }

    OCTAVO_INLINE Columns of_row(const Groups& groups, std::size_t g, std::size_t row) const {
        if constexpr (kParts == 1) {
            return part_of_row(g, 0, row);
        } else {
            // All below 2^24 and so exact. The sum begins with a zero: integers have no negative one.
            const Columns first = fma(part_of_row(g, 0, row), groups.half_scales[g][0], Columns::zero());
            return fma(part_of_row(g, 1, row), groups.half_scales[g][1], first);
        }
    }

private:
    template <bool kRest, int kPart>
    OCTAVO_INLINE void compute_part(const Groups& groups, std::size_t g, const ActivationGroup* x) {
        constexpr int kSum = (kRest ? kSumsOfRest : kSums) + kPart, kInput = kRest ? kLeftOfRest : kLeft;
        zero_tile<kSum>();
        load_tile<kInput>(x->values + kGroup / 2 * kPart, sizeof *x);
        load_tile<kRight + kPart>(groups.weights[g][kGroupLines / 2 * kPart], kTileRowBytes);
        add_products_int8<kSum, kInput, kRight + kPart>();
        store_tile<kSum>(sums[g][kPart], sizeof sums[g][kPart][0]);
    }

    OCTAVO_INLINE Columns part_of_row(std::size_t g, int part, std::size_t row) const {
        return to_float({_mm512_load_si512(sums[g][part][row])});
    }
};

// Adds the sums of a group to the totals of kRows rows from `row` of its tile on.
template <WeightFormat kFormat, int kRows>
OCTAVO_INLINE void add_sums(const UnpackedGroups<kFormat>& groups, const TileSums<kFormat>& sums, std::size_t g,
                            const ActivationGroup* x, std::size_t row, Columns (&totals)[kRows]) {
    constexpr PanelLayout kLayout = layout_of(kFormat);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
        const Columns t = sums.of_row(groups, g, row + r), scale = Columns::broadcast(x[row + r].scale);
        if constexpr (kLayout.scales == Scales::column) {
            totals[r] = fma(t, scale, totals[r]);
        } else {
            totals[r] = fma(t * scale, groups.scale[g], totals[r]);
        }
        if constexpr (kLayout.has_minimum()) {
            totals[r] = fma(groups.minimum[g], Columns::broadcast(x[row + r].sum), totals[r]);
        }
    }
}

template <int kRows>
OCTAVO_INLINE void load_rows(const float (*from)[16], Columns (&rows)[kRows]) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) rows[r] = Columns::load(from[r]);
}
template <int kRows>
OCTAVO_INLINE void store_rows(const Columns (&rows)[kRows], float (*to)[16]) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) rows[r].store(to[r]);
}

// Adds the groups to the totals of whole tiles of rows. The tiles' products of the next sixteen rows go on while the
// vectors convert and add those of the last.
template <WeightFormat kFormat>
OCTAVO_INLINE void add_to_whole_tiles(const UnpackedGroups<kFormat>& groups, const ActivationGroup* x,
                                      std::size_t x_stride, std::size_t num_rows, float (*totals)[16]) {
    TileSums<kFormat> sums[2];
    for (std::size_t g = 0; g < groups.count; ++g) sums[0].template compute<false>(groups, g, x + g * x_stride);
    for (std::size_t row = 0; row < num_rows; row += kTileRows) {
        TileSums<kFormat>&now = sums[row / kTileRows % 2], &next = sums[(row / kTileRows + 1) % 2];
        const bool is_last = row + kTileRows == num_rows;
        Columns of_rows[kTileRows];
        load_rows(totals + row, of_rows);
        for (std::size_t g = 0; g < groups.count; ++g) {
            const ActivationGroup* of_group = x + g * x_stride + row;
            if (!is_last) next.template compute<false>(groups, g, of_group + kTileRows);
            add_sums(groups, now, g, of_group, 0, of_rows);
        }
        store_rows(of_rows, totals + row);
    }
}

// The same for less than a tile.
template <WeightFormat kFormat>
OCTAVO_INLINE void add_to_rest(const UnpackedGroups<kFormat>& groups, const ActivationGroup* x, std::size_t x_stride,
                               std::size_t num_rows, float (*totals)[16]) {
    TileSums<kFormat> sums;
    for (std::size_t g = 0; g < groups.count; ++g) sums.template compute<true>(groups, g, x + g * x_stride);
    for (std::size_t row = 0; row < num_rows; ++row) {
        Columns total[1] = {Columns::load(totals[row])};
        for (std::size_t g = 0; g < groups.count; ++g) add_sums(groups, sums, g, x + g * x_stride, row, total);
        total[0].store(totals[row]);
    }
}

// Adds the groups to the totals of all rows.
template <WeightFormat kFormat>
OCTAVO_INLINE void add_groups(const UnpackedGroups<kFormat>& groups, const ActivationGroup* x, std::size_t x_stride,
                              std::size_t num_rows, float (*totals)[16]) {
    const std::size_t rest = num_rows % kTileRows, whole = num_rows - rest;
    if (whole) add_to_whole_tiles(groups, x, x_stride, whole, totals);
    if constexpr (kLeastTileRows<kFormat> < kTileRows) {
        if (rest) add_to_rest(groups, x + whole, x_stride, rest, totals + whole);
    }
}

}  // namespace octavo::OCTAVO_ISA
