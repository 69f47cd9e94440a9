// The projection to queries, keys and values, and what becomes of a head as soon as all its columns are there.
#pragma once

#include "packed_matrix.h"
#include "simd/elementwise.h"

namespace octavo {

// `call.projected` is room for all results of the projection of x [num_rows, k]. As the product, and rope_write after it.
// Throws as rope_write.
void qkv_rope_write(ThreadPool& pool, const PackedMatrix& weight, Activations x, std::size_t num_rows,
                    const RopeWriteCall& call);

}  // namespace octavo
