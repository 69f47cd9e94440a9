// Kernels of quantised weights: integer sums of a group at a time, and a float accumulator for each row and column.
#include "simd/quantized.h"

#include "simd/quantize_group.h"
#include "simd/quantized_group.h"
#include "simd/wide_lanes.h"
#if OCTAVO_ISA_amx
#include "simd/quantized_tiles.h"
#endif

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int kMaxRows = 4;              // of integer sums in registers
constexpr std::size_t kRowsAtOnce = 64;  // whose accumulators stay in the first-level cache

// One group of a few rows.
template <WeightFormat kFormat, int kRows>
OCTAVO_INLINE void accumulate(const Group<kFormat>& group, const ActivationGroup* x, float (*totals)[16]) {
    constexpr PanelLayout kLayout = layout_of(kFormat);
    Sums sums[kRows];
    dot_of_group<kLayout.bits, kLayout.offset>(group.weights, group.half_scales, x, sums);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
        const Columns t = to_float(sums[r]), scale = Columns::broadcast(x[r].scale);
        Columns total = Columns::load(totals[r]);
        if constexpr (kLayout.scales == Scales::column) {
            total = fma(t, scale, total);
        } else {
            total = fma(t * scale, group.scale, total);
        }
        if constexpr (kLayout.has_minimum()) total = fma(group.minimum, Columns::broadcast(x[r].sum), total);
        total.store(totals[r]);
    }
}

template <WeightFormat kFormat>
OCTAVO_INLINE void accumulate_rows(const Group<kFormat>& group, const ActivationGroup* x, std::size_t num_rows,
                                   float (*totals)[16]) {
    std::size_t row = 0;
    for (; row + kMaxRows <= num_rows; row += kMaxRows) accumulate<kFormat, kMaxRows>(group, x + row, totals + row);
    switch (num_rows - row) {
        case 3: return accumulate<kFormat, 3>(group, x + row, totals + row);
        case 2: return accumulate<kFormat, 2>(group, x + row, totals + row);
        case 1: return accumulate<kFormat, 1>(group, x + row, totals + row);
    }
}

OCTAVO_INLINE void store_columns(float* out, Columns values) { values.store(out); }
OCTAVO_INLINE void store_columns(std::uint16_t* out, Columns values) {
#if OCTAVO_HAS_AVX512
    store(out, F32x16{values.v});
#else
    float numbers[16];
    values.store(numbers);
    store(out, load(numbers)), store(out + kLanes, load(numbers + kLanes));
#endif
}

template <WeightFormat kFormat, class Out>
OCTAVO_INLINE void finish(const QuantizedTask& task, const char* panel, std::size_t column, std::size_t row,
                          std::size_t num_rows, float (*totals)[16]) {
    const std::size_t left = task.num_columns - column, count = left < 16 ? left : 16;
    for (std::size_t r = 0; r < num_rows; ++r) {
        Columns total = Columns::load(totals[r]);
        if constexpr (layout_of(kFormat).scales == Scales::column) {
            total = total * Columns::load(reinterpret_cast<const float*>(panel));
        }
        if (task.bias) total = total + Columns::load(task.bias + column);
        Out* out = static_cast<Out*>(task.out) + (row + r) * task.out_stride + column;
        if (count == 16) {
            store_columns(out, total);
        } else {
            Out all[16];
            store_columns(all, total);
            for (std::size_t i = 0; i < count; ++i) out[i] = all[i];
        }
    }
}

// Adds all groups of a panel to the totals of some rows.
template <WeightFormat kFormat>
void accumulate_panel(const QuantizedTask& task, const char* block, const ActivationGroup* x, std::size_t num_rows,
                      float (*totals)[16]) {
    constexpr PanelLayout kLayout = layout_of(kFormat);
    for (std::size_t g = 0; g < task.num_groups; g += kLayout.groups_of_block(), block += kLayout.block_bytes()) {
        for (std::size_t i = 0; i < kLayout.groups_of_block(); ++i) {
            const char* group = block + kLayout.block_header() + i * kLayout.group_bytes();
            fetch_ahead<kFormat>(group);
            accumulate_rows<kFormat>({block, group}, x + (g + i) * task.x_stride, num_rows, totals);
        }
    }
}

template <WeightFormat kFormat, class Out>
void panel_times_rows(const QuantizedTask& task, std::size_t panel_number, std::size_t row, std::size_t num_rows) {
    constexpr PanelLayout kLayout = layout_of(kFormat);
    const char* panel = task.panels + panel_number * kLayout.panel_bytes(task.num_groups);
    alignas(64) float totals[kRowsAtOnce][16];
    for (std::size_t r = 0; r < num_rows; ++r) Columns::zero().store(totals[r]);
    accumulate_panel<kFormat>(task, panel + kLayout.panel_header(), task.x + row, num_rows, totals);
    finish<kFormat, Out>(task, panel, panel_number * kQuantizedColumns, row, num_rows, totals);
}

