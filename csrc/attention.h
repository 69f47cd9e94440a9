// Paged attention of a step, shared out over the thread pool.
#pragma once

#include <cstdint>

#include "simd/attention.h"
#include "threads/thread_pool.h"

namespace octavo {

// A step's rows: request r owns rows query_start_loc[r] : query_start_loc[r + 1], its last tokens of seq_lens[r].
struct AttentionStep {
    const std::int32_t* query_start_loc;  // [num_requests + 1]
    const std::int32_t* seq_lens;         // [num_requests]
    std::int64_t num_requests, num_rows;  // rows beyond the last request's are padding and become zero
};

// `call` needs no keys_per_split.
void paged_attention(ThreadPool& pool, AttentionCall call, const AttentionStep& step, bool query_is_bfloat16);

// For the test that a test of batch invariance can fail: makes where splits lie depend on the batch.
void testing_split_by_batch(bool wrong);

}  // namespace octavo
