// The kernels of quantised weights, as each instruction set gives them, and the layout they read.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd/instruction_sets.h"

namespace octavo {

// Columns of the output in one panel of a quantised weight, and values of k in one group: what shares an activation's
// scale, and at least a weight's.
inline constexpr std::size_t kQuantizedColumns = 16;
inline constexpr std::size_t kGroup = 32;
inline constexpr std::size_t kGroupsOfBlock = 8;  // in K-quants

// GGUF's block formats, and int8: eight bits with one float32 scale for all of a column.
enum class WeightFormat { q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k, int8 };
inline constexpr std::size_t kNumWeightFormats = 9;

// How a group's scales are stored. A weight is scale * (q - offset) + minimum.
enum class Scales {
    half,              // per group: 16 float16 scales
    half_and_minimum,  // per group: 16 float16 scales, 16 float16 minima
    block,             // per block: 16 float16 d, 16 dmin; per group: 16 uint8 s, 16 uint8 m. d * s, and -(dmin * m)
    block_of_halves,   // per block: 16 float16 d; per group: 2 x 16 int8 s, each for 16 values of k. d * s
    column,            // per panel: 16 float32
};

// A panel is its header, then all blocks: the block's header, then all groups: the group's header, then its bits, lanes
// of four neighbours in k. With s = 0 .. 7 for k = 4 s .. 4 s + 3 of the group:
//   8 bits: [s][16 columns][4].
//   4 bits: [s % 4][16][4], the low halves for s < 4, the high ones for the others.
//   5 bits: as 4, then [16][4], whose bit s is the fifth.
//   6 bits: as 4, then [s / 4][16][4], whose bits 2 (s % 4) and 2 (s % 4) + 1 are the fifth and sixth.
struct PanelLayout {
    int bits, offset;
    Scales scales;

    constexpr std::size_t panel_header() const { return scales == Scales::column ? 4 * kQuantizedColumns : 0; }
    constexpr std::size_t groups_of_block() const { return is_blocked() ? kGroupsOfBlock : 1; }
    constexpr std::size_t block_header() const {
        return scales == Scales::block ? 4 * kQuantizedColumns : scales == Scales::block_of_halves ? 2 * kQuantizedColumns : 0;
    }
    constexpr std::size_t group_header() const {
        return scales == Scales::column ? 0 : (scales == Scales::half_and_minimum ? 4 : 2) * kQuantizedColumns;
    }
    constexpr std::size_t group_bytes() const { return group_header() + bits * kQuantizedColumns * kGroup / 8; }
    constexpr std::size_t block_bytes() const { return block_header() + groups_of_block() * group_bytes(); }
    constexpr std::size_t panel_bytes(std::size_t num_groups) const {
        return panel_header() + num_groups / groups_of_block() * block_bytes();
    }
    constexpr bool is_blocked() const { return scales == Scales::block || scales == Scales::block_of_halves; }
    constexpr bool has_minimum() const { return scales == Scales::half_and_minimum || scales == Scales::block; }
};

constexpr PanelLayout layout_of(WeightFormat format) {
    switch (format) {
        case WeightFormat::q8_0: return {8, 128, Scales::half};
        case WeightFormat::q4_0: return {4, 8, Scales::half};
        case WeightFormat::q4_1: return {4, 0, Scales::half_and_minimum};
        case WeightFormat::q5_0: return {5, 16, Scales::half};
        case WeightFormat::q5_1: return {5, 0, Scales::half_and_minimum};
        case WeightFormat::q4_k: return {4, 0, Scales::block};
        case WeightFormat::q5_k: return {5, 0, Scales::block};
        case WeightFormat::q6_k: return {6, 32, Scales::block_of_halves};
        case WeightFormat::int8: break;
    }
    return {8, 128, Scales::column};
}

// 32 activations of a row: scale * values. Values are -127 .. 127; where one of the 32 is not finite, scale is NaN.
struct alignas(16) ActivationGroup {
    std::int8_t values[kGroup];
    float scale;
    float sum;                      // scale * (the sum of the values)
    std::int16_t negative_sums[2][2];  // of each half: less the values at k % 4 = 0, 1, and less those at 2, 3
};

// Rows times panels. Each output is
//   a = 0; for each group: a = fma(round(t * activation scale), weight scale, a), then a = fma(minimum, activation sum, a)
// where t is the exact integer sum of (q - offset) * value (times s of each half, where halves have one), as float32; int8
// has round(t) and the activation scale as the factors, and multiplies by the column's scale at the end. The bias comes last.
struct QuantizedTask {
    const ActivationGroup* x;   // of group g and row r: x[g * x_stride + r]
    std::size_t x_stride;
    std::size_t num_rows, num_groups;
    const char* panels;         // the first of `num_panels`
    std::size_t num_panels;
    const float* bias;          // padded to whole panels, or null
    void* out;                  // the panels' first column of row 0, float32 or bfloat16
    std::size_t out_stride;     // elements from one row to the next
    std::size_t num_columns;    // that exist of the num_panels * kQuantizedColumns
};

struct QuantizedKernels {
    // A row of k numbers -> ceil(k / 32) groups, `stride` apart; zeros fill the last.
    void (*quantize_float32)(const float* x, std::size_t k, ActivationGroup* out, std::size_t stride);
    void (*quantize_bfloat16)(const std::uint16_t* x, std::size_t k, ActivationGroup* out, std::size_t stride);
    void (*to_float32[kNumWeightFormats])(const QuantizedTask&);
    void (*to_bfloat16[kNumWeightFormats])(const QuantizedTask&);
};

OCTAVO_DECLARE_KERNELS(QuantizedKernels, quantized_kernels)

}  // namespace octavo
