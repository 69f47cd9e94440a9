// The sixteen columns of a quantised panel as one value of each instruction set: bytes, integer dot products and floats.
//
// What a new instruction set gives is Bytes with `dot_of_group`, the exact integer sums; all else is a few conversions.
#pragma once

#include "simd/quantized.h"
#include "simd/vector.h"

#if OCTAVO_EMULATE_AVX512
#include "simd/columns_emulated.h"
#endif

namespace octavo::OCTAVO_ISA {

// Of each half of a group: the factor of its sums (ones, but for formats of halves).
struct HalfScales;

constexpr int log2_of(int power) { return power <= 1 ? 0 : 1 + log2_of(power / 2); }

OCTAVO_INLINE float from_half(std::uint16_t half) {
    const std::uint32_t magnitude = half & 0x7fffu, sign = (half & 0x8000u) << 16;
    if (magnitude < 0x0400u) return as_float(as_bits(static_cast<float>(magnitude) * 0x1p-24f) | sign);
    return as_float(((magnitude << 13) + (magnitude >= 0x7c00u ? 0x70000000u : 0x38000000u)) | sign);
}

#if OCTAVO_ISA_avx2

struct Columns {
    __m256 v[2];

    static OCTAVO_INLINE Columns zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
    static OCTAVO_INLINE Columns load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
    static OCTAVO_INLINE Columns broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
    static OCTAVO_INLINE Columns load_half(const char* p) {
        const auto* halves = reinterpret_cast<const __m128i*>(p);
        return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
    }
    static OCTAVO_INLINE Columns load_uint8(const char* p) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))};
    }
    OCTAVO_INLINE void store(float* p) const {
        _mm256_storeu_ps(p, v[0]);
        _mm256_storeu_ps(p + 8, v[1]);
    }
};

OCTAVO_INLINE Columns operator*(Columns a, Columns b) {
    return {_mm256_mul_ps(a.v[0], b.v[0]), _mm256_mul_ps(a.v[1], b.v[1])};
}
OCTAVO_INLINE Columns operator+(Columns a, Columns b) {
    return {_mm256_add_ps(a.v[0], b.v[0]), _mm256_add_ps(a.v[1], b.v[1])};
}
OCTAVO_INLINE Columns operator-(Columns a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_xor_ps(a.v[0], sign), _mm256_xor_ps(a.v[1], sign)};
}
OCTAVO_INLINE Columns fma(Columns a, Columns b, Columns c) {
    return {_mm256_fmadd_ps(a.v[0], b.v[0], c.v[0]), _mm256_fmadd_ps(a.v[1], b.v[1], c.v[1])};
}

struct Sums {
    __m256i v[2];
};

OCTAVO_INLINE Columns to_float(Sums a) { return {_mm256_cvtepi32_ps(a.v[0]), _mm256_cvtepi32_ps(a.v[1])}; }

// 16 columns by 4 values of k.
struct Bytes {
    __m256i v[2];

    static OCTAVO_INLINE Bytes load(const char* p) {
        const auto* vectors = reinterpret_cast<const __m256i*>(p);
        return {_mm256_loadu_si256(vectors), _mm256_loadu_si256(vectors + 1)};
    }
};

OCTAVO_INLINE Bytes operator|(Bytes a, Bytes b) {
    return {_mm256_or_si256(a.v[0], b.v[0]), _mm256_or_si256(a.v[1], b.v[1])};
}
// Bits are shifted by kLeft (to the right where negative), and those of `mask` kept.
template <int kLeft>
OCTAVO_INLINE Bytes shifted(Bytes a, int mask) {
    Bytes out;
    const __m256i kept = _mm256_set1_epi8(static_cast<char>(mask));
    for (int i = 0; i < 2; ++i) {
        __m256i moved = a.v[i];
        if constexpr (kLeft > 0) moved = _mm256_slli_epi16(moved, kLeft);
        if constexpr (kLeft < 0) moved = _mm256_srli_epi16(moved, -kLeft);
        out.v[i] = _mm256_and_si256(moved, kept);
    }
    return out;
}

struct HalfScales {
    __m256i v[2][2];  // int16, twice for each column

