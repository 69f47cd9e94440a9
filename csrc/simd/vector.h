// Eight float32 numbers as one value, in each instruction set to the same bit; and sixteen where there are registers for
// them.
//
// Kernels in csrc/simd are written once with this type. Each file is compiled once per instruction set, with OCTAVO_ISA
// naming the namespace, so that no inline function of one set is ever linked into another. For the same reason these
// files use nothing of the standard library that is a template or inline and not forced into its caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if OCTAVO_ISA_avx512 || OCTAVO_ISA_amx
#define OCTAVO_HAS_AVX512 1
#endif
#if OCTAVO_ISA_avx2 || OCTAVO_HAS_AVX512
#define OCTAVO_HAS_AVX2 1
#endif

#if OCTAVO_EMULATE_AVX512
#include "simd/avx512_emulated.h"
#elif OCTAVO_HAS_AVX2
#include <immintrin.h>
#else
#include <math.h>
#endif

#define OCTAVO_INLINE inline __attribute__((always_inline))

namespace octavo::OCTAVO_ISA {

OCTAVO_INLINE float as_float(std::uint32_t bits) {
    float number;
    std::memcpy(&number, &bits, sizeof number);
    return number;
}

OCTAVO_INLINE std::uint32_t as_bits(float number) {
    std::uint32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    return bits;
}

OCTAVO_INLINE float from_bfloat16(std::uint16_t number) { return as_float(static_cast<std::uint32_t>(number) << 16); }

// The nearest bfloat16, ties to even; a NaN stays one.
OCTAVO_INLINE std::uint16_t to_bfloat16(float number) {
    const std::uint32_t bits = as_bits(number);
    if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
    return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

#if OCTAVO_HAS_AVX2

struct F32x8 {
    __m256 v;

    static OCTAVO_INLINE F32x8 load(const float* p) { return {_mm256_loadu_ps(p)}; }
    static OCTAVO_INLINE F32x8 broadcast(float x) { return {_mm256_set1_ps(x)}; }
    static OCTAVO_INLINE F32x8 zero() { return {_mm256_setzero_ps()}; }
    OCTAVO_INLINE void store(float* p) const { _mm256_storeu_ps(p, v); }
};

// a * b + c, rounded once.
OCTAVO_INLINE F32x8 fma(F32x8 a, F32x8 b, F32x8 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
OCTAVO_INLINE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
OCTAVO_INLINE F32x8 operator+(F32x8 a, F32x8 b) { return {_mm256_add_ps(a.v, b.v)}; }
OCTAVO_INLINE F32x8 operator-(F32x8 a, F32x8 b) { return {_mm256_sub_ps(a.v, b.v)}; }
OCTAVO_INLINE F32x8 operator*(F32x8 a, F32x8 b) { return {_mm256_mul_ps(a.v, b.v)}; }

// Eight pairs of bfloat16: the first, or the second, of each as float32.
OCTAVO_INLINE F32x8 first_of_pairs(const std::uint16_t* pairs) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(both, 16))};
}
OCTAVO_INLINE F32x8 second_of_pairs(const std::uint16_t* pairs) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs));
    return {_mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(static_cast<int>(0xffff0000))))};
}

// Eight consecutive bfloat16 as float32.
OCTAVO_INLINE F32x8 load_bfloat16(const std::uint16_t* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
}

#else

struct F32x8 {
    float v[8];

    static OCTAVO_INLINE F32x8 load(const float* p) {
        F32x8 x;
        for (int i = 0; i < 8; ++i) x.v[i] = p[i];
        return x;
    }
    static OCTAVO_INLINE F32x8 broadcast(float number) {
        F32x8 x;
        for (float& lane : x.v) lane = number;
        return x;
    }
    static OCTAVO_INLINE F32x8 zero() { return broadcast(0.0f); }
    OCTAVO_INLINE void store(float* p) const {
        for (int i = 0; i < 8; ++i) p[i] = v[i];
    }
};

