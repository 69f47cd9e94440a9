// 32 activations as eight bits and a scale.
#pragma once

#include "simd/lanes.h"
#include "simd/quantized.h"

namespace octavo::OCTAVO_ISA {

// The nearest whole numbers, ties to even, of numbers far below 2^22 are the low bits of this sum.
constexpr float kWhole = 12582912.0f;  // 1.5 * 2^23
// Below, a quotient by the largest number would overflow; such numbers count as zeros.
constexpr float kSmallest = 1e-36f;

// The low byte of each number's bits becomes a value, and their sums are taken; returns the sum of all.
#if OCTAVO_HAS_AVX2

OCTAVO_INLINE int pack_values(const Lanes (&numbers)[4], ActivationGroup& out) {
    __m256i words[4];
    for (int i = 0; i < 4; ++i) {
        words[i] = _mm256_and_si256(_mm256_castps_si256(numbers[i].v), _mm256_set1_epi32(0xff));
    }
    const __m256i packed = _mm256_packus_epi16(_mm256_packus_epi32(words[0], words[1]), _mm256_packus_epi32(words[2], words[3]));
    const __m256i values = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.values), values);
    // Pairs of neighbours; of each half the even ones and the odd ones are added.
    __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), values);
    pairs = _mm256_add_epi16(pairs, _mm256_srli_si256(pairs, 8));
    pairs = _mm256_add_epi16(pairs, _mm256_srli_si256(pairs, 4));
    const __m256i negative = _mm256_sub_epi16(_mm256_setzero_si256(), pairs);
    const int halves[2] = {_mm256_extract_epi32(negative, 0), _mm256_extract_epi32(negative, 4)};
    std::memcpy(out.negative_sums, halves, sizeof halves);
    return -(out.negative_sums[0][0] + out.negative_sums[0][1] + out.negative_sums[1][0] + out.negative_sums[1][1]);
}

#else

OCTAVO_INLINE int pack_values(const Lanes (&numbers)[4], ActivationGroup& out) {
    for (std::size_t i = 0; i < kGroup; ++i) out.values[i] = static_cast<std::int8_t>(as_bits(numbers[i / 8].v[i % 8]));
    int total = 0;
    for (int half = 0; half < 2; ++half) {
        for (int pair = 0; pair < 2; ++pair) {
            int sum = 0;
            for (int s = 0; s < 4; ++s) {
                const std::int8_t* two = out.values + 16 * half + 4 * s + 2 * pair;
                sum += two[0] + two[1];
            }
            out.negative_sums[half][pair] = static_cast<std::int16_t>(-sum);
            total += sum;
        }
    }
    return total;
}

#endif

OCTAVO_INLINE void quantize_group(const Lanes (&x)[4], ActivationGroup& out) {
    Lanes most = zero_lanes(), problem = zero_lanes();
    for (const Lanes& each : x) {
        most = larger(most, magnitude(each));
        problem = problem + (each - each);  // NaN where one is not finite
    }
    const float largest = largest_lane(most), not_finite = sum_lanes(problem);
    const Lanes inverse = broadcast(largest > kSmallest ? 127.0f / largest : 0.0f);
    Lanes shifted[4];
    for (int i = 0; i < 4; ++i) shifted[i] = x[i] * inverse + broadcast(kWhole);
    const int total = pack_values(shifted, out);
    out.scale = (largest > kSmallest ? largest / 127.0f : 0.0f) + not_finite;
    out.sum = out.scale * static_cast<float>(total);
}

}  // namespace octavo::OCTAVO_ISA
