// A decided step as arrays: which tokens, at which positions, in which cache slots, and whose rows go on to logits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace octavo {

// What is known of requests, a row for each table slot: their tokens, how many they are, and how many are computed.
struct KnownRequests {
    const std::int32_t* token_ids;
    std::size_t columns;
    const std::int64_t *num_tokens, *num_computed;
};

// A KV group: blocks of requests by slot, each of `split` kernel blocks.
struct GroupBlocks {
    const std::int32_t* block_ids;
    std::size_t columns;
};
struct GroupArrays {
    std::int64_t block_size, split;
    std::int32_t* block_table;  // [requests, columns], in kernel blocks
    std::size_t columns;
    std::int64_t* slot_mapping;  // by token
};

// Where a step is written to. Rows of logits are those of requests all of whose known tokens are computed by the step:
// of the last known token, and of the drafts behind it.
struct StepArrays {
    std::int64_t *token_ids, *positions;                                        // by token
    std::int32_t *query_start_loc, *seq_lens;                                   // by request
    std::int64_t *slots, *num_computed, *sampled, *num_drafts;                  // by request
    std::int64_t *logit_rows, *logit_slots, *logit_positions, *logit_drafts;    // by row of logits
};

struct StepCounts {
    std::int64_t num_tokens = 0, max_seq_len = 0, num_sampled = 0, num_logit_rows = 0;
};

class StepLayout {
public:
    StepLayout(const StepArrays& arrays, std::vector<GroupArrays> groups)
        : arrays_(arrays), groups_(std::move(groups)) {}

    // Requests in `slots` compute counts[r] tokens each, of those that are known or of the drafts behind them.
    StepCounts write(const KnownRequests& known, const std::vector<GroupBlocks>& blocks,
                     const std::vector<std::int64_t>& slots, const std::vector<std::int64_t>& counts) const;

private:
    void write_tokens(const KnownRequests& known, std::size_t request, std::int64_t first, std::int64_t count) const;
    std::int64_t write_logit_rows(const KnownRequests& known, std::size_t request, std::int64_t num_drafts,
                                  std::int64_t row) const;
    void write_group(const GroupArrays& group, const GroupBlocks& blocks, std::size_t num_requests,
                     std::int64_t max_seq_len) const;

    const StepArrays arrays_;
    const std::vector<GroupArrays> groups_;
};

}  // namespace octavo
