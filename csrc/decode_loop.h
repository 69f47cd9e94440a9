// Decode steps after each other, each with the tokens that the one before chose, in one call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "graph.h"
#include "sampling.h"
#include "step_layout.h"
#include "threads/thread_pool.h"

namespace octavo {

// What a step runs: a forward pass, then for the rows that `logit_rows` names either logits, or of each row no more than
// the largest logit and its id.
struct CapturedStep {
    Graph* forward;
    Graph* logits_graph;
    Graph* best_graph;
    std::int64_t* logit_rows;
    float* logits;
    std::size_t vocab_size;
    double* best;  // [rows, 2]
};

// The requests of all table slots, whose next tokens are added to them; there is room. Ids from num_text_tokens on are
// never chosen; end_ids are num_end_ids for each slot, negative where there are fewer.
struct DecodingRequests {
    std::int32_t* token_ids;  // [slots, columns]
    std::size_t columns;
    std::int64_t *num_tokens, *num_computed;
    std::vector<GroupBlocks> blocks;
    const RowChoice* choices;
    const std::int64_t* num_text_tokens;
    const std::int32_t* end_ids;
    std::size_t num_end_ids;
};

class DecodeLoop {
public:
    DecodeLoop(const CapturedStep& step, const StepLayout& layout) : step_(step), layout_(layout) {}

    // Runs at most num_steps steps of one token of each of the requests in `slots`, all of which have one that is not
    // computed; fewer where all that are `going` meet an end, or where a request's logits are nothing to choose by. That
    // request has no token in this step: -1. Returns tokens [steps, requests].
    std::vector<std::int64_t> run(ThreadPool& pool, const DecodingRequests& requests,
                                  const std::vector<std::int64_t>& slots, std::vector<bool> going,
                                  std::size_t num_steps) const;

private:
    void forward(ThreadPool& pool, const DecodingRequests& requests, const std::vector<std::int64_t>& slots) const;
    std::vector<std::int64_t> choose(ThreadPool& pool, const DecodingRequests& requests,
                                     const std::vector<std::int64_t>& slots) const;
    std::vector<std::int64_t> best_tokens(ThreadPool& pool, const DecodingRequests& requests,
                                          const std::vector<std::int64_t>& slots) const;

    const CapturedStep step_;
    const StepLayout& layout_;
};

}  // namespace octavo
