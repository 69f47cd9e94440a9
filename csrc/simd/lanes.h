// What kernels between the projections need beyond simd/vector.h: comparisons, reductions and conversions of eight
// floats. Each is one IEEE operation per lane, and sums across lanes have one fixed order.
#pragma once

#include "simd/vector.h"

namespace octavo::OCTAVO_ISA {

using Lanes = F32x8;

constexpr int kLanes = 8;

OCTAVO_INLINE Lanes broadcast(float x) { return Lanes::broadcast(x); }
OCTAVO_INLINE Lanes zero_lanes() { return Lanes::zero(); }
OCTAVO_INLINE Lanes load(const float* p) { return Lanes::load(p); }
OCTAVO_INLINE Lanes load(const std::uint16_t* p) { return load_bfloat16(p); }
OCTAVO_INLINE void store(float* p, Lanes a) { a.store(p); }

#if OCTAVO_HAS_AVX2

OCTAVO_INLINE Lanes operator/(Lanes a, Lanes b) { return {_mm256_div_ps(a.v, b.v)}; }
// The second operand where either is NaN.
OCTAVO_INLINE Lanes larger(Lanes a, Lanes b) { return {_mm256_max_ps(a.v, b.v)}; }
OCTAVO_INLINE Lanes smaller(Lanes a, Lanes b) { return {_mm256_min_ps(a.v, b.v)}; }
OCTAVO_INLINE Lanes select_less(Lanes a, Lanes b, Lanes yes, Lanes no) {
    return {_mm256_blendv_ps(no.v, yes.v, _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ))};
}
OCTAVO_INLINE Lanes magnitude(Lanes a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
OCTAVO_INLINE Lanes with_sign_of(Lanes a, Lanes sign) {
    return {_mm256_or_ps(magnitude(a).v, _mm256_and_ps(sign.v, _mm256_set1_ps(-0.0f)))};
}
// a * 2^n for the whole number n that was added to 1.5 * 2^23 to give `shifted`; the result must be a normal number.
OCTAVO_INLINE Lanes scale_by_power(Lanes a, Lanes shifted) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted.v), 23);
    return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a.v), exponent))};
}

OCTAVO_INLINE void store(std::uint16_t* p, Lanes a) {
    const __m256i bits = _mm256_castps_si256(a.v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i rounded = _mm256_srli_epi32(_mm256_blendv_epi8(sum, quiet, is_nan), 16);
    const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
}

OCTAVO_INLINE float sum_lanes(Lanes a) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

OCTAVO_INLINE float largest_lane(Lanes a) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// Rows become columns.
OCTAVO_INLINE void transpose(Lanes (&r)[8]) {
    __m256 a[8], b[8];
    for (int i = 0; i < 4; ++i) {
        a[2 * i] = _mm256_unpacklo_ps(r[2 * i].v, r[2 * i + 1].v);
        a[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i].v, r[2 * i + 1].v);
    }
    for (int i = 0; i < 8; i += 4) {
        b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
        b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
        b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
        b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
        r[i].v = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
        r[i + 4].v = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
    }
}

#else

template <class Function>
OCTAVO_INLINE Lanes each(Function function) {
    Lanes out;
    for (int i = 0; i < kLanes; ++i) out.v[i] = function(i);
    return out;
}

OCTAVO_INLINE Lanes operator/(Lanes a, Lanes b) {
    return each([&](int i) { return a.v[i] / b.v[i]; });
}
OCTAVO_INLINE Lanes larger(Lanes a, Lanes b) {
    return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
OCTAVO_INLINE Lanes smaller(Lanes a, Lanes b) {
    return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
OCTAVO_INLINE Lanes select_less(Lanes a, Lanes b, Lanes yes, Lanes no) {
    return each([&](int i) { return a.v[i] < b.v[i] ? yes.v[i] : no.v[i]; });
}
OCTAVO_INLINE Lanes magnitude(Lanes a) {
    return each([&](int i) { return as_float(as_bits(a.v[i]) & 0x7fffffffu); });
}
OCTAVO_INLINE Lanes with_sign_of(Lanes a, Lanes sign) {
    return each([&](int i) {
        return as_float((as_bits(a.v[i]) & 0x7fffffffu) | (as_bits(sign.v[i]) & 0x80000000u));
    });
}
OCTAVO_INLINE Lanes scale_by_power(Lanes a, Lanes shifted) {
    return each([&](int i) { return as_float(as_bits(a.v[i]) + (as_bits(shifted.v[i]) << 23)); });
}
OCTAVO_INLINE void store(std::uint16_t* p, Lanes a) {
    for (int i = 0; i < kLanes; ++i) p[i] = to_bfloat16(a.v[i]);
}
OCTAVO_INLINE float sum_lanes(Lanes a) {
    float four[4];
    for (int i = 0; i < 4; ++i) four[i] = a.v[i] + a.v[i + 4];
    return (four[0] + four[2]) + (four[1] + four[3]);
}
OCTAVO_INLINE float largest_lane(Lanes a) {
    float four[4];
    for (int i = 0; i < 4; ++i) four[i] = a.v[i] > a.v[i + 4] ? a.v[i] : a.v[i + 4];
    const float even = four[0] > four[2] ? four[0] : four[2], odd = four[1] > four[3] ? four[1] : four[3];
    return even > odd ? even : odd;
}
OCTAVO_INLINE void transpose(Lanes (&r)[8]) {
    Lanes out[8];
    for (int i = 0; i < 8; ++i) {
        for (int j = 0; j < 8; ++j) out[j].v[i] = r[i].v[j];
    }
    for (int i = 0; i < 8; ++i) r[i] = out[i];
}

#endif

// The first `count` numbers, and zeros.
template <class T>
OCTAVO_INLINE Lanes load_first(const T* p, int count) {
    T padded[kLanes] = {};
    for (int i = 0; i < count; ++i) padded[i] = p[i];
    return load(padded);
}

template <class T>
OCTAVO_INLINE void store_first(T* p, Lanes a, int count) {
    T all[kLanes];
    store(all, a);
    for (int i = 0; i < count; ++i) p[i] = all[i];
}

template <class T>
OCTAVO_INLINE float round_to(float value);
template <>
OCTAVO_INLINE float round_to<float>(float value) {
    return value;
}
template <>
OCTAVO_INLINE float round_to<std::uint16_t>(float value) {
    return from_bfloat16(to_bfloat16(value));
}

// What a T keeps of each lane.
template <class T>
OCTAVO_INLINE Lanes round_lanes(Lanes a) {
    T kept[kLanes];
    store(kept, a);
    return load(kept);
}
template <>
OCTAVO_INLINE Lanes round_lanes<float>(Lanes a) {
    return a;
}

}  // namespace octavo::OCTAVO_ISA
