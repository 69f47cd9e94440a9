// Low-rank updates of a projection (LoRA), y += scale * (x A^T) B^T, as each instruction set gives them. A row's result
// depends on that row and its adapter alone: a number is one ascending chain of fused multiply-adds, and scaled or added
// once.
#pragma once

#include <cstddef>

#include "simd/instruction_sets.h"

namespace octavo {

inline constexpr std::size_t kLoraLanes = 8;
inline constexpr std::size_t kMostLoraRows = 4;  // of one adapter, computed together

// Rows of the caller's choice.
//   a: [k][padded_rank], the ranks of A as lanes, filled up with zeros to a multiple of kLoraLanes
//   b: [panels][rank][kLoraLanes], columns of B's result as lanes, filled up alike
struct LoraShrink {  // low[row] = scale * A x[row], padded_rank numbers
    const float* const* x;
    float* const* low;
    const void* a;
    std::size_t num_rows, k, padded_rank;
    float scale;
};

struct LoraExpand {  // y[row][8 * panel ...] += B low[row], for panels [first, last)
    void* const* y;
    const float* const* low;
    const void* b;
    std::size_t num_rows, rank, num_columns, first, last;
};

struct LoraKernels {
    void (*shrink[2])(const LoraShrink&);     // [a is bfloat16]
    void (*expand[2][2])(const LoraExpand&);  // [b is bfloat16][y is bfloat16]
};

OCTAVO_DECLARE_KERNELS(LoraKernels, lora_kernels)

}  // namespace octavo
