#include "quantization_grid.h"

#include <algorithm>
#include <cmath>

#include "half.h"
#include "isa.h"

namespace octavo {
namespace {

constexpr IsaTable<GridKernels> kKernels OCTAVO_ISA_TABLE(grid_kernels);

// Steps between the least and the greatest of a group. Less than 15: numbers that lay on such a grid before lie on it
// again. More: the outermost are cut off for the others' sake.
constexpr float kSteps[] = {15, 14, 13, 12, 11, 10, 9, 8, 14.5f, 15.5f, 16, 17};
constexpr int kRefinements = 2;

float kept(float number) { return half_to_float(float_to_half(number)); }

struct Candidate {
    Grid grid;
    float missed;
    LevelSums sums;
    float levels[kGroup];
};

// Grids for one group of finite numbers.
class GridSearch {
public:
    explicit GridSearch(const float* numbers) : numbers_(numbers) {
        const auto [least, greatest] = std::minmax_element(numbers, numbers + kGroup);
        least_ = *least;
        range_ = *greatest - *least;
        middle_ = *least + 0.5f * range_;
    }

    Candidate best() const {
        Candidate best = rounded_to({kept(range_ / 15.0f), kept(least_)});
        best.missed = missed(best, best.grid);
        for (const float steps : kSteps) {
            const float scale = kept(range_ / steps);
            improve(best, rounded_to({scale, steps <= 15.0f ? least_ : middle_ - 7.5f * scale}));
        }
        for (int i = 0; i < kRefinements && improve(best, rounded_to(best.grid)); ++i) {
        }
        return best;
    }

private:
    Candidate rounded_to(Grid grid) const {
        Candidate candidate{grid, 0.0f, {}, {}};
        const float inverse = grid.scale != 0.0f ? 1.0f / grid.scale : 0.0f;
        candidate.sums = kernels_.round(numbers_, grid.minimum, inverse, middle_, candidate.levels);
        return candidate;
    }

    float missed(const Candidate& candidate, Grid grid) const { return kernels_.missed(numbers_, grid, candidate.levels); }

    // With the line of least squares through the levels in place of the grid that they were rounded to.
    bool improve(Candidate& best, Candidate candidate) const {
        candidate.grid = fitted(candidate.sums);
        candidate.missed = missed(candidate, candidate.grid);
        const bool is_better = candidate.missed < best.missed;
        if (is_better) best = candidate;
        return is_better;
    }

    // Sums are about the middle, which keeps differences of near numbers exact.
    Grid fitted(const LevelSums& sums) const {
        constexpr auto kCount = static_cast<float>(kGroup);
        const float spread = kCount * sums.square - sums.level * sums.level;
        const float slope = (kCount * sums.product - sums.level * sums.number) / spread;
        const float scale = spread > 0.0f ? kept(slope) : 0.0f;
        return {scale, kept(middle_ + (sums.number - scale * sums.level) / kCount)};
    }

    const GridKernels& kernels_ = kKernels.active();
    const float* const numbers_;
    float least_, range_, middle_;
};

}  // namespace

float extreme(const float* numbers, std::size_t count) {
    float found = 0.0f, problem = 0.0f;
    for (std::size_t j = 0; j < count; ++j) {
        problem += numbers[j] - numbers[j];
        if (std::abs(numbers[j]) > std::abs(found)) found = numbers[j];
    }
    return found + problem;
}

void round_to_bytes(const float* numbers, float scale, std::uint8_t (&q)[kGroup]) {
    std::fill_n(q, kGroup, std::uint8_t{128});
    if (!std::isfinite(scale) || scale == 0.0f) return;
    const float inverse = 1.0f / scale;
    for (std::size_t j = 0; j < kGroup; ++j) {
        const float nearest = std::nearbyint(numbers[j] * inverse);
        q[j] = static_cast<std::uint8_t>(static_cast<int>(std::clamp(nearest, -127.0f, 127.0f)) + 128);
    }
}

Grid nearest_grid(const float* numbers, std::uint8_t (&q)[kGroup]) {
    std::fill_n(q, kGroup, std::uint8_t{0});
    if (const float problem = extreme(numbers, kGroup); !std::isfinite(problem)) return {problem, problem};
    const Candidate best = GridSearch(numbers).best();
    for (std::size_t j = 0; j < kGroup; ++j) q[j] = static_cast<std::uint8_t>(best.levels[j]);
    return best.grid;
}

}  // namespace octavo
