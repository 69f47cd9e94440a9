#include "sampling.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "isa.h"
#include "simd/sampling.h"

namespace octavo {
namespace {

constexpr IsaTable<SamplingKernels> kKernels OCTAVO_ISA_TABLE(sampling_kernels);
KernelCounter sampler_counter{"sampler"}, logprobs_counter{"logprobs"},
    mask_counter{"mask_tokens"};

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::size_t kFew = 256;           // candidates worth a sort
constexpr int kHalvings = 20;               // of a distance; of what floats there are between two values, after those
constexpr std::size_t kEverything = std::numeric_limits<std::size_t>::max();

// ---- Random streams: as in device/sample/random_numbers.py ----

std::uint64_t stream_key(const RowChoice& choice) {
    std::uint32_t c0 = static_cast<std::uint32_t>(choice.position), c1 = static_cast<std::uint32_t>(choice.choice_index);
    std::uint32_t c2 = choice.purpose, c3 = 0;
    std::uint32_t k0 = static_cast<std::uint32_t>(choice.seed), k1 = static_cast<std::uint32_t>(choice.seed >> 32);
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t low = std::uint64_t{c0} * 0xD2511F53u, high = std::uint64_t{c2} * 0xCD9E8D57u;
        c0 = static_cast<std::uint32_t>(high >> 32) ^ c1 ^ k0;
        c1 = static_cast<std::uint32_t>(high);
        c2 = static_cast<std::uint32_t>(low >> 32) ^ c3 ^ k1;
        c3 = static_cast<std::uint32_t>(low);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return std::uint64_t{c0} << 32 | c1;
}

// ---- One row ----

// Floats in their order, as integers.
std::int64_t place_of(float value) {
    const std::int32_t bits = std::bit_cast<std::int32_t>(value);
    return bits < 0 ? std::int64_t{std::numeric_limits<std::int32_t>::min()} - bits : bits;
}
float float_at(std::int64_t place) {
    const std::int64_t bits = place < 0 ? std::int64_t{std::numeric_limits<std::int32_t>::min()} - place : place;
    return std::bit_cast<float>(static_cast<std::int32_t>(bits));
}

struct Order {
    const float* x;

    bool operator()(std::uint32_t a, std::uint32_t b) const { return x[a] > x[b] || (x[a] == x[b] && a < b); }
};

// A row's logits after temperature and the weights they give; memory is kept, for a step calls once a row.
class Row {
public:
    // logits may lie in memory of this thread's Row only as long as they are its own.
    Row(const SamplingKernels& kernels, const float* logits, std::size_t size)
        : kernels_(kernels), x_(logits), size_(size), best_(kernels.largest(logits, size)) {}

    const float* logits() const { return x_; }
    float best() const { return best_; }
    std::size_t best_id() const { return kernels_.find(x_, size_, best_); }

    Cut all() const { return {-FLT_MAX, kEverything}; }

    Cut narrowed_by_min_p(Cut cut, double min_p) const {
        const float floor = best_ + static_cast<float>(std::log(min_p));
        return floor > cut.value ? Cut{floor, kEverything} : cut;
    }

    Cut narrowed_by_top_k(Cut cut, std::size_t k) const {
        if (kernels_.count_at_least(x_, size_, cut.value) <= k) return cut;  // cuts before this one end on a value
        const auto measure = [&](float value) {
            const std::size_t count = kernels_.count_at_least(x_, size_, value);
            return Share{count, static_cast<double>(count)};
        };
        Band band = narrow(cut, static_cast<double>(k), measure);
        const auto nth = band.ids.begin() + static_cast<std::ptrdiff_t>(k - band.above.count - 1);
        std::nth_element(band.ids.begin(), nth, band.ids.end(), order());
        return {x_[*nth], *nth};
    }

