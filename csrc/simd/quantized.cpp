// Kernels of quantised weights: integer sums of a group at a time, and a float accumulator for each row and column.
#include "simd/quantized.h"

#include "simd/columns.h"
#include "simd/lanes.h"
#include "simd/quantize_group.h"
#if OCTAVO_ISA_amx
#include "simd/quantized_tiles.h"
#endif

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int kMaxRows = 4;              // of integer sums in registers
constexpr std::size_t kRowsAtOnce = 64;  // whose accumulators stay in the first-level cache
constexpr std::size_t kAhead = 2048;     // bytes: past what the hardware fetches by itself, and where it stops at a page's end

// A group of a panel as its kernels want it.
template <WeightFormat kFormat>
struct Group {
    static constexpr PanelLayout kLayout = layout_of(kFormat);

    Bytes weights[8];
    Columns scale, minimum;
    HalfScales half_scales;

    OCTAVO_INLINE Group(const char* block_header, const char* group) {
        read_scales(block_header, group);
        read_weights(group + kLayout.group_header());
    }

    OCTAVO_INLINE void read_scales(const char* block_header, const char* group) {
        if constexpr (kLayout.scales == Scales::half || kLayout.scales == Scales::half_and_minimum) {
            scale = Columns::load_half(group);
        }
        if constexpr (kLayout.scales == Scales::half_and_minimum) minimum = Columns::load_half(group + 32);
        if constexpr (kLayout.scales == Scales::block) {
            // Products of 11 and 6 bits: exact.
            scale = Columns::load_half(block_header) * Columns::load_uint8(group);
            minimum = -(Columns::load_half(block_header + 32) * Columns::load_uint8(group + 16));
        }
        if constexpr (kLayout.scales == Scales::block_of_halves) {
            scale = Columns::load_half(block_header);
            half_scales = HalfScales::load(group);
        }
    }

    OCTAVO_INLINE void read_weights(const char* bits) {
        if constexpr (kLayout.bits == 8) {
            for (int s = 0; s < 8; ++s) weights[s] = Bytes::load(bits + 64 * s);
            return;
        }
        for (int s = 0; s < 4; ++s) {
            const Bytes both = Bytes::load(bits + 64 * s);
            weights[s] = shifted<0>(both, 0x0f);
            weights[s + 4] = shifted<-4>(both, 0x0f);
        }
        if constexpr (kLayout.bits == 5) add_fifth_bits(Bytes::load(bits + 256));
        if constexpr (kLayout.bits == 6) {
            add_two_bits(Bytes::load(bits + 256), weights);
            add_two_bits(Bytes::load(bits + 320), weights + 4);
        }
    }

    OCTAVO_INLINE void add_fifth_bits(Bytes high) {
        weights[0] = weights[0] | shifted<4>(high, 0x10);
        weights[1] = weights[1] | shifted<3>(high, 0x10);
        weights[2] = weights[2] | shifted<2>(high, 0x10);
        weights[3] = weights[3] | shifted<1>(high, 0x10);
        weights[4] = weights[4] | shifted<0>(high, 0x10);
        weights[5] = weights[5] | shifted<-1>(high, 0x10);
        weights[6] = weights[6] | shifted<-2>(high, 0x10);
        weights[7] = weights[7] | shifted<-3>(high, 0x10);
    }

    static OCTAVO_INLINE void add_two_bits(Bytes high, Bytes* four) {
        four[0] = four[0] | shifted<4>(high, 0x30);
        four[1] = four[1] | shifted<2>(high, 0x30);
        four[2] = four[2] | shifted<0>(high, 0x30);
        four[3] = four[3] | shifted<-2>(high, 0x30);
    }
};

// The whole of a group's bytes that are some groups, a panel or a task further on.
template <WeightFormat kFormat>
OCTAVO_INLINE void fetch_ahead(const char* group) {
    for (std::size_t i = 0; i < layout_of(kFormat).group_bytes(); i += 64) __builtin_prefetch(group + kAhead + i);
}

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

OCTAVO_INLINE void store(float* out, const float* values, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) out[i] = values[i];
}
OCTAVO_INLINE void store(std::uint16_t* out, const float* values, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) out[i] = to_bfloat16(values[i]);
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
        total.store(totals[r]);
        store(static_cast<Out*>(task.out) + (row + r) * task.out_stride + column, totals[r], count);
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

#if OCTAVO_ISA_amx

// The same on tiles, for enough rows.
template <WeightFormat kFormat>
void accumulate_panel_on_tiles(const QuantizedTask& task, const char* block, const ActivationGroup* x,
                               std::size_t num_rows, float (*totals)[16]) {
    constexpr PanelLayout kLayout = layout_of(kFormat);
    constexpr int kParts = UnpackedGroups<kFormat>::kParts;
    std::size_t rows_of_shapes = num_rows < kTileRows ? num_rows : kTileRows;
    const TileScope scope(group_shapes(static_cast<int>(rows_of_shapes), kParts));
    for (std::size_t first = 0; first < task.num_groups; first += kGroupsAtOnce) {
        UnpackedGroups<kFormat> groups;
        for (std::size_t g = first; g < task.num_groups && groups.count < kGroupsAtOnce; ++g) {
            const std::size_t in_block = g % kLayout.groups_of_block();
            const char* of_group = block + g / kLayout.groups_of_block() * kLayout.block_bytes();
            const char* group = of_group + kLayout.block_header() + in_block * kLayout.group_bytes();
            fetch_ahead<kFormat>(group);
            groups.put(Group<kFormat>(of_group, group));
        }
        for (std::size_t row = 0; row < num_rows; row += kTileRows) {
            const std::size_t rows = num_rows - row < kTileRows ? num_rows - row : kTileRows;
            if (rows != rows_of_shapes) configure_tiles(group_shapes(static_cast<int>(rows_of_shapes = rows), kParts));
            add_groups(groups, x + first * task.x_stride + row, task.x_stride, rows, totals + row);
        }
    }
}

#endif

template <WeightFormat kFormat, class Out>
void panel_times_rows(const QuantizedTask& task, std::size_t panel_number, std::size_t row, std::size_t num_rows) {
    constexpr PanelLayout kLayout = layout_of(kFormat);
    const char* panel = task.panels + panel_number * kLayout.panel_bytes(task.num_groups);
    float totals[kRowsAtOnce][16];
    for (std::size_t r = 0; r < num_rows; ++r) Columns::zero().store(totals[r]);
#if OCTAVO_ISA_amx
    const auto accumulate_all = num_rows < kLeastTileRows ? accumulate_panel<kFormat> : accumulate_panel_on_tiles<kFormat>;
#else
    constexpr auto accumulate_all = accumulate_panel<kFormat>;
#endif
    accumulate_all(task, panel + kLayout.panel_header(), task.x + row, num_rows, totals);
    finish<kFormat, Out>(task, panel, panel_number * kQuantizedColumns, row, num_rows, totals);
}

template <WeightFormat kFormat, class Out>
void product(const QuantizedTask& task) {
    for (std::size_t row = 0; row < task.num_rows; row += kRowsAtOnce) {
        const std::size_t left = task.num_rows - row, num_rows = left < kRowsAtOnce ? left : kRowsAtOnce;
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
