// Quantised weights on AMX tiles: 16 rows by the 16 columns of a panel, a tile of integer sums for each group.
//
// Sums of integers are exact, so results are those of the vector instructions, which serve fewer rows.
#pragma once

#include "simd/columns.h"
#include "simd/tiles.h"

namespace octavo::OCTAVO_ISA {

inline constexpr std::size_t kLeastTileRows = 5;
inline constexpr std::size_t kGroupsAtOnce = kGroupsOfBlock;  // unpacked together, for all rows
inline constexpr int kGroupLines = 8;                         // of a right-hand tile: four of k each

// Tile registers: four of sums in turn, two of rows, two of weights. Groups with a scale for each half are two products.
inline TileShapes group_shapes(int num_rows, int parts_of_group) {
    TileShapes shapes;
    for (int i = 0; i < 4; ++i) shapes.set(i, num_rows);
    for (int i = 4; i < 6; ++i) shapes.set(i, num_rows, kGroup / parts_of_group);
    for (int i = 6; i < 8; ++i) shapes.set(i, kGroupLines / parts_of_group);
    return shapes;
}

// Some groups of a panel as tiles read them: signed bytes.
template <WeightFormat kFormat>
struct UnpackedGroups {
    static constexpr PanelLayout kLayout = layout_of(kFormat);
    static constexpr int kParts = kLayout.scales == Scales::block_of_halves ? 2 : 1;

    std::size_t count = 0;
    alignas(64) std::int8_t weights[kGroupsAtOnce][kGroupLines][64];
    Columns scale[kGroupsAtOnce], minimum[kGroupsAtOnce];
    HalfScales half_scales[kGroupsAtOnce];

    template <class Group>
    OCTAVO_INLINE void put(const Group& group) {
        const __m512i offset = _mm512_set1_epi8(static_cast<char>(kLayout.offset));
        for (int line = 0; line < kGroupLines; ++line) {
            _mm512_store_si512(weights[count][line], _mm512_sub_epi8(group.weights[line].v, offset));
        }
        scale[count] = group.scale, minimum[count] = group.minimum, half_scales[count] = group.half_scales;
        ++count;
    }
};

using TileSums = std::int32_t[kTileRows][16];

// Integer sums of 16 rows or fewer by one part of a group.
template <int kNumber>
OCTAVO_INLINE void sum_group(const std::int8_t* rows, const std::int8_t* weights, TileSums& sums) {
    constexpr int kSums = kNumber % 4, kLeft = 4 + kNumber % 2, kRight = 6 + kNumber % 2;
    zero_tile<kSums>();
    load_tile<kLeft>(rows, sizeof(ActivationGroup));
    load_tile<kRight>(weights, kTileRowBytes);
    add_products_int8<kSums, kLeft, kRight>();
    store_tile<kSums>(sums, sizeof sums[0]);
}

template <WeightFormat kFormat, int kGroupNumber>
OCTAVO_INLINE void sum_groups(const UnpackedGroups<kFormat>& groups, const ActivationGroup* x, std::size_t x_stride,
                              TileSums* sums) {
    constexpr int kParts = UnpackedGroups<kFormat>::kParts;
    if constexpr (kGroupNumber < kGroupsAtOnce) {
        if (kGroupNumber >= groups.count) return;
        const auto& weights = groups.weights[kGroupNumber];
        sum_group<kParts * kGroupNumber>(x->values, weights[0], *sums++);
        if constexpr (kParts == 2) {
            sum_group<2 * kGroupNumber + 1>(x->values + kGroup / 2, weights[kGroupLines / 2], *sums++);
        }
        sum_groups<kFormat, kGroupNumber + 1>(groups, x + x_stride, x_stride, sums);
    }
}

template <WeightFormat kFormat>
OCTAVO_INLINE Columns sums_of_row(const UnpackedGroups<kFormat>& groups, std::size_t group, const TileSums* sums, std::size_t row) {
    if constexpr (UnpackedGroups<kFormat>::kParts == 1) {
        return to_float({_mm512_loadu_si512(sums[group][row])});
    } else {
        const auto& scales = groups.half_scales[group].v;
        const __m512i first = _mm512_mullo_epi32(_mm512_loadu_si512(sums[2 * group][row]), scales[0]);
        const __m512i second = _mm512_mullo_epi32(_mm512_loadu_si512(sums[2 * group + 1][row]), scales[1]);
        return to_float({_mm512_add_epi32(first, second)});
    }
}

// Adds the groups to the totals of up to 16 rows.
template <WeightFormat kFormat>
void add_groups(const UnpackedGroups<kFormat>& groups, const ActivationGroup* x, std::size_t x_stride, std::size_t num_rows,
                float (*totals)[16]) {
    constexpr PanelLayout kLayout = layout_of(kFormat);
    alignas(64) TileSums sums[kGroupsAtOnce * UnpackedGroups<kFormat>::kParts];
    sum_groups<kFormat, 0>(groups, x, x_stride, sums);
    for (std::size_t row = 0; row < num_rows; ++row) {
        Columns total = Columns::load(totals[row]);
        for (std::size_t g = 0; g < groups.count; ++g) {
            const ActivationGroup& of_row = x[g * x_stride + row];
            const Columns t = sums_of_row(groups, g, sums, row), scale = Columns::broadcast(of_row.scale);
            total = kLayout.scales == Scales::column ? fma(t, scale, total) : fma(t * scale, groups.scale[g], total);
            if constexpr (kLayout.has_minimum()) {
                total = fma(groups.minimum[g], Columns::broadcast(of_row.sum), total);
            }
        }
        total.store(totals[row]);
    }
}

}  // namespace octavo::OCTAVO_ISA