    static OCTAVO_INLINE HalfScales load(const char* p) {
        HalfScales scales;
        for (int half = 0; half < 2; ++half) {
            const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p) + half));
            const __m256i low = _mm256_unpacklo_epi16(wide, wide), high = _mm256_unpackhi_epi16(wide, wide);
            scales.v[half][0] = _mm256_permute2x128_si256(low, high, 0x20);
            scales.v[half][1] = _mm256_permute2x128_si256(low, high, 0x31);
        }
        return scales;
    }
};

OCTAVO_INLINE __m256i broadcast4(const void* p) {
    int bits;
    std::memcpy(&bits, p, sizeof bits);
    return _mm256_set1_epi32(bits);
}

// Products of unsigned and signed bytes are added in 16 bits, wrapping: the sum that counts fits, whatever its parts did.
// Of two neighbours maddubs would saturate, which at most six bits by -127 .. 127 never reach.
template <int kBits, int kOffset, int kRows>
OCTAVO_INLINE void dot_steps(const Bytes (&weights)[8], const ActivationGroup* x, int begin, int end,
                             __m256i (&sums)[kRows][2]) {
#pragma GCC unroll 8
    for (int s = begin; s < end; ++s) {
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
            const __m256i input = broadcast4(x[r].values + 4 * s);
            for (int i = 0; i < 2; ++i) {
                sums[r][i] = _mm256_add_epi16(sums[r][i], _mm256_maddubs_epi16(weights[s].v[i], input));
            }
        }
    }
}

template <int kOffset, int kRows>
OCTAVO_INLINE void start(const ActivationGroup* x, bool first, bool second, __m256i (&sums)[kRows][2]) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
        __m256i sum = _mm256_setzero_si256();
        if constexpr (kOffset != 0) {
            if (first) sum = broadcast4(x[r].negative_sums[0]);
            if (second) sum = _mm256_add_epi16(sum, broadcast4(x[r].negative_sums[1]));
            sum = _mm256_slli_epi16(sum, log2_of(kOffset));
        }
        sums[r][0] = sums[r][1] = sum;
    }
}

// Up to 5 bits less 16: 16 * 127 * 2 * 8 fits 16 bits. 31 * 127 * 2 fits four times.
template <int kBits, int kOffset, int kRows>
    requires(kBits <= 5)
OCTAVO_INLINE void dot_of_group(const Bytes (&weights)[8], const HalfScales&, const ActivationGroup* x,
                                Sums (&out)[kRows]) {
    constexpr int kSteps = kBits == 5 && kOffset == 0 ? 4 : 8;
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 2
    for (int s = 0; s < 8; s += kSteps) {
        __m256i sums[kRows][2];
        start<kOffset>(x, true, true, sums);
        dot_steps<kBits, kOffset>(weights, x, s, s + kSteps, sums);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
            for (int i = 0; i < 2; ++i) {
                const __m256i wide = _mm256_madd_epi16(sums[r][i], ones);
                out[r].v[i] = s == 0 ? wide : _mm256_add_epi32(out[r].v[i], wide);
            }
        }
    }
}

// 6 bits less 32: 32 * 127 * 2 * 4 fits 16 bits.
template <int kBits, int kOffset, int kRows>
    requires(kBits == 6)
OCTAVO_INLINE void dot_of_group(const Bytes (&weights)[8], const HalfScales& scales, const ActivationGroup* x,
                                Sums (&out)[kRows]) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
        __m256i sums[kRows][2];
        start<kOffset>(x, half == 0, half == 1, sums);
        dot_steps<kBits, kOffset>(weights, x, 4 * half, 4 * half + 4, sums);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
            for (int i = 0; i < 2; ++i) {
                const __m256i wide = _mm256_madd_epi16(sums[r][i], scales.v[half][i]);
                out[r].v[i] = half == 0 ? wide : _mm256_add_epi32(out[r].v[i], wide);
            }
        }
    }
}

// 8 bits less 128, as magnitudes and signs: 128 * 127 * 2 fits 16 bits once.
template <int kBits, int kOffset, int kRows>
    requires(kBits == 8)
