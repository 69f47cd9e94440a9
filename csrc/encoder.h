// The ops that encoders have beside linear layers, shared out over the thread pool.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "simd/encoder.h"
#include "threads/thread_pool.h"

namespace octavo {

// num_ids: rows of each source that is read by ids. Throws std::out_of_range for an id that has no row.
void layer_norm(ThreadPool& pool, const LayerNormCall& call, std::array<std::int64_t, LayerNormCall::kMaxSources> num_ids,
                std::size_t num_rows, bool is_bfloat16);
void activation(ThreadPool& pool, const ElementActivationCall& call, std::size_t num_rows, bool is_bfloat16);

// Text r owns rows bounds[r] : bounds[r + 1], and each of its rows attends to all of them. Rows behind the last text's
// become zero.
void encoder_attention(ThreadPool& pool, const EncoderAttentionCall& call, const std::int32_t* bounds,
                       std::size_t num_texts, std::size_t num_rows, bool is_bfloat16);

}  // namespace octavo