    Cut narrowed_by_top_p(Cut cut, double top_p) {
        const double needed = top_p * share(cut).weight;
        Band band = narrow(cut, needed, [&](float value) { return share(value > cut.value ? Cut{value, kEverything} : cut); });
        if (!std::ranges::is_sorted(band.ids, order())) std::ranges::sort(band.ids, order());
        double sum = band.above.weight;
        for (const std::uint32_t id : band.ids) {
            sum += static_cast<double>(weights()[id]);
            if (sum >= needed) return {x_[id], id};
        }
        return cut;
    }

    Share share(Cut cut) { return kernels_.share(x_, weights(), size_, cut); }

    std::size_t race(Cut cut, std::uint64_t key) {
        return kernels_.race(x_, weights(), size_, cut, key, best_id());
    }

    std::size_t race_among(const std::uint32_t* ids, Cut cut, std::uint64_t key) {
        return kernels_.race_among(ids, x_, weights(), size_, cut, key, best_id());
    }

    // The candidates that the cut keeps, in order.
    std::vector<std::uint32_t> ordered(Cut cut) const {
        std::vector<std::uint32_t> ids = between(cut, cut.value, kInfinity);
        std::ranges::sort(ids, order());
        return ids;
    }

private:
    // Candidates with values in [low, high), which hold the one where a sum reaches what is needed; `above` are those
    // from high on.
    struct Band {
        Share above;
        std::vector<std::uint32_t> ids;
    };

    // measure(value) is what candidates from `value` on come to; it grows as value falls.
    template <class Measure>
    Band narrow(Cut cut, double needed, Measure measure) const {
        float low = best_, high = kInfinity, distance = 1.0f;
        Share above{0, 0.0}, found{0, 0.0};
        for (;; distance *= 2.0f) {
            low = std::max(best_ - distance, cut.value);
            found = measure(low);
            if (found.weight >= needed || low == cut.value) break;
            high = low;
            above = found;
        }
        for (int step = 0; found.count - above.count > kFew; ++step) {
            const float end = std::min(high, best_);
            float middle = low + (end - low) * 0.5f;
            if (step > kHalvings || middle <= low) middle = float_at((place_of(low) + place_of(high)) / 2);
            if (middle <= low || middle >= high) break;  // one value is left
            const Share upper = measure(middle);
            if (upper.weight >= needed) {
                low = middle;
                found = upper;
            } else {
                high = middle;
                above = upper;
            }
        }
        return {above, between(cut, low, high)};
    }

    std::vector<std::uint32_t> between(Cut cut, float low, float high) const {
        static thread_local std::vector<std::uint32_t> memory;
        if (memory.size() < size_) memory.resize(size_);
        const std::size_t count = kernels_.gather(x_, size_, low, high, memory.data());
        std::vector<std::uint32_t> ids(memory.begin(), memory.begin() + static_cast<std::ptrdiff_t>(count));
        std::erase_if(ids, [&](std::uint32_t id) { return !cut.keeps(x_[id], id); });
        return ids;
    }

    Order order() const { return {x_}; }

    const float* weights() {
        static thread_local std::vector<float> memory;
        if (!weights_) {
            if (memory.size() < size_) memory.resize(size_);
            kernels_.weigh(x_, size_, best_, memory.data());
            weights_ = memory.data();
        }
        return weights_;
    }

