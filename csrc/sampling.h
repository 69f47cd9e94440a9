// From logits to tokens and log-probabilities without sorting a vocabulary: filters become a cut (simd/sampling.h), found
// by bisection over values and a look at the few candidates that are left between two of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "threads/thread_pool.h"

namespace octavo {

// How a row's token is chosen, laid out as device/sample/chooser.py has it. The temperature is 0 for the best candidate;
// top_k is 0, top_p 1 and min_p 0 where there is none.
struct RowChoice {
    std::uint64_t seed;
    std::int64_t position, choice_index, top_k;
    double top_p, min_p;
    float temperature;
    std::uint32_t purpose;
};

// Rows of logits [num_rows, vocab_size] that no token can be taken from, with their largest number: NaN if any is,
// infinity, or -infinity if all are.
std::vector<std::pair<std::size_t, float>> unusable_rows(ThreadPool& pool, const float* logits, std::size_t num_rows,
                                                         std::size_t vocab_size);

// Ids whose bit is not set, in row i of bits [num_rows, num_words] for rows[i] of logits [.., vocab_size], become -infinity;
// ids that have no bit too. Returns whether each of the rows has a candidate left.
bool mask_tokens(ThreadPool& pool, float* logits, std::size_t vocab_size, const std::int64_t* rows, std::size_t num_rows,
                 const std::uint32_t* bits, std::size_t num_words);

// One token per row of usable logits (no NaN or +infinity, not all -infinity), at positions[r] and as choices[slots[r]]
// says else. With `keep`, rows of a temperature are left as what the token was chosen from: after temperature, and
// -infinity where a filter took the id out.
std::vector<std::int64_t> choose_tokens(ThreadPool& pool, float* logits, std::size_t vocab_size, const RowChoice* choices,
                                        const std::vector<std::int64_t>& slots,
                                        const std::vector<std::int64_t>& positions, bool keep);

// The same for rows of which nobody knows whether they are usable: -1 where no token can be taken, from the logits as they
// are or without the ids from num_text_tokens[slots[r]] on, which are left out.
std::vector<std::int64_t> choose_usable_tokens(ThreadPool& pool, float* logits, std::size_t vocab_size,
                                               const RowChoice* choices, const std::int64_t* num_text_tokens,
                                               const std::vector<std::int64_t>& slots,
                                               const std::vector<std::int64_t>& positions);

// One row per row of logits: the given token's log-probability and place (1 = best), and its num_best[r] best candidates
// in ids and values [num_rows, width]; counts[r] of them, since an id at -infinity is none.
struct LogprobsCall {
    const float* logits;
    std::size_t num_rows, vocab_size, width;
    const std::int64_t *tokens, *num_best;
    float* token_logprobs;
    std::int64_t *ranks, *counts, *ids;
    float* values;
};
void log_probabilities(ThreadPool& pool, const LogprobsCall& call);

}  // namespace octavo
