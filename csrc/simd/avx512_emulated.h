// AVX-512 intrinsics on a CPU without them, for tests alone: SIMDe's, and what it lacks or computes otherwise.
#pragma once

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

#include <immintrin.h>

static inline __m256 octavo_flush_subnormals(__m256 x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    const __m256 normal = _mm256_cmp_ps(_mm256_andnot_ps(sign, x), _mm256_set1_ps(1.17549435e-38f), _CMP_NLT_UQ);
    return _mm256_and_ps(x, _mm256_or_ps(normal, sign));
}

static inline __m256 octavo_emulated_dpbf16(__m256 sum, __m256i a, __m256i b) {
    const auto first = [](__m256i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); };
    const auto second = [](__m256i x) { return _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(-65536))); };
    const auto add = [](__m256 to, __m256 x, __m256 y) {
        return octavo_flush_subnormals(
            _mm256_fmadd_ps(octavo_flush_subnormals(x), octavo_flush_subnormals(y), octavo_flush_subnormals(to)));
    };
    return add(add(sum, second(a), second(b)), first(a), first(b));
}

static inline __m512 octavo_emulated_dpbf16(__m512 sum, __m512i a, __m512i b) {
    __m256 s[2];
    __m256i x[2], y[2];
    __builtin_memcpy(s, &sum, sizeof s);
    __builtin_memcpy(x, &a, sizeof x);
    __builtin_memcpy(y, &b, sizeof y);
    for (int half = 0; half < 2; ++half) s[half] = octavo_emulated_dpbf16(s[half], x[half], y[half]);
    __builtin_memcpy(&sum, s, sizeof s);
    return sum;
}

// Sixteen words of 16 bits, and the lower halves of sixteen of 32.
static inline __m512i octavo_emulated_cvtepu16_epi32(__m256i words) {
    unsigned short narrow[16];
    unsigned wide[16];
    __builtin_memcpy(narrow, &words, sizeof narrow);
    for (int i = 0; i < 16; ++i) wide[i] = narrow[i];
    __m512i out;
    __builtin_memcpy(&out, wide, sizeof out);
    return out;
}
static inline __m256i octavo_emulated_cvtepi32_epi16(__m512i words) {
    unsigned wide[16];
    unsigned short narrow[16];
    __builtin_memcpy(wide, &words, sizeof wide);
    for (int i = 0; i < 16; ++i) narrow[i] = static_cast<unsigned short>(wide[i]);
    __m256i out;
    __builtin_memcpy(&out, narrow, sizeof out);
    return out;
}
#define _mm512_cvtepu16_epi32 octavo_emulated_cvtepu16_epi32
#define _mm512_cvtepi32_epi16 octavo_emulated_cvtepi32_epi16
