// The ops between the projections, shared out over the thread pool by rows.
#pragma once

#include <cstddef>

#include "simd/elementwise.h"
#include "threads/thread_pool.h"

namespace octavo {

void rms_norm(ThreadPool& pool, const NormCall& call, std::size_t num_rows, bool is_bfloat16, bool residual_is_bfloat16);
void gated_activation(ThreadPool& pool, const ActivationCall& call, std::size_t num_rows, bool is_bfloat16);
void scale(ThreadPool& pool, void* numbers, std::size_t num_rows, std::size_t width, float factor, bool is_bfloat16);
void softcap(ThreadPool& pool, float* numbers, std::size_t count, float cap);

// Throws std::out_of_range for a position or a slot that is not there.
void check_places(const RopeWriteCall& call, std::size_t num_rows);
void rope_write(ThreadPool& pool, const RopeWriteCall& call, std::size_t num_rows, bool is_bfloat16);

// Throws std::out_of_range for a token that has no row.
void embedding(ThreadPool& pool, const EmbeddingCall& call, std::size_t num_rows, std::int64_t vocab_size,
               bool is_bfloat16);

}  // namespace octavo
