#include "step_layout.h"

#include <algorithm>
#include <stdexcept>

namespace octavo {

StepCounts StepLayout::write(const KnownRequests& known, const std::vector<GroupBlocks>& blocks,
                             const std::vector<std::int64_t>& slots, const std::vector<std::int64_t>& counts) const {
    if (slots.size() != counts.size() || blocks.size() != groups_.size()) {
        throw std::invalid_argument("each request has a number of tokens, and each group its blocks");
    }
    StepCounts done;
    arrays_.query_start_loc[0] = 0;
    for (std::size_t r = 0; r < slots.size(); ++r) {
        const std::int64_t computed = known.num_computed[slots[r]], seq_len = computed + counts[r];
        arrays_.slots[r] = slots[r];
        arrays_.num_computed[r] = computed;
        arrays_.seq_lens[r] = static_cast<std::int32_t>(seq_len);
        write_tokens(known, r, done.num_tokens, counts[r]);
        done.num_tokens += counts[r];
        arrays_.query_start_loc[r + 1] = static_cast<std::int32_t>(done.num_tokens);
        done.max_seq_len = std::max(done.max_seq_len, seq_len);
        const std::int64_t num_beyond = seq_len - known.num_tokens[slots[r]];
        if (num_beyond < 0) continue;
        arrays_.sampled[done.num_sampled] = static_cast<std::int64_t>(r);
        arrays_.num_drafts[done.num_sampled++] = num_beyond;
        done.num_logit_rows += write_logit_rows(known, r, num_beyond, done.num_logit_rows);
    }
    for (std::size_t g = 0; g < groups_.size(); ++g) write_group(groups_[g], blocks[g], slots.size(), done.max_seq_len);
    return done;
}

void StepLayout::write_tokens(const KnownRequests& known, std::size_t request, std::int64_t first,
                              std::int64_t count) const {
    const std::int64_t start = arrays_.num_computed[request];
    const std::int32_t* tokens = known.token_ids + static_cast<std::size_t>(arrays_.slots[request]) * known.columns + start;
    for (std::int64_t t = 0; t < count; ++t) {
        arrays_.token_ids[first + t] = tokens[t];
        arrays_.positions[first + t] = start + t;
    }
}

std::int64_t StepLayout::write_logit_rows(const KnownRequests& known, std::size_t request, std::int64_t num_drafts,
                                          std::int64_t row) const {
    const std::int64_t slot = arrays_.slots[request], last = arrays_.query_start_loc[request + 1] - 1;
    for (std::int64_t draft = 0; draft <= num_drafts; ++draft, ++row) {
        arrays_.logit_rows[row] = last - num_drafts + draft;
        arrays_.logit_slots[row] = slot;
        arrays_.logit_positions[row] = known.num_tokens[slot] + draft;
        arrays_.logit_drafts[row] = draft;
    }
    return num_drafts + 1;
}

void StepLayout::write_group(const GroupArrays& group, const GroupBlocks& blocks, std::size_t num_requests,
                             std::int64_t max_seq_len) const {
    const std::int64_t needed = (max_seq_len + group.block_size - 1) / group.block_size;
    const std::int64_t num_blocks = std::min(needed, static_cast<std::int64_t>(blocks.columns));
    if (num_blocks * group.split > static_cast<std::int64_t>(group.columns)) {
        throw std::length_error("a request is longer than the block table of a step");
    }
    for (std::size_t r = 0; r < num_requests; ++r) {
        const std::int32_t* ids = blocks.block_ids + static_cast<std::size_t>(arrays_.slots[r]) * blocks.columns;
        std::int32_t* row = group.block_table + r * group.columns;
        for (std::int64_t block = 0; block < num_blocks; ++block) {
            for (std::int64_t part = 0; part < group.split; ++part) {
                *row++ = static_cast<std::int32_t>(ids[block] * group.split + part);
            }
        }
        for (std::int64_t t = arrays_.query_start_loc[r]; t < arrays_.query_start_loc[r + 1]; ++t) {
            const std::int64_t position = arrays_.positions[t];
            group.slot_mapping[t] = ids[position / group.block_size] * group.block_size + position % group.block_size;
        }
    }
}

}  // namespace octavo
