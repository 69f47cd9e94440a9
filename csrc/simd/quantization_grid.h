// Passes over a group of 32 numbers that is quantised, as each instruction set gives them; the same to the bit in all.
#pragma once

#include <cstddef>

#include "simd/instruction_sets.h"

namespace octavo {

// Levels 0 .. 15: a number is scale * level + minimum.
struct Grid {
    float scale, minimum;
};

// Of the levels of 32 numbers, and of the numbers less some middle, what a line of least squares needs.
struct LevelSums {
    float level, number, square, product;
};

struct GridKernels {
    // levels = the nearest of (x - minimum) * inverse, ties to even; inverse = 1 / scale, or 0 for a scale of 0.
    LevelSums (*round)(const float* x, float minimum, float inverse, float middle, float* levels);
    // The sum of the squares of what the grid misses.
    float (*missed)(const float* x, Grid grid, const float* levels);
};

OCTAVO_DECLARE_KERNELS(GridKernels, grid_kernels)

}  // namespace octavo
