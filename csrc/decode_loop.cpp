#include "decode_loop.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "best_columns.h"

namespace octavo {
namespace {

bool is_end(const DecodingRequests& requests, std::int64_t slot, std::int64_t token) {
    const std::int32_t* ids = requests.end_ids + static_cast<std::size_t>(slot) * requests.num_end_ids;
    return std::find(ids, ids + requests.num_end_ids, static_cast<std::int32_t>(token)) != ids + requests.num_end_ids;
}

void append(const DecodingRequests& requests, std::int64_t slot, std::int64_t token) {
    const std::int64_t place = requests.num_tokens[slot]++;
    requests.token_ids[static_cast<std::size_t>(slot) * requests.columns + static_cast<std::size_t>(place)] =
        static_cast<std::int32_t>(token);
}

}  // namespace

std::vector<std::int64_t> DecodeLoop::run(ThreadPool& pool, const DecodingRequests& requests,
                                          const std::vector<std::int64_t>& slots, std::vector<bool> going,
                                          std::size_t num_steps) const {
    std::vector<std::int64_t> tokens;
    tokens.reserve(num_steps * slots.size());
    std::iota(step_.logit_rows, step_.logit_rows + slots.size(), 0);
    bool goes_on = true;
    for (std::size_t step = 0; step < num_steps && goes_on; ++step) {
        forward(pool, requests, slots);
        const std::vector<std::int64_t> chosen = choose(pool, requests, slots);
        bool has_failed = false;
        for (std::size_t r = 0; r < slots.size(); ++r) {
            has_failed |= chosen[r] < 0;
            if (chosen[r] < 0) continue;
            append(requests, slots[r], chosen[r]);
            if (is_end(requests, slots[r], chosen[r])) going[r] = false;
        }
        tokens.insert(tokens.end(), chosen.begin(), chosen.end());
        goes_on = !has_failed && std::find(going.begin(), going.end(), true) != going.end();
    }
    return tokens;
}

void DecodeLoop::forward(ThreadPool& pool, const DecodingRequests& requests,
                         const std::vector<std::int64_t>& slots) const {
    for (const std::int64_t slot : slots) ++requests.num_computed[slot];
    const KnownRequests known{requests.token_ids, requests.columns, requests.num_tokens, requests.num_computed};
    layout_.write(known, requests.blocks, slots, std::vector<std::int64_t>(slots.size(), 1));
    step_.forward->replay(pool, slots.size(), slots.size());
}

std::vector<std::int64_t> DecodeLoop::choose(ThreadPool& pool, const DecodingRequests& requests,
                                             const std::vector<std::int64_t>& slots) const {
    std::vector<std::int64_t> best = best_tokens(pool, requests, slots);
    if (!best.empty()) return best;
    step_.logits_graph->replay(pool, slots.size(), slots.size());
    std::vector<std::int64_t> positions(slots.size());
    for (std::size_t r = 0; r < slots.size(); ++r) positions[r] = requests.num_tokens[slots[r]];
    return choose_usable_tokens(pool, step_.logits, step_.vocab_size, requests.choices, requests.num_text_tokens, slots,
                                positions);
}

// Where many requests all take the best token and each has one, without logits that anybody stores; else none.
std::vector<std::int64_t> DecodeLoop::best_tokens(ThreadPool& pool, const DecodingRequests& requests,
                                                  const std::vector<std::int64_t>& slots) const {
    if (slots.size() < kLeastRowsOfBest) return {};
    for (const std::int64_t slot : slots) {
        if (requests.choices[slot].temperature != 0.0f) return {};
    }
    step_.best_graph->replay(pool, slots.size(), slots.size());
    std::vector<std::int64_t> tokens(slots.size());
    for (std::size_t r = 0; r < slots.size(); ++r) {
        tokens[r] = static_cast<std::int64_t>(step_.best[2 * r + 1]);
        if (!std::isfinite(step_.best[2 * r]) || tokens[r] >= requests.num_text_tokens[slots[r]]) return {};
    }
    return tokens;
}

}  // namespace octavo
