// Kernels over rows between the projections, as each instruction set gives them. Roundings are those of the ops'
// references; a row's result depends on that row alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv_cache.h"
#include "simd/activation.h"
#include "simd/instruction_sets.h"

namespace octavo {

// Rows of an op's call that one task computes: [first, last).
struct Rows {
    std::size_t first, last;
};

// Entries of each row, [first, last).
struct Entries {
    std::size_t first, last;
};

// Heads of each row, [first, last): queries, then keys, then values.
struct Heads {
    std::size_t first, last;
};

// x, residual, total, out: [num_rows, width], weight: [width], of one type; the residual's may be another. Without a
// residual, total is not written.
struct NormCall {
    const void *x, *residual, *weight;
    float* total;
    void* out;
    std::size_t width;
    float eps, weight_offset;
};

// projected: [num_rows, 2 * width], the gates and then what they let through; out: [num_rows, width], which may lie over
// the gates.
struct ActivationCall {
    const void* projected;
    void* out;
    std::size_t width, out_stride;  // entries from one row of `out` to the next
    Activation activation;
};

// table: [vocab_size, width]; out: [num_rows, width]; scale is a value of the table's type. Without token_ids, row i is
// that of the table, which `out` may be.
struct EmbeddingCall {
    const std::int64_t* token_ids;
    const void* table;
    void* out;
    std::size_t width;
    float scale;
};

// projected: [num_rows, num_heads + 2 * num_kv_heads, head_size]; query: [num_rows, num_heads, head_size].
// The norms' weights are [head_size] in the queries' type, or both null. What is stored of a key is it less key_offset
// [num_kv_heads, head_size], unless that is null. Slot -1 is padding and stores nothing.
struct RopeWriteCall {
    float* projected;
    void* query;
    const std::int64_t *positions, *slots;  // below num_positions and the cache's slots
    std::int64_t num_positions;
    const float* cos_sin;  // [num_positions, rotary_dim]: cosines, then sines
    const void *q_norm, *k_norm;
    const float* key_offset;
    KvCache cache;
    int num_heads, num_kv_heads, head_size, rotary_dim;
    float eps, weight_offset;
    bool interleaved;
};

struct ElementwiseKernels {  // [is bfloat16]
    void (*rms_norm[2][2])(const NormCall&, Rows);  // and [residual is bfloat16]
    void (*gated_activation[2])(const ActivationCall&, Rows, Entries);
    void (*embedding[2])(const EmbeddingCall&, Rows);
    void (*rope_write[2][kNumCacheTypes])(const RopeWriteCall&, Rows, Heads);
    void (*softcap)(float* numbers, std::size_t count, float cap);
};

inline auto rope_write_kernel(const ElementwiseKernels& kernels, const RopeWriteCall& call, bool is_bfloat16) {
    return kernels.rope_write[is_bfloat16][static_cast<std::size_t>(call.cache.type)];
}

OCTAVO_DECLARE_KERNELS(ElementwiseKernels, elementwise_kernels)

}  // namespace octavo
