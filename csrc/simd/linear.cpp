// Micro-kernels of the packed linear: a few rows by a few panels, their sums in registers while k runs once.
#include "simd/linear.h"

#include "simd/vector.h"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr std::size_t kMaxRows = 6;     // 6 rows by 2 vectors, a weight vector pair and one input fill 16 registers
constexpr std::size_t kPrefetch = 1024;  // bytes ahead in each panel: past what the hardware does at a page's end

// A panel is [k][16] float32.
struct Float32Panels {
    static constexpr std::size_t kStep = 1;  // k per 64 bytes
    static OCTAVO_INLINE F32x8 vector(const char* line, std::size_t, int half) {
        return F32x8::load(reinterpret_cast<const float*>(line) + 8 * half);
    }
};

// A panel is [ceil(k / 2)][16][2] bfloat16: neighbours in k side by side, the last one's partner zero.
struct BFloat16Panels {
    static constexpr std::size_t kStep = 2;
    static OCTAVO_INLINE F32x8 vector(const char* line, std::size_t step, int half) {
        const auto* pairs = reinterpret_cast<const std::uint16_t*>(line) + 16 * half;
        return step == 0 ? first_of_pairs(pairs) : second_of_pairs(pairs);
    }
};

template <class Panels>
std::size_t panel_bytes(std::size_t k) {
    return (k + Panels::kStep - 1) / Panels::kStep * 64;
}

OCTAVO_INLINE void store(float* out, const float* values, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) out[i] = values[i];
}
OCTAVO_INLINE void store(std::uint16_t* out, const float* values, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) out[i] = to_bfloat16(values[i]);
}

// One value of k (the step-th of a line): a broadcast of each row's input times each panel's two vectors.
template <class Panels, int kRows, int kPanels>
OCTAVO_INLINE void accumulate(F32x8 (&sums)[kRows][2 * kPanels], const float* x, std::size_t k, const char* line,
                              std::size_t panel_stride, std::size_t step) {
    F32x8 weights[2 * kPanels];
#pragma GCC unroll 8
    for (int j = 0; j < 2 * kPanels; ++j) weights[j] = Panels::vector(line + (j / 2) * panel_stride, step, j % 2);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
        const F32x8 input = F32x8::broadcast(x[i * k]);
#pragma GCC unroll 8
        for (int j = 0; j < 2 * kPanels; ++j) sums[i][j] = fma(input, weights[j], sums[i][j]);
    }
}

template <class Out, int kRows, int kPanels>
OCTAVO_INLINE void finish(const F32x8 (&sums)[kRows][2 * kPanels], const LinearTask& task, std::size_t row,
                          std::size_t panel) {
    for (int p = 0; p < kPanels; ++p) {
        const std::size_t column = (panel + p) * kPanelColumns;
        const std::size_t left = task.num_columns - column;
        for (int i = 0; i < kRows; ++i) {
            Out* out = static_cast<Out*>(task.out) + (row + i) * task.out_stride + column;
            float values[kPanelColumns];
            for (int half = 0; half < 2; ++half) {
                F32x8 sum = sums[i][2 * p + half];
                if (task.bias) sum = sum + F32x8::load(task.bias + column + 8 * half);
                sum.store(values + 8 * half);
            }
            if (left >= kPanelColumns) {
                store(out, values, kPanelColumns);
            } else {
                store(out, values, left);
            }
        }
    }
}

template <class Panels, class Out, int kRows, int kPanels>
void tile(const LinearTask& task, std::size_t row, std::size_t panel) {
    const std::size_t k = task.k, stride = panel_bytes<Panels>(k);
    const float* x = task.x + row * k;
    const char* line = static_cast<const char*>(task.panels) + panel * stride;
    F32x8 sums[kRows][2 * kPanels];
    for (auto& of_row : sums) {
        for (F32x8& sum : of_row) sum = F32x8::zero();
    }
    std::size_t i = 0;
    for (; i + Panels::kStep <= k; i += Panels::kStep, line += 64) {
        for (int p = 0; p < kPanels; ++p) __builtin_prefetch(line + p * stride + kPrefetch);
#pragma GCC unroll 2
        for (std::size_t step = 0; step < Panels::kStep; ++step) {
            accumulate<Panels, kRows, kPanels>(sums, x + i + step, k, line, stride, step);
        }
    }
    if (i < k) accumulate<Panels, kRows, kPanels>(sums, x + i, k, line, stride, 0);
    finish<Out, kRows, kPanels>(sums, task, row, panel);
}

// Few rows take several panels at once, for a sum must wait for the one before it: more sums hide that.
constexpr int panels_at_once(int rows) { return rows <= 3 ? 2 : 1; }

template <class Panels, class Out, int kRows>
void rows_of(const LinearTask& task, std::size_t row) {
    constexpr int kPanels = panels_at_once(kRows);
    std::size_t panel = 0;
    for (; panel + kPanels <= task.num_panels; panel += kPanels) tile<Panels, Out, kRows, kPanels>(task, row, panel);
    for (; panel < task.num_panels; ++panel) tile<Panels, Out, kRows, 1>(task, row, panel);
}

// Rows are split evenly: seven are four and three, not six and one.
template <class Panels, class Out>
void linear(const LinearTask& task) {
    constexpr void (*kRowsOf[])(const LinearTask&, std::size_t) = {
        rows_of<Panels, Out, 1>, rows_of<Panels, Out, 2>, rows_of<Panels, Out, 3>,
        rows_of<Panels, Out, 4>, rows_of<Panels, Out, 5>, rows_of<Panels, Out, 6>};
    static_assert(sizeof kRowsOf / sizeof *kRowsOf == kMaxRows);
    const std::size_t num_tiles = (task.num_rows + kMaxRows - 1) / kMaxRows;
    for (std::size_t i = 0, row = 0; i < num_tiles; ++i) {
        const std::size_t rows = (task.num_rows - row + num_tiles - i - 1) / (num_tiles - i);
        kRowsOf[rows - 1](task, row);
        row += rows;
    }
}

void widen(const std::uint16_t* from, float* to, std::size_t count) {
    std::size_t i = 0;
    for (; i + 8 <= count; i += 8) load_bfloat16(from + i).store(to + i);
    for (; i < count; ++i) to[i] = from_bfloat16(from[i]);
}

}  // namespace

const LinearKernels linear_kernels{
    linear<Float32Panels, float>,
    linear<BFloat16Panels, std::uint16_t>,
    linear<BFloat16Panels, float>,
    widen,
};

}  // namespace octavo::OCTAVO_ISA