OCTAVO_INLINE float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
OCTAVO_INLINE F32x8 fma(F32x8 a, F32x8 b, F32x8 c) {
    for (int i = 0; i < 8; ++i) c.v[i] = fma(a.v[i], b.v[i], c.v[i]);
    return c;
}
OCTAVO_INLINE F32x8 operator+(F32x8 a, F32x8 b) {
    for (int i = 0; i < 8; ++i) a.v[i] += b.v[i];
    return a;
}
OCTAVO_INLINE F32x8 operator-(F32x8 a, F32x8 b) {
    for (int i = 0; i < 8; ++i) a.v[i] -= b.v[i];
    return a;
}
OCTAVO_INLINE F32x8 operator*(F32x8 a, F32x8 b) {
    for (int i = 0; i < 8; ++i) a.v[i] *= b.v[i];
    return a;
}

OCTAVO_INLINE F32x8 first_of_pairs(const std::uint16_t* pairs) {
    F32x8 x;
    for (int i = 0; i < 8; ++i) x.v[i] = from_bfloat16(pairs[2 * i]);
    return x;
}
OCTAVO_INLINE F32x8 second_of_pairs(const std::uint16_t* pairs) { return first_of_pairs(pairs + 1); }
OCTAVO_INLINE F32x8 load_bfloat16(const std::uint16_t* p) {
    F32x8 x;
    for (int i = 0; i < 8; ++i) x.v[i] = from_bfloat16(p[i]);
    return x;
}

#endif

#if OCTAVO_HAS_AVX512

struct F32x16 {
    __m512 v;

    static OCTAVO_INLINE F32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
    static OCTAVO_INLINE F32x16 broadcast(float x) { return {_mm512_set1_ps(x)}; }
    static OCTAVO_INLINE F32x16 zero() { return {_mm512_setzero_ps()}; }
    OCTAVO_INLINE void store(float* p) const { _mm512_storeu_ps(p, v); }
};

OCTAVO_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }

// Sixteen pairs of bfloat16.
struct BF16Pairs {
    __m512i v;

    static OCTAVO_INLINE BF16Pairs load(const void* p) { return {_mm512_loadu_si512(p)}; }
    static OCTAVO_INLINE BF16Pairs broadcast(std::uint32_t pair) { return {_mm512_set1_epi32(static_cast<int>(pair))}; }
    OCTAVO_INLINE void store(void* p) const { _mm512_storeu_si512(p, v); }
};

OCTAVO_INLINE BF16Pairs operator&(BF16Pairs a, BF16Pairs b) { return {_mm512_and_si512(a.v, b.v)}; }

// The nearest bfloat16 to those of `first` and then of `second`; subnormal numbers are zero.
OCTAVO_INLINE BF16Pairs round_to_pairs(F32x16 first, F32x16 second) {
#if OCTAVO_EMULATE_AVX512
    const __m512 floats[2] = {first.v, second.v};
    std::uint16_t rounded[32];
    for (int i = 0; i < 32; ++i) {
        float number;
        std::memcpy(&number, reinterpret_cast<const char*>(floats) + i * sizeof number, sizeof number);
        rounded[i] = to_bfloat16(__builtin_fabsf(number) < 0x1p-126f ? 0.0f * number : number);
    }
    return BF16Pairs::load(rounded);
#else
    return {(__m512i)_mm512_cvtne2ps_pbh(second.v, first.v)};
#endif
}

// sum + the second product of each pair, and then + the first, each rounded once; subnormal numbers are zero.
OCTAVO_INLINE F32x16 add_dot(F32x16 sum, BF16Pairs a, BF16Pairs b) {
#if OCTAVO_EMULATE_AVX512
    return {octavo_emulated_dpbf16(sum.v, a.v, b.v)};
#else
    return {_mm512_dpbf16_ps(sum.v, (__m512bh)a.v, (__m512bh)b.v)};
#endif
}

using Wide = F32x16;  // the most that one instruction takes
#else
using Wide = F32x8;
#endif

inline constexpr int kWideLanes = sizeof(Wide) / sizeof(float);

}  // namespace octavo::OCTAVO_ISA
