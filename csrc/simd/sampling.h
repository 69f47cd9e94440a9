// Passes over one row of logits, as each instruction set gives them; results are the same to the bit in all.
//
// The one order of candidates is: logit downwards, then id upwards. Logits are not NaN where not said otherwise, and an
// id at -infinity is no candidate.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd/instruction_sets.h"

namespace octavo {

// What a filter leaves, a beginning of the order: all above `value`, and of those that equal it the ids up to `last_id`.
struct Cut {
    float value;
    std::size_t last_id;

    bool keeps(float logit, std::size_t id) const { return logit > value || (logit == value && id <= last_id); }
};

struct Share {
    std::size_t count;
    double weight;
};

struct SamplingKernels {
    // NaN if any is.
    float (*largest)(const float* x, std::size_t size);
    // The lowest id with this value; `size` if there is none.
    std::size_t (*find)(const float* x, std::size_t size, float value);
    std::size_t (*count_at_least)(const float* x, std::size_t size, float value);
    // The ids with low <= x < high, ascending; returns how many.
    std::size_t (*gather)(const float* x, std::size_t size, float low, float high, std::uint32_t* ids);
    // out = x / divisor; may be in place.
    void (*divide)(const float* x, std::size_t size, float divisor, float* out);
    // weights = e^(x - best).
    void (*weigh)(const float* x, std::size_t size, float best, float* weights);
    // How many the cut keeps, and their weights summed.
    Share (*share)(const float* x, const float* weights, std::size_t size, Cut cut);
    // The winner of the exponential race among those that the cut keeps: id i arrives at e_i / weight_i, where e_i is
    // exponential number i of stream `key`. `runner` is any id that is kept and has a weight above 0.
    std::size_t (*race)(const float* x, const float* weights, std::size_t size, Cut cut, std::uint64_t key,
                        std::size_t runner);
    // The same where position i of x and weights is id ids[i], ascending; `runner` and the winner are positions.
    std::size_t (*race_among)(const std::uint32_t* ids, const float* x, const float* weights, std::size_t size, Cut cut,
                              std::uint64_t key, std::size_t runner);
    // Ids whose bit is not set become -infinity; returns the largest that is left.
    float (*mask)(float* x, std::size_t size, const std::uint32_t* bits);
};

OCTAVO_DECLARE_KERNELS(SamplingKernels, sampling_kernels)

}  // namespace octavo
