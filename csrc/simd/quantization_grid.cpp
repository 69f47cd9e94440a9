// Kernels of the search for a group's grid.
#include "simd/quantization_grid.h"

#include "simd/lanes.h"
#include "simd/quantized.h"

namespace octavo::OCTAVO_ISA {
namespace {

// The nearest whole numbers, ties to even, of small numbers are the last bits of this sum.
constexpr float kWhole = 12582912.0f;  // 1.5 * 2^23

LevelSums round(const float* x, float minimum, float inverse, float middle, float* levels) {
    const Lanes least = broadcast(minimum), factor = broadcast(inverse), center = broadcast(middle);
    const Lanes whole = broadcast(kWhole), most = broadcast(15.0f);
    Lanes level = zero_lanes(), number = zero_lanes(), square = zero_lanes(), product = zero_lanes();
    for (std::size_t j = 0; j < kGroup; j += kLanes) {
        const Lanes numbers = load(x + j), away = numbers - center;
        const Lanes steps = smaller(larger((numbers - least) * factor, zero_lanes()), most);
        const Lanes nearest = (steps + whole) - whole;
        store(levels + j, nearest);
        level = level + nearest;
        number = number + away;
        square = fma(nearest, nearest, square);
        product = fma(nearest, away, product);
    }
    return {sum_lanes(level), sum_lanes(number), sum_lanes(square), sum_lanes(product)};
}

float missed(const float* x, Grid grid, const float* levels) {
    const Lanes scale = broadcast(grid.scale), minimum = broadcast(grid.minimum);
    Lanes sum = zero_lanes();
    for (std::size_t j = 0; j < kGroup; j += kLanes) {
        const Lanes miss = load(x + j) - fma(load(levels + j), scale, minimum);
        sum = fma(miss, miss, sum);
    }
    return sum_lanes(sum);
}

}  // namespace

extern const GridKernels grid_kernels{round, missed};

}  // namespace octavo::OCTAVO_ISA
