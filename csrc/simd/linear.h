// The kernels of the packed linear, as each instruction set gives them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

// Columns of the output in one panel of a packed weight.
inline constexpr std::size_t kPanelColumns = 16;

// Rows times panels. Row i of x starts at x + i * k. Each output is one chain of fused multiply-adds over ascending k
// that starts at zero, plus its bias, so it depends neither on num_rows nor on how the work is split.
struct LinearTask {
    const float* x;
    std::size_t num_rows, k;
    const void* panels;        // the first of `num_panels`, each as long as packed_panel_bytes says
    std::size_t num_panels;
    const float* bias;         // padded to whole panels, or null
    void* out;                 // the panels' first column of row 0, float32 or bfloat16
    std::size_t out_stride;    // elements from one row to the next
    std::size_t num_columns;   // that exist of the num_panels * kPanelColumns
};

struct LinearKernels {
    void (*float32)(const LinearTask&);           // float32 weights and results
    void (*bfloat16)(const LinearTask&);          // bfloat16 weights and results
    void (*bfloat16_float32)(const LinearTask&);  // bfloat16 weights, float32 results: logits
    void (*widen)(const std::uint16_t* from, float* to, std::size_t count);  // bfloat16 to float32
};

namespace generic {
extern const LinearKernels linear_kernels;
}
namespace avx2 {
extern const LinearKernels linear_kernels;
}

}  // namespace octavo
