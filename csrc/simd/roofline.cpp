#include "simd/roofline.h"

#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif
#if OCTAVO_ISA_amx
#include "simd/tiles.h"
#endif

namespace octavo::OCTAVO_ISA {
namespace {

// The compiler must take the value for unknown, so it keeps the loop around it; no instruction is added.
#define OCTAVO_OPAQUE(kind, value) __asm__ volatile("" : "+" kind(value))

#if defined(__AVX512F__)

constexpr int kChains = 16;  // more than latency times units, fewer than registers

std::uint64_t read(const char* from, std::size_t bytes) {
    __m512i sums[4] = {};
    for (const char* end = from + bytes; from != end; from += 256) {
        for (int i = 0; i < 4; ++i) sums[i] = _mm512_xor_si512(sums[i], _mm512_load_si512(from + 64 * i));
    }
    std::uint64_t words[8];
    const __m512i all = _mm512_xor_si512(_mm512_xor_si512(sums[0], sums[1]), _mm512_xor_si512(sums[2], sums[3]));
    _mm512_storeu_si512(words, all);
    return words[0];
}

void copy(const char* from, char* to, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; i += 64) {
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), _mm512_load_si512(from + i));
    }
    _mm_sfence();
}

void multiply_float32(std::size_t rounds) {
    __m512 sums[kChains] = {}, a = _mm512_set1_ps(0.5f), b = a;
    OCTAVO_OPAQUE("v", a);
    while (rounds--) {
        for (__m512& sum : sums) sum = _mm512_fmadd_ps(a, b, sum);
        for (__m512& sum : sums) OCTAVO_OPAQUE("v", sum);
    }
}

#if OCTAVO_ISA_amx

constexpr int kTileChains = 4;  // sum tiles, of two left tiles and two right ones each

// Rounds of products of whole tiles, all of zeros: the time is the same.
template <class AddProducts>
OCTAVO_INLINE void multiply_tiles(std::size_t rounds, AddProducts add_products) {
    TileShapes shapes;
    for (int tile = 0; tile < 8; ++tile) shapes.set(tile, kTileRows);
    const TileScope scope(shapes);
    while (rounds--) add_products();
}

void multiply_bfloat16(std::size_t rounds) {
    multiply_tiles(rounds, [] {
        add_products_bfloat16<0, 4, 6>(), add_products_bfloat16<1, 4, 7>();
        add_products_bfloat16<2, 5, 6>(), add_products_bfloat16<3, 5, 7>();
    });
}
void multiply_int8(std::size_t rounds) {
    multiply_tiles(rounds, [] {
        add_products_int8<0, 4, 6>(), add_products_int8<1, 4, 7>();
        add_products_int8<2, 5, 6>(), add_products_int8<3, 5, 7>();
    });
}
constexpr Multiplier kBFloat16{multiply_bfloat16, kTileChains * 16 * 16 * 32 * 2};
constexpr Multiplier kInt8{multiply_int8, kTileChains * 16 * 16 * 64 * 2};

#else

#if defined(__AVX512BF16__)
void multiply_bfloat16(std::size_t rounds) {
    __m512 sums[kChains] = {};
    __m512i bits = _mm512_set1_epi16(0x3f00);
    OCTAVO_OPAQUE("v", bits);
    const __m512bh a = (__m512bh)bits;
    while (rounds--) {
        for (__m512& sum : sums) sum = _mm512_dpbf16_ps(sum, a, a);
        for (__m512& sum : sums) OCTAVO_OPAQUE("v", sum);
    }
}
constexpr Multiplier kBFloat16{multiply_bfloat16, kChains * 32 * 2};
#else
constexpr Multiplier kBFloat16{nullptr, 0};
#endif