OCTAVO_INLINE void dot_of_group(const Bytes (&weights)[8], const HalfScales&, const ActivationGroup* x,
                                Sums (&out)[kRows]) {
    const __m256i ones = _mm256_set1_epi16(1), top = _mm256_set1_epi8(static_cast<char>(0x80));
#pragma GCC unroll 8
    for (int s = 0; s < 8; ++s) {
        for (int i = 0; i < 2; ++i) {
            const __m256i weight = _mm256_xor_si256(weights[s].v[i], top), magnitude = _mm256_abs_epi8(weight);
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) {
                const __m256i input = _mm256_sign_epi8(broadcast4(x[r].values + 4 * s), weight);
                const __m256i wide = _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, input), ones);
                out[r].v[i] = s == 0 ? wide : _mm256_add_epi32(out[r].v[i], wide);
            }
        }
    }
}

#elif OCTAVO_HAS_AVX512

struct Columns {
    __m512 v;

    static OCTAVO_INLINE Columns zero() { return {_mm512_setzero_ps()}; }
    static OCTAVO_INLINE Columns load(const float* p) { return {_mm512_loadu_ps(p)}; }
    static OCTAVO_INLINE Columns broadcast(float x) { return {_mm512_set1_ps(x)}; }
    static OCTAVO_INLINE Columns load_half(const char* p) {
        return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
    }
    static OCTAVO_INLINE Columns load_uint8(const char* p) {
        return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
    }
    OCTAVO_INLINE void store(float* p) const { _mm512_storeu_ps(p, v); }
};

OCTAVO_INLINE Columns operator*(Columns a, Columns b) { return {_mm512_mul_ps(a.v, b.v)}; }
OCTAVO_INLINE Columns operator+(Columns a, Columns b) { return {_mm512_add_ps(a.v, b.v)}; }
OCTAVO_INLINE Columns operator-(Columns a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f))}; }
OCTAVO_INLINE Columns fma(Columns a, Columns b, Columns c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }

struct Sums {
    __m512i v;
};

OCTAVO_INLINE Columns to_float(Sums a) { return {_mm512_cvtepi32_ps(a.v)}; }

// 16 columns by 4 values of k.
struct Bytes {
    __m512i v;

    static OCTAVO_INLINE Bytes load(const char* p) { return {_mm512_loadu_si512(p)}; }
};

OCTAVO_INLINE Bytes operator|(Bytes a, Bytes b) { return {_mm512_or_si512(a.v, b.v)}; }
template <int kLeft>
OCTAVO_INLINE Bytes shifted(Bytes a, int mask) {
    if constexpr (kLeft > 0) a.v = _mm512_slli_epi16(a.v, kLeft);
    if constexpr (kLeft < 0) a.v = _mm512_srli_epi16(a.v, -kLeft);
    return {_mm512_and_si512(a.v, _mm512_set1_epi8(static_cast<char>(mask)))};
}

struct HalfScales {
    __m512i v[2];  // int32

    static OCTAVO_INLINE HalfScales load(const char* p) {
        const auto* halves = reinterpret_cast<const __m128i*>(p);
        return {{_mm512_cvtepi8_epi32(_mm_loadu_si128(halves)), _mm512_cvtepi8_epi32(_mm_loadu_si128(halves + 1))}};
    }
};

OCTAVO_INLINE __m512i broadcast4(const void* p) {
    int bits;
    std::memcpy(&bits, p, sizeof bits);
    return _mm512_set1_epi32(bits);
}

// Products of unsigned and signed bytes go straight into 32 bits.
template <int kOffset, int kRows>
OCTAVO_INLINE void dot_of_half(const Bytes* weights, const ActivationGroup* x, int half, __m512i (&sums)[kRows]) {
    if constexpr (kOffset != 0) {
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
            sums[r] = _mm512_dpwssd_epi32(sums[r], broadcast4(x[r].negative_sums[half]), _mm512_set1_epi16(kOffset));
        }
    }
#pragma GCC unroll 4
    for (int s = 4 * half; s < 4 * half + 4; ++s) {
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
            sums[r] = _mm512_dpbusd_epi32(sums[r], weights[s].v, broadcast4(x[r].values + 4 * s));
        }
    }
}

