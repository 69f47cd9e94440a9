// Strips of the cache (kv_cache.h) as kernels read and write them.
#pragma once

#include "kv_cache.h"
#include "simd/hadamard.h"
#include "simd/row_lanes.h"

namespace octavo::OCTAVO_ISA {

using Half = std::uint16_t;
using Byte = std::int8_t;

// Vectors that an entry of a strip's keys takes.
constexpr int kParts = kKeysPerStrip / kLanes;

// Entries of a word: of a key those of consecutive places, of values those of consecutive tokens.
template <class Cache>
inline constexpr int kPack = static_cast<int>(4 / sizeof(Cache));

template <class Cache>
inline constexpr bool kHasScales = sizeof(Cache) == 1;

template <class Cache>
struct Strip {
    char* keys_start;
    int head_size;

    OCTAVO_INLINE std::size_t part_bytes() const {
        return kKeysPerStrip * (head_size * sizeof(Cache) + (kHasScales<Cache> ? sizeof(float) : 0));
    }
    OCTAVO_INLINE Cache* keys() const { return reinterpret_cast<Cache*>(keys_start); }
    OCTAVO_INLINE Cache* values() const { return reinterpret_cast<Cache*>(keys_start + part_bytes()); }
    OCTAVO_INLINE float* key_scales() const { return reinterpret_cast<float*>(keys() + kKeysPerStrip * head_size); }
    OCTAVO_INLINE float* value_scales() const { return reinterpret_cast<float*>(values() + kKeysPerStrip * head_size); }

    // Brings part `part` of `num_parts` of keys and values into the second-level cache.
    OCTAVO_INLINE void read_ahead(int part, int num_parts) const {
        const std::size_t lines = (2 * part_bytes() + 63) / 64;
        for (std::size_t i = lines * part / num_parts; i < lines * (part + 1) / num_parts; ++i) {
            __builtin_prefetch(keys_start + i * 64, 0, 2);
        }
    }
};

// The strip that holds a token of a block.
template <class Cache>
OCTAVO_INLINE Strip<Cache> strip_of(const KvCache& cache, std::int64_t block, int kv_head, int token) {
    Strip<Cache> strip{cache.data + block * cache.block_bytes, cache.head_size};
    strip.keys_start += (kv_head * (cache.block_size / kKeysPerStrip) + token / kKeysPerStrip) * 2 * strip.part_bytes();
    return strip;
}

template <class Cache>
OCTAVO_INLINE Strip<Cache> strip_of_slot(const KvCache& cache, int kv_head, std::int64_t slot) {
    return strip_of<Cache>(cache, slot / cache.block_size, kv_head, static_cast<int>(slot % cache.block_size));
}

// ---- Words ----

// Entry kAt of each of the words of kLanes keys, or value entries, as float32.
template <int kAt>
OCTAVO_INLINE Lanes word_entries(const float* words) {
    static_assert(kAt == 0);
    return load(words);
}
template <int kAt>
OCTAVO_INLINE Lanes word_entries(const Half* words) {
    return kAt == 0 ? first_of_pairs(words) : second_of_pairs(words);
}
template <int kAt>
OCTAVO_INLINE Lanes word_entries(const Byte* words) {
#if OCTAVO_HAS_AVX2
    const __m256i quads = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
    return {_mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(quads, 24 - 8 * kAt), 24))};
#else
    float entries[kLanes];
    for (int i = 0; i < kLanes; ++i) entries[i] = static_cast<float>(words[4 * i + kAt]);
    return load(entries);
#endif
}

// ---- Writing a token ----

// What a token's entries are divided by to be whole numbers of -127 .. 127, and its inverse. A number that is not finite
// makes the scale NaN, and with it all that is read.
struct TokenScale {
    float scale, inverse;
};

OCTAVO_INLINE TokenScale token_scale(const float* entries, int head_size) {
    float largest = 0.0f, poison = 0.0f;
    for (int i = 0; i < head_size; ++i) {
        const float size = entries[i] < 0.0f ? -entries[i] : entries[i];
        largest = size > largest ? size : largest;
        poison += entries[i] * 0.0f;
    }
    return {largest / 127.0f + poison, largest > 0.0f && poison == 0.0f ? 127.0f / largest : 0.0f};
}

// The nearest whole number, ties to even: adding 1.5 * 2^23 leaves it in the last bits.
OCTAVO_INLINE Byte nearest_byte(float number) {
    return static_cast<Byte>(static_cast<std::uint8_t>(as_bits(number + 12582912.0f)));
}

// One token's entries, as they are stored, in the words of its strip.
template <class Cache>
OCTAVO_INLINE void spread_key(Strip<Cache> strip, int token, const Cache* entries) {
    constexpr int p = kPack<Cache>;
    Cache* to = strip.keys() + token * p;
    for (int d = 0; d < strip.head_size; d += p, to += kKeysPerStrip * p) std::memcpy(to, entries + d, p * sizeof(Cache));
}
template <class Cache>
OCTAVO_INLINE void spread_value(Strip<Cache> strip, int token, const Cache* entries) {
    constexpr int p = kPack<Cache>;
    Cache* to = strip.values() + token / p * strip.head_size * p + token % p;
    for (int d = 0; d < strip.head_size; ++d) to[d * p] = entries[d];
}

// Stores a token's key, which is lost by it.
OCTAVO_INLINE void store_key(Strip<float> strip, int token, float* key) { spread_key(strip, token, key); }
OCTAVO_INLINE void store_value(Strip<float> strip, int token, const float* value) { spread_value(strip, token, value); }

OCTAVO_INLINE void store_key(Strip<Half> strip, int token, float* key) {
    Half rounded[kMaxHeadSize];
    convert(key, strip.head_size, rounded);
    spread_key(strip, token, rounded);
}
OCTAVO_INLINE void store_value(Strip<Half> strip, int token, const float* value) {
    Half rounded[kMaxHeadSize];
    convert(value, strip.head_size, rounded);
    spread_value(strip, token, rounded);
}

// entries / scale as the nearest whole numbers; returns the scale.
OCTAVO_INLINE float to_bytes(const float* entries, int head_size, Byte* whole) {
    const TokenScale scale = token_scale(entries, head_size);
    for (int d = 0; d < head_size; ++d) whole[d] = nearest_byte(entries[d] * scale.inverse);
    return scale.scale;
}
// Keys are transformed: models have some with a few very large entries, which would leave the others few steps.
OCTAVO_INLINE void store_key(Strip<Byte> strip, int token, float* key) {
    Byte whole[kMaxHeadSize];
    hadamard(key, strip.head_size);
    strip.key_scales()[token] = to_bytes(key, strip.head_size, whole);
    spread_key(strip, token, whole);
}
OCTAVO_INLINE void store_value(Strip<Byte> strip, int token, const float* value) {
    Byte whole[kMaxHeadSize];
    strip.value_scales()[token] = to_bytes(value, strip.head_size, whole);
    spread_value(strip, token, whole);
}

}  // namespace octavo::OCTAVO_ISA