    const SamplingKernels& kernels_;
    const float* x_;
    const std::size_t size_;
    const float best_;
    const float* weights_ = nullptr;
};

const float* after_temperature(const SamplingKernels& kernels, const float* logits, std::size_t size, float divisor) {
    static thread_local std::vector<float> memory;
    if (memory.size() < size) memory.resize(size);
    kernels.divide(logits, size, divisor, memory.data());
    return memory.data();
}

Cut filtered(Row& row, const RowChoice& choice) {
    Cut cut = row.all();
    if (choice.min_p > 0.0) cut = row.narrowed_by_min_p(cut, choice.min_p);
    if (choice.top_k > 0) cut = row.narrowed_by_top_k(cut, static_cast<std::size_t>(choice.top_k));
    if (choice.top_p < 1.0) cut = row.narrowed_by_top_p(cut, choice.top_p);
    return cut;
}

// The ids of all candidates where they are few, as grammars leave them; none where they are many.
std::vector<std::uint32_t> few_candidates(const SamplingKernels& kernels, const float* logits, std::size_t size) {
    constexpr std::size_t kAtOnce = 1024;
    std::uint32_t found[kFew + kAtOnce];
    std::size_t count = 0;
    for (std::size_t start = 0; start < size; start += kAtOnce) {
        const std::size_t first = count;
        count += kernels.gather(logits + start, std::min(kAtOnce, size - start), -FLT_MAX, kInfinity, found + first);
        if (count > kFew) return {};
        for (std::size_t i = first; i < count; ++i) found[i] += static_cast<std::uint32_t>(start);
    }
    return {found, found + count};
}

// As `choose`, with work for the candidates alone.
std::size_t choose_among(const SamplingKernels& kernels, const std::vector<std::uint32_t>& ids, float* logits,
                         std::size_t size, const RowChoice& choice, bool keep) {
    float x[kFew];
    for (std::size_t i = 0; i < ids.size(); ++i) x[i] = logits[ids[i]] / choice.temperature;
    Row row(kernels, x, ids.size());
    const Cut cut = filtered(row, choice);
    if (keep) {
        std::fill(logits, logits + size, -kInfinity);
        for (std::size_t i = 0; i < ids.size(); ++i) {
            if (cut.keeps(x[i], i)) logits[ids[i]] = x[i];
        }
    }
    return ids[row.race_among(ids.data(), cut, stream_key(choice))];
}

std::size_t choose(const SamplingKernels& kernels, float* logits, std::size_t size, const RowChoice& choice, bool keep) {
    if (choice.temperature == 0.0f) return Row(kernels, logits, size).best_id();
    const std::vector<std::uint32_t> few = few_candidates(kernels, logits, size);
    if (!few.empty()) return choose_among(kernels, few, logits, size, choice, keep);
    Row row(kernels, after_temperature(kernels, logits, size, choice.temperature), size);
    const Cut cut = filtered(row, choice);
    if (keep) {
        for (std::size_t id = 0; id < size; ++id) {
            logits[id] = cut.keeps(row.logits()[id], id) ? row.logits()[id] : -kInfinity;
        }
    }
    return row.race(cut, stream_key(choice));
}

void score(const SamplingKernels& kernels, const LogprobsCall& call, std::size_t r) {
    const float* x = call.logits + r * call.vocab_size;
    Row row(kernels, x, call.vocab_size);
    const double log_sum = std::log(row.share(row.all()).weight);
    const auto logprob = [&](std::size_t id) {
        return static_cast<float>(static_cast<double>(x[id]) - static_cast<double>(row.best()) - log_sum);
    };
    const auto token = static_cast<std::size_t>(call.tokens[r]);
    call.token_logprobs[r] = logprob(token);
    call.ranks[r] = static_cast<std::int64_t>(row.share({x[token], token}).count);
    if (call.num_best[r] == 0) {
        call.counts[r] = 0;
        return;
    }
    const Cut cut = row.narrowed_by_top_k(row.all(), static_cast<std::size_t>(call.num_best[r]));
    std::size_t place = r * call.width;
    const std::vector<std::uint32_t> ids = row.ordered(cut);
    for (const std::uint32_t id : ids) {
        call.ids[place] = id;
        call.values[place++] = logprob(id);
    }
    call.counts[r] = static_cast<std::int64_t>(ids.size());
}

// Whether a token can be taken, also when the ids from num_text on are left out, which this does.
bool is_usable(const SamplingKernels& kernels, float* logits, std::size_t size, std::size_t num_text) {
    if (!std::isfinite(kernels.largest(logits, size))) return false;
    if (num_text == size) return true;
    std::fill(logits + num_text, logits + size, -kInfinity);
    return std::isfinite(kernels.largest(logits, size));
}

// take(r, its choice) for each row.
template <class Take>
std::vector<std::int64_t> take_tokens(ThreadPool& pool, const RowChoice* choices, const std::vector<std::int64_t>& slots,
                                      const std::vector<std::int64_t>& positions, const Take& take) {
    sampler_counter.add(kKernels.chosen());
    std::vector<std::int64_t> tokens(slots.size());
    pool.run(slots.size(), [&](std::size_t r, int) {
        RowChoice choice = choices[slots[r]];
        choice.position = positions[r];
        tokens[r] = take(r, choice);
    });
    return tokens;
}

// ---- Masks ----

bool mask_row(const SamplingKernels& kernels, float* logits, std::size_t vocab_size, const std::uint32_t* bits,
              std::size_t num_words) {
    const std::size_t covered = std::min(vocab_size, num_words * 32);
    std::fill(logits + covered, logits + vocab_size, -kInfinity);
    return kernels.mask(logits, covered, bits) > -kInfinity;
}

}  // namespace

bool mask_tokens(ThreadPool& pool, float* logits, std::size_t vocab_size, const std::int64_t* rows, std::size_t num_rows,
                 const std::uint32_t* bits, std::size_t num_words) {
    mask_counter.add(kKernels.chosen());
    const SamplingKernels& kernels = kKernels.active();
    std::vector<char> has_candidate(num_rows);
    pool.run(num_rows, [&](std::size_t i, int) {
        float* row = logits + static_cast<std::size_t>(rows[i]) * vocab_size;
        has_candidate[i] = mask_row(kernels, row, vocab_size, bits + i * num_words, num_words);
    });
    return std::ranges::all_of(has_candidate, std::identity{});
}

std::vector<std::pair<std::size_t, float>> unusable_rows(ThreadPool& pool, const float* logits, std::size_t num_rows,
                                                         std::size_t vocab_size) {
    const SamplingKernels& kernels = kKernels.active();
    std::vector<float> maxima(num_rows);
    pool.run(num_rows, [&](std::size_t r, int) { maxima[r] = kernels.largest(logits + r * vocab_size, vocab_size); });
    std::vector<std::pair<std::size_t, float>> found;
    for (std::size_t r = 0; r < num_rows; ++r) {
        if (!std::isfinite(maxima[r])) found.emplace_back(r, maxima[r]);
    }
    return found;
}

std::vector<std::int64_t> choose_tokens(ThreadPool& pool, float* logits, std::size_t vocab_size, const RowChoice* choices,
                                        const std::vector<std::int64_t>& slots,
                                        const std::vector<std::int64_t>& positions, bool keep) {
    if (slots.size() != positions.size()) throw std::invalid_argument("each row has a slot and a position");
    const SamplingKernels& kernels = kKernels.active();
    return take_tokens(pool, choices, slots, positions, [&](std::size_t r, const RowChoice& choice) {
        return static_cast<std::int64_t>(choose(kernels, logits + r * vocab_size, vocab_size, choice, keep));
    });
}

std::vector<std::int64_t> choose_usable_tokens(ThreadPool& pool, float* logits, std::size_t vocab_size,
                                               const RowChoice* choices, const std::int64_t* num_text_tokens,
                                               const std::vector<std::int64_t>& slots,
                                               const std::vector<std::int64_t>& positions) {
    const SamplingKernels& kernels = kKernels.active();
    return take_tokens(pool, choices, slots, positions, [&](std::size_t r, const RowChoice& choice) {
        float* row = logits + r * vocab_size;
        const auto num_text = std::min(static_cast<std::size_t>(num_text_tokens[slots[r]]), vocab_size);
        if (!is_usable(kernels, row, vocab_size, num_text)) return std::int64_t{-1};
        return static_cast<std::int64_t>(choose(kernels, row, vocab_size, choice, false));
    });
}

void log_probabilities(ThreadPool& pool, const LogprobsCall& call) {
    logprobs_counter.add(kKernels.chosen());
    const SamplingKernels& kernels = kKernels.active();
    pool.run(call.num_rows, [&](std::size_t r, int) { score(kernels, call, r); });
}

}  // namespace octavo