template <int kBits, int kOffset, int kRows>
OCTAVO_INLINE void dot_of_group(const Bytes (&weights)[8], const HalfScales& scales, const ActivationGroup* x,
                                Sums (&out)[kRows]) {
    __m512i sums[kRows];
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
            if (half == 0 || kBits == 6) sums[r] = _mm512_setzero_si512();
        }
        dot_of_half<kOffset>(weights, x, half, sums);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
            if constexpr (kBits == 6) {
                const __m512i scaled = _mm512_mullo_epi32(sums[r], scales.v[half]);
                out[r].v = half == 0 ? scaled : _mm512_add_epi32(out[r].v, scaled);
            } else if (half == 1) {
                out[r].v = sums[r];
            }
        }
    }
}

#else

struct Columns {
    float v[16];

    template <class Function>
    static OCTAVO_INLINE Columns each(Function function) {
        Columns out;
        for (int i = 0; i < 16; ++i) out.v[i] = function(i);
        return out;
    }
    static OCTAVO_INLINE Columns zero() { return broadcast(0.0f); }
    static OCTAVO_INLINE Columns broadcast(float x) {
        return each([&](int) { return x; });
    }
    static OCTAVO_INLINE Columns load(const float* p) {
        return each([&](int i) { return p[i]; });
    }
    static OCTAVO_INLINE Columns load_half(const char* p) {
        std::uint16_t halves[16];
        std::memcpy(halves, p, sizeof halves);
        return each([&](int i) { return from_half(halves[i]); });
    }
    static OCTAVO_INLINE Columns load_uint8(const char* p) {
        return each([&](int i) { return static_cast<float>(static_cast<std::uint8_t>(p[i])); });
    }
    OCTAVO_INLINE void store(float* p) const { std::memcpy(p, v, sizeof v); }
};

OCTAVO_INLINE Columns operator*(Columns a, Columns b) {
    return Columns::each([&](int i) { return a.v[i] * b.v[i]; });
}
OCTAVO_INLINE Columns operator+(Columns a, Columns b) {
    return Columns::each([&](int i) { return a.v[i] + b.v[i]; });
}
OCTAVO_INLINE Columns operator-(Columns a) {
    return Columns::each([&](int i) { return -a.v[i]; });
}
OCTAVO_INLINE Columns fma(Columns a, Columns b, Columns c) {
    return Columns::each([&](int i) { return fma(a.v[i], b.v[i], c.v[i]); });
}

struct Sums {
    std::int32_t v[16];
};

OCTAVO_INLINE Columns to_float(Sums a) {
    return Columns::each([&](int i) { return static_cast<float>(a.v[i]); });
}

struct Bytes {
    std::uint8_t v[64];

    static OCTAVO_INLINE Bytes load(const char* p) {
        Bytes out;
        std::memcpy(out.v, p, sizeof out.v);
        return out;
    }
};

OCTAVO_INLINE Bytes operator|(Bytes a, Bytes b) {
    for (int i = 0; i < 64; ++i) a.v[i] |= b.v[i];
    return a;
}
template <int kLeft>
OCTAVO_INLINE Bytes shifted(Bytes a, int mask) {
    for (std::uint8_t& byte : a.v) {
        const int moved = kLeft >= 0 ? byte << (kLeft >= 0 ? kLeft : 0) : byte >> (kLeft < 0 ? -kLeft : 0);
        byte = static_cast<std::uint8_t>(moved & mask);
    }
    return a;
}

struct HalfScales {
    std::int8_t v[2][16];

    static OCTAVO_INLINE HalfScales load(const char* p) {
        HalfScales scales;
        std::memcpy(scales.v, p, sizeof scales.v);
        return scales;
    }
};

template <int kBits, int kOffset, int kRows>
OCTAVO_INLINE void dot_of_group(const Bytes (&weights)[8], const HalfScales& scales, const ActivationGroup* x,
                                Sums (&out)[kRows]) {
    for (int r = 0; r < kRows; ++r) {
        out[r] = {};
        for (int k = 0; k < 32; ++k) {
            for (int column = 0; column < 16; ++column) {
                const int weight = weights[k / 4].v[4 * column + k % 4] - kOffset;
                const int scale = kBits == 6 ? scales.v[k / 16][column] : 1;
                out[r].v[column] += weight * x[r].values[k] * scale;
            }
        }
    }
}

#endif

}  // namespace octavo::OCTAVO_ISA