#if OCTAVO_ISA_amx

// The same of some panels on tiles, for enough rows.
template <WeightFormat kFormat, class Out>
void panels_times_rows_on_tiles(const QuantizedTask& task, std::size_t first_panel, std::size_t num_panels,
                                std::size_t row, std::size_t num_rows) {
    const std::size_t panel_bytes = layout_of(kFormat).panel_bytes(task.num_groups);
    const char* panels = task.panels + first_panel * panel_bytes;
    const TileScope scope(group_shapes(num_rows, UnpackedGroups<kFormat>::kParts));
    alignas(64) float totals[kPanelsAtOnce][kRowsAtOnce][16];
    for (std::size_t i = 0; i < num_panels; ++i) {
        for (std::size_t r = 0; r < num_rows; ++r) Columns::zero().store(totals[i][r]);
    }
    for (std::size_t g = 0; g < task.num_groups; g += kGroupsAtOnce) {
        for (std::size_t i = 0; i < num_panels; ++i) {
            const UnpackedGroups<kFormat> groups(panels + i * panel_bytes, g, task.num_groups);
            add_groups(groups, task.x + g * task.x_stride + row, task.x_stride, num_rows, totals[i]);
        }
    }
    for (std::size_t i = 0; i < num_panels; ++i) {
        const std::size_t column = (first_panel + i) * kQuantizedColumns;
        finish<kFormat, Out>(task, panels + i * panel_bytes, column, row, num_rows, totals[i]);
    }
}

// All panels times the first rows that fill tiles well. Returns their number.
template <WeightFormat kFormat, class Out>
std::size_t product_on_tiles(const QuantizedTask& task, std::size_t row, std::size_t num_rows) {
    const std::size_t rest = num_rows % kTileRows;
    const std::size_t on_tiles = rest < kLeastTileRows<kFormat> ? num_rows - rest : num_rows;
    for (std::size_t panel = 0; on_tiles && panel < task.num_panels; panel += kPanelsAtOnce) {
        const std::size_t left = task.num_panels - panel, num_panels = left < kPanelsAtOnce ? left : kPanelsAtOnce;
        panels_times_rows_on_tiles<kFormat, Out>(task, panel, num_panels, row, on_tiles);
    }
    return on_tiles;
}

#else

template <WeightFormat kFormat, class Out>
OCTAVO_INLINE std::size_t product_on_tiles(const QuantizedTask&, std::size_t, std::size_t) {
    return 0;
}

#endif

template <WeightFormat kFormat, class Out>
void product(const QuantizedTask& task) {
    std::size_t num_rows = 0;
    for (std::size_t row = 0; row < task.num_rows; row += num_rows) {
        const std::size_t left = task.num_rows - row;
        num_rows = left < kRowsAtOnce ? left : kRowsAtOnce;
        if (const std::size_t done = product_on_tiles<kFormat, Out>(task, row, num_rows)) {
            num_rows = done;
            continue;
        }
        for (std::size_t panel = 0; panel < task.num_panels; ++panel) {
            panel_times_rows<kFormat, Out>(task, panel, row, num_rows);
        }
    }
}

// Numbers of one group, zeros beyond k.
template <class In>
OCTAVO_INLINE void widen_group(const In* x, std::size_t count, Lanes (&out)[4]) {
    if (count >= kGroup) {
        for (int i = 0; i < 4; ++i) out[i] = load(x + 8 * i);
        return;
    }
    In padded[kGroup] = {};
    for (std::size_t i = 0; i < count; ++i) padded[i] = x[i];
    for (int i = 0; i < 4; ++i) out[i] = load(padded + 8 * i);
}

template <class In>
void quantize(const In* x, std::size_t k, ActivationGroup* out, std::size_t stride) {
    for (std::size_t i = 0; i < k; i += kGroup, out += stride) {
        Lanes numbers[4];
        widen_group(x + i, k - i, numbers);
        quantize_group(numbers, *out);
    }
}

}  // namespace

#define OCTAVO_PRODUCTS(Out)                                                                                         \
    {product<WeightFormat::q8_0, Out>, product<WeightFormat::q4_0, Out>, product<WeightFormat::q4_1, Out>,           \
     product<WeightFormat::q5_0, Out>, product<WeightFormat::q5_1, Out>, product<WeightFormat::q4_k, Out>,           \
     product<WeightFormat::q5_k, Out>, product<WeightFormat::q6_k, Out>, product<WeightFormat::int8, Out>}

const QuantizedKernels quantized_kernels{
    quantize<float>,
    quantize<std::uint16_t>,
    OCTAVO_PRODUCTS(float),
    OCTAVO_PRODUCTS(std::uint16_t),
};

}  // namespace octavo::OCTAVO_ISA
