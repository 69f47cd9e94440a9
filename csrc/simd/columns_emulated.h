// What SIMDe lacks of the AVX-512 that quantised kernels use: for tests alone.
#pragma once

// Conversions of sixteen numbers, which SIMDe has for eight at a time.
template <class Out, class Convert>
static inline Out octavo_emulated_halves(Convert convert) {
    const decltype(convert(0)) halves[2] = {convert(0), convert(1)};
    Out out;
    static_assert(sizeof halves == sizeof out);
    __builtin_memcpy(&out, halves, sizeof out);
    return out;
}

static inline __m128i octavo_upper(__m128i x, int half) { return half ? _mm_srli_si128(x, 8) : x; }

static inline __m512 octavo_emulated_cvtph(__m256i x) {
    return octavo_emulated_halves<__m512>([&](int half) {
        return _mm256_cvtph_ps(half ? _mm256_extracti128_si256(x, 1) : _mm256_castsi256_si128(x));
    });
}

static inline __m512i octavo_emulated_cvtepu8(__m128i x) {
    return octavo_emulated_halves<__m512i>([&](int half) { return _mm256_cvtepu8_epi32(octavo_upper(x, half)); });
}

static inline __m512i octavo_emulated_cvtepi8(__m128i x) {
    return octavo_emulated_halves<__m512i>([&](int half) { return _mm256_cvtepi8_epi32(octavo_upper(x, half)); });
}

static inline __m512 octavo_emulated_cvtepi32(__m512i x) {
    __m256i halves[2];
    __builtin_memcpy(halves, &x, sizeof halves);
    return octavo_emulated_halves<__m512>([&](int half) { return _mm256_cvtepi32_ps(halves[half]); });
}

#define _mm512_cvtph_ps octavo_emulated_cvtph
#define _mm512_cvtepu8_epi32 octavo_emulated_cvtepu8
#define _mm512_cvtepi8_epi32 octavo_emulated_cvtepi8
#define _mm512_cvtepi32_ps octavo_emulated_cvtepi32
