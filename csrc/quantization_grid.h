// What numbers are rounded to where weights are quantised while they are packed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd/quantization_grid.h"
#include "simd/quantized.h"

namespace octavo {

// The number farthest from zero; NaN where one is not finite, so that results show it.
float extreme(const float* numbers, std::size_t count);

// The nearest whole numbers of numbers / scale, -127 .. 127, plus 128; of a scale of 0, or not finite, all are 128.
void round_to_bytes(const float* numbers, float scale, std::uint8_t (&q)[kGroup]);

// Of the grids of 16 levels that are tried the one that misses the numbers least, by the sum of squares, and each
// number's level. Scale and minimum are numbers of float16. Numbers that lie on such a grid stay what they are; those
// that are not finite give NaN.
Grid nearest_grid(const float* numbers, std::uint8_t (&q)[kGroup]);

}  // namespace octavo
