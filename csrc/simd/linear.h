// The kernels of the packed linear, as each instruction set gives them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd/activation.h"
#include "simd/instruction_sets.h"

namespace octavo {

// How many rows a task may have, where there are more than a few: whole blocks, but for the last task's.
struct TaskRows {
    std::size_t block, least, most;
};

// Rows times panels [first_panel, last_panel), an even number first. A panel is [ceil(bytes of a row / 4)][columns] words
// of 4 bytes of the weight, row by row of it: one float32, or two bfloat16 that are neighbours in k (the last one's partner
// is zero). Each output is one float32 chain over ascending k that starts at zero, plus its bias, so it depends neither
// on num_rows nor on how the work is split. A link of the chain is a fused multiply-add of one k; but where the instruction
// set multiplies bfloat16, it is that instruction: of a vector on two of k at once, of a tile on 32, whose products are
// added up before (simd/tiles.h).
struct LinearTask {
    const void* x = nullptr;  // [num_rows, k]
    std::size_t num_rows = 0, k = 0;
    const void* panels = nullptr;
    std::size_t first_panel = 0, last_panel = 0;
    bool streams = false;  // panels come from memory, for there are not many rows for each
    const float* bias = nullptr;  // padded to whole panels, or null
    void* out = nullptr;          // column 0 of the first row
    std::size_t out_stride = 0;   // elements from one row to the next
    std::size_t num_columns = 0;  // of the matrix
    bool paired = false;          // panels of the first half of the columns (gates) and of the second take turns
    Activation activation = Activation::silu;  // for `gated`, whose results are half as many
};

using LinearKernel = void (*)(const LinearTask&);

struct LinearKernels {
    std::size_t panel_columns;
    TaskRows rows_of_float32, rows_of_bfloat16;
    bool widens;  // inputs for bfloat16 weights are float32, which the caller makes of them
    LinearKernel float32;           // float32 weights and results
    LinearKernel bfloat16;          // bfloat16 weights and results
    LinearKernel bfloat16_float32;  // bfloat16 weights, float32 results: logits
    LinearKernel gated_float32, gated_bfloat16;  // activation(gate) * up of a paired matrix
    void (*widen)(const std::uint16_t* from, float* to, std::size_t count);  // bfloat16 to float32
};

OCTAVO_DECLARE_KERNELS(LinearKernels, linear_kernels)

}  // namespace octavo
