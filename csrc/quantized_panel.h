// Weights into the panels of simd/quantized.h and back, a row at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd/quantized.h"

namespace octavo {

// Where a column of a panel is written, or read.
struct PanelColumn {
    char* panel;
    std::size_t lane;
    std::size_t num_groups;
};

// Blocks of the format itself, bit by bit: `row` holds num_groups * 32 numbers. Groups [begin, end), a multiple of the
// format's blocks, so that a panel can be written while it is in the cache.
void pack_blocks(WeightFormat format, const std::uint8_t* row, std::size_t begin, std::size_t end, PanelColumn to);

// Whether numbers can be quantised to the format: Q8_0, Q4_1 and int8.
bool is_quantizer(WeightFormat format);

// Numbers [num_groups * 32], zeros where k ends, to the nearest of such a format.
void quantize_row(WeightFormat format, const float* row, PanelColumn to);

// The inverse: num_groups * 32 numbers.
void unpack_row(WeightFormat format, PanelColumn from, float* row);

}  // namespace octavo
