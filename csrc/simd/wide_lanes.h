// Sixteen floats with the operations of lanes.h, where there are registers for them: the same numbers in each lane.
#pragma once

#include "simd/lanes.h"

namespace octavo::OCTAVO_ISA {

// As many consecutive numbers as V has lanes.
template <class V, class T>
OCTAVO_INLINE V load_as(const T* p) {
    return load(p);
}

#if OCTAVO_HAS_AVX512

template <>
OCTAVO_INLINE F32x16 load_as<F32x16, float>(const float* p) {
    return F32x16::load(p);
}
template <>
OCTAVO_INLINE F32x16 load_as<F32x16, std::uint16_t>(const std::uint16_t* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}

OCTAVO_INLINE F32x16 operator+(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
OCTAVO_INLINE F32x16 operator-(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
OCTAVO_INLINE F32x16 operator*(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
OCTAVO_INLINE F32x16 operator/(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
OCTAVO_INLINE F32x16 larger(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
OCTAVO_INLINE F32x16 smaller(F32x16 a, F32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
OCTAVO_INLINE F32x16 select_less(F32x16 a, F32x16 b, F32x16 yes, F32x16 no) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}
OCTAVO_INLINE F32x16 with_bits(F32x16 a, int mask, F32x16 others) {
    const __m512i kept = _mm512_set1_epi32(mask);
    return {_mm512_castsi512_ps(_mm512_or_si512(_mm512_and_si512(kept, _mm512_castps_si512(a.v)),
                                                _mm512_andnot_si512(kept, _mm512_castps_si512(others.v))))};
}
OCTAVO_INLINE F32x16 magnitude(F32x16 a) { return with_bits(a, 0x7fffffff, F32x16::zero()); }
OCTAVO_INLINE F32x16 with_sign_of(F32x16 a, F32x16 sign) { return with_bits(a, 0x7fffffff, sign); }
OCTAVO_INLINE F32x16 scale_by_power(F32x16 a, F32x16 shifted) {
    const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted.v), 23);
    return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a.v), exponent))};
}
// Those whose bit is set in `chosen`.
OCTAVO_INLINE F32x16 select(std::uint16_t chosen, F32x16 yes, F32x16 no) {
    return {_mm512_mask_mov_ps(no.v, chosen, yes.v)};
}

// Sixteen as eight and eight.
OCTAVO_INLINE F32x8 lower_half(F32x16 a) { return {_mm512_castps512_ps256(a.v)}; }
OCTAVO_INLINE F32x8 upper_half(F32x16 a) {
    return {_mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1))};
}
OCTAVO_INLINE float sum_lanes(F32x16 a) { return sum_lanes(lower_half(a) + upper_half(a)); }
OCTAVO_INLINE float largest_lane(F32x16 a) { return largest_lane(larger(lower_half(a), upper_half(a))); }

// The nearest bfloat16 of each, ties to even, in the upper half of its word; a NaN stays one.
OCTAVO_INLINE __m512i nearest_bfloat16(F32x16 a) {
    const __m512i bits = _mm512_castps_si512(a.v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    return _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q), sum, quiet);
}

template <class T>
OCTAVO_INLINE F32x16 round_lanes(F32x16 a) {
    if constexpr (sizeof(T) == sizeof(float)) return a;
    return {_mm512_castsi512_ps(_mm512_and_si512(nearest_bfloat16(a), _mm512_set1_epi32(static_cast<int>(0xffff0000))))};
}

OCTAVO_INLINE void store(float* p, F32x16 a) { a.store(p); }
OCTAVO_INLINE void store(std::uint16_t* p, F32x16 a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(nearest_bfloat16(a), 16)));
}

template <class T>
OCTAVO_INLINE void store_first(T* p, F32x16 a, int count) {
    T all[16];
    store(all, a);
    for (int i = 0; i < count; ++i) p[i] = all[i];
}

#endif

}  // namespace octavo::OCTAVO_ISA
