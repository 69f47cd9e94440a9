// Kernels of encoders between the projections, as each instruction set gives them. A row's result depends on that row
// alone, or in attention on its text alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd/activation.h"
#include "simd/elementwise.h"
#include "simd/instruction_sets.h"

namespace octavo {

// Numbers of which each row has some: row i, or, with ids, row ids[i].
struct RowSource {
    const void* numbers;  // [rows, width]
    const std::int64_t* ids;
};

// The sum of a row of each source, normalised. All of one type; the sum is float32, and the result rounded once.
struct LayerNormCall {
    static constexpr int kMaxSources = 3;

    RowSource sources[kMaxSources];
    int num_sources;
    const void *weight, *bias;  // [width]
    void* out;                  // [num_rows, width]
    std::size_t width;
    float eps;
};

// x, out: [num_rows, width], which may be the same.
struct ElementActivationCall {
    const void* x;
    void* out;
    std::size_t width;
    Activation activation;
};

// qkv: [num_rows, 3, num_heads, head_size]; out: [num_rows, num_heads, head_size].
struct EncoderAttentionCall {
    const void* qkv;
    void* out;
    int num_heads, head_size;
    float scale;
};

// Rows [first_row, last_row) of the text that owns rows [begin, end), under heads [first_head, last_head).
struct EncoderAttentionTask {
    std::int64_t begin, end, first_row, last_row;
    int first_head, last_head;
};

// Floats of scratch memory for a text of some rows: its keys and values under one head, and a block of queries with their
// weights.
constexpr __attribute__((always_inline)) std::size_t encoder_scratch_floats(std::size_t num_rows, std::size_t head_size) {
    const std::size_t keys = (num_rows + 7) / 8 * 8, entries = (head_size + 7) / 8 * 8;
    return (2 * keys + 8) * entries + 8 * keys;
}

struct EncoderKernels {  // [is bfloat16]
    void (*layer_norm[2])(const LayerNormCall&, Rows);
    void (*activation[2])(const ElementActivationCall&, Rows);
    void (*attention[2])(const EncoderAttentionCall&, const EncoderAttentionTask&, float* scratch);
};

OCTAVO_DECLARE_KERNELS(EncoderKernels, encoder_kernels)

}  // namespace octavo
