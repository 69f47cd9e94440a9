// Low-rank updates of a projection (LoRA), y += scale * (x A^T) B^T, as each instruction set gives them. A row's result
// depends on that row and its adapter alone: a number is one ascending chain of fused multiply-adds, and scaled or added
// once.
#pragma once

#include <cstddef>

#include "simd/instruction_sets.h"

namespace octavo {

inline constexpr std::size_t kLoraLanes = 8;      // ranks are filled up with zeros to a multiple of it
inline constexpr std::size_t kLoraColumns = 16;   // of a panel
inline constexpr std::size_t kMostLoraRows = 16;  // of one adapter

// Rows of the caller's choice.
//   a: [k][padded_rank]
//   b: [panels][rank][kLoraColumns], columns of B's result, filled up with zeros
struct LoraShrink {  // low[row] = scale * A x[row], padded_rank numbers
    const float* const* x;
    float* const* low;
    const void* a;
    std::size_t num_rows, k, padded_rank;
    float scale;
};

struct LoraExpand {  // y[row][16 * panel ...] += B low[row], for panels [first, last)
    void* const* y;
    const float* const* low;
    const void* b;
    std::size_t num_rows, rank, num_columns, first, last;
    std::ptrdiff_t ahead;  // bytes from what is read to what is read next, which is fetched meanwhile
};

struct LoraKernels {
    void (*shrink[2])(const LoraShrink&);     // [a is bfloat16]
    void (*expand[2][2])(const LoraExpand&);  // [b is bfloat16][y is bfloat16]
};

OCTAVO_DECLARE_KERNELS(LoraKernels, lora_kernels)

}  // namespace octavo