#if defined(__AVX512VNNI__)
void multiply_int8(std::size_t rounds) {
    __m512i sums[kChains] = {}, a = _mm512_set1_epi8(1);
    OCTAVO_OPAQUE("v", a);
    while (rounds--) {
        for (__m512i& sum : sums) sum = _mm512_dpbusd_epi32(sum, a, a);
        for (__m512i& sum : sums) OCTAVO_OPAQUE("v", sum);
    }
}
constexpr Multiplier kInt8{multiply_int8, kChains * 64 * 2};
#else
constexpr Multiplier kInt8{nullptr, 0};
#endif

#endif

constexpr Multiplier kFloat32{multiply_float32, kChains * 16 * 2};

#elif defined(__AVX2__)

constexpr int kChains = 12;
constexpr int kInt8Chains = 8;  // each needs a register more, for products that are not sums yet

std::uint64_t read(const char* from, std::size_t bytes) {
    __m256i sums[8] = {};
    for (const char* end = from + bytes; from != end; from += 256) {
        for (int i = 0; i < 8; ++i) {
            const __m256i* line = reinterpret_cast<const __m256i*>(from + 32 * i);
            sums[i] = _mm256_xor_si256(sums[i], _mm256_load_si256(line));
        }
    }
    for (int i = 1; i < 8; ++i) sums[0] = _mm256_xor_si256(sums[0], sums[i]);
    return static_cast<std::uint64_t>(_mm_cvtsi128_si64(_mm256_castsi256_si128(sums[0])));
}

void copy(const char* from, char* to, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; i += 32) {
        const __m256i part = _mm256_load_si256(reinterpret_cast<const __m256i*>(from + i));
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), part);
    }
    _mm_sfence();
}

void multiply_float32(std::size_t rounds) {
    __m256 sums[kChains] = {}, a = _mm256_set1_ps(0.5f), b = a;
    OCTAVO_OPAQUE("x", a);
    while (rounds--) {
        for (__m256& sum : sums) sum = _mm256_fmadd_ps(a, b, sum);
        for (__m256& sum : sums) OCTAVO_OPAQUE("x", sum);
    }
}

// Without a unit of its own: products of bytes, added in pairs twice, then to the sums.
void multiply_int8(std::size_t rounds) {
    __m256i sums[kInt8Chains] = {}, a = _mm256_set1_epi8(1);
    const __m256i ones = _mm256_set1_epi16(1);
    while (rounds--) {
        for (__m256i& sum : sums) {
            OCTAVO_OPAQUE("x", a);
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, a), ones));
        }
        for (__m256i& sum : sums) OCTAVO_OPAQUE("x", sum);
    }
}

constexpr Multiplier kFloat32{multiply_float32, kChains * 8 * 2};
constexpr Multiplier kBFloat16{nullptr, 0};
constexpr Multiplier kInt8{multiply_int8, kInt8Chains * 32 * 2};

#else

constexpr int kChains = 32;

std::uint64_t read(const char* from, std::size_t bytes) {
    std::uint64_t sums[4] = {};
    for (std::size_t i = 0; i < bytes; i += sizeof sums) {
        std::uint64_t words[4];
        std::memcpy(words, from + i, sizeof words);
        for (int j = 0; j < 4; ++j) sums[j] ^= words[j];
    }
    return sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
}

void copy(const char* from, char* to, std::size_t bytes) { std::memcpy(to, from, bytes); }

// A product and a sum, each rounded: a CPU without fused multiply-adds computes one in software, a hundred times slower.
void multiply_float32(std::size_t rounds) {
    float sums[kChains] = {}, a = 0.5f;
    while (rounds--) {
        __asm__ volatile("" : "+m"(a));
        for (float& sum : sums) sum += a * a;
        __asm__ volatile("" : "+m"(sums));
    }
}

constexpr Multiplier kFloat32{multiply_float32, kChains * 2};
constexpr Multiplier kBFloat16{nullptr, 0};
constexpr Multiplier kInt8{nullptr, 0};

#endif

}  // namespace

const RooflineKernels roofline_kernels{read, copy, kFloat32, kBFloat16, kInt8};

}  // namespace octavo::OCTAVO_ISA
