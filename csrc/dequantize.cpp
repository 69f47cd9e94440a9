#include "dequantize.h"

#include <bit>
#include <cstring>

#include "half.h"

// Every product and every sum is rounded, in the order of operations of the format's reference. The loops are plain, and
// the compiler vectorises them: at the baseline they are already faster than memory takes their output.
namespace octavo {
namespace {

using Byte = std::uint8_t;

std::uint16_t load_u16(const Byte* p) {
    std::uint16_t value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

float load_half(const Byte* p) { return half_to_float(load_u16(p)); }

std::uint16_t float_to_bfloat16(float value) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

// The formats. `decode` turns one block into `size` floats. Fields are named as the format's authors name them: `qs` the
// low bits, `qh` the high bits, `d` the scale and `m` the minimum.

struct F32 {
    static constexpr std::size_t bytes = 4, size = 1;
    static void decode(const Byte* __restrict b, float* __restrict out) { std::memcpy(out, b, 4); }
};

struct F16 {
    static constexpr std::size_t bytes = 2, size = 1;
    static void decode(const Byte* __restrict b, float* __restrict out) { *out = load_half(b); }
};

struct BF16 {
    static constexpr std::size_t bytes = 2, size = 1;
    static void decode(const Byte* __restrict b, float* __restrict out) {
        *out = std::bit_cast<float>(static_cast<std::uint32_t>(load_u16(b)) << 16);
    }
};

struct Q8_0 {
    static constexpr std::size_t bytes = 34, size = 32;
    static void decode(const Byte* __restrict b, float* __restrict out) {
        const float d = load_half(b);
        for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(static_cast<std::int8_t>(b[2 + j])) * d;
    }
};

struct Q4_0 {
    static constexpr std::size_t bytes = 18, size = 32;
    static void decode(const Byte* __restrict b, float* __restrict out) {
        const float d = load_half(b);
        const Byte* qs = b + 2;
        for (int j = 0; j < 16; ++j) {
            out[j] = static_cast<float>((qs[j] & 15) - 8) * d;
            out[j + 16] = static_cast<float>((qs[j] >> 4) - 8) * d;
        }
    }
};

struct Q4_1 {
    static constexpr std::size_t bytes = 20, size = 32;
    static void decode(const Byte* __restrict b, float* __restrict out) {
        const float d = load_half(b), m = load_half(b + 2);
        const Byte* qs = b + 4;
        for (int j = 0; j < 16; ++j) {
            out[j] = static_cast<float>(qs[j] & 15) * d + m;
            out[j + 16] = static_cast<float>(qs[j] >> 4) * d + m;
        }
    }
};

// The 32 numbers of a Q5 block: bit j of `qh` is the fifth bit of number j.
void unpack_q5(const Byte* __restrict qs, const Byte* __restrict qh, Byte* __restrict q) {
    static constexpr Byte bits[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    Byte high[32];
    for (int j = 0; j < 32; ++j) high[j] = qh[j / 8];
    for (int j = 0; j < 16; ++j) {
        q[j] = (qs[j] & 15) | ((high[j] & bits[j]) != 0 ? 16 : 0);
        q[j + 16] = (qs[j] >> 4) | ((high[j + 16] & bits[j]) != 0 ? 16 : 0);
    }
}

struct Q5_0 {
    static constexpr std::size_t bytes = 22, size = 32;
    static void decode(const Byte* __restrict b, float* __restrict out) {
        const float d = load_half(b);
        Byte q[32];
        unpack_q5(b + 6, b + 2, q);
        for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(q[j] - 16) * d;
    }
};

struct Q5_1 {
    static constexpr std::size_t bytes = 24, size = 32;
    static void decode(const Byte* __restrict b, float* __restrict out) {
        const float d = load_half(b), m = load_half(b + 2);
        Byte q[32];
        unpack_q5(b + 8, b + 4, q);
        for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(q[j]) * d + m;
    }
};

struct IQ4_NL {
    static constexpr std::size_t bytes = 18, size = 32;
    static constexpr float values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    static void decode(const Byte* __restrict b, float* __restrict out) {
        const float d = load_half(b);
        const Byte* qs = b + 2;
        for (int j = 0; j < 16; ++j) {
            out[j] = values[qs[j] & 15] * d;
            out[j + 16] = values[qs[j] >> 4] * d;
        }
    }
};

struct Q2_K {
    static constexpr std::size_t bytes = 84, size = 256;
    static void decode(const Byte* __restrict b, float* __restrict out) {
        const float d = load_half(b + 80), dmin = load_half(b + 82);
        for (int group = 0; group < 16; ++group) {
            const float scale = d * static_cast<float>(b[group] & 15), minimum = dmin * static_cast<float>(b[group] >> 4);
            const Byte* qs = b + 16 + group / 8 * 32 + group % 2 * 16;
            const int shift = group % 8 / 2 * 2;
            for (int j = 0; j < 16; ++j) out[group * 16 + j] = static_cast<float>((qs[j] >> shift) & 3) * scale - minimum;
        }
    }
};

struct Q3_K {
    static constexpr std::size_t bytes = 110, size = 256;
    static void decode(const Byte* __restrict b, float* __restrict out) {
        const Byte* packed = b + 96;
        const float d = load_half(b + 108);
        for (int group = 0; group < 16; ++group) {
            const int low = (packed[group % 8] >> (group / 8 * 4)) & 15;
            const int high = (packed[8 + group % 4] >> (group / 4 * 2)) & 3;
            const float scale = d * static_cast<float>((low | high << 4) - 32);
            const Byte* qs = b + 32 + group / 8 * 32 + group % 2 * 16;
            const Byte* qh = b + group % 2 * 16;
            const int shift = group % 8 / 2 * 2, bit = group / 2;
            // A set bit says that nothing is subtracted, a clear one that 4 is.
            for (int j = 0; j < 16; ++j) {
                const int q = ((qs[j] >> shift) & 3) + ((qh[j] >> bit) & 1) * 4 - 4;
                out[group * 16 + j] = static_cast<float>(q) * scale;
            }
        }
    }
};

// One of the eight scales and minima, 6 bits each, that Q4_K and Q5_K pack into 12 bytes.
struct GroupScale {
    GroupScale(const Byte* b, int group) {
        const Byte* packed = b + 4;
        const int k = group % 4;
        const int scale = group < 4 ? packed[k] & 63 : (packed[8 + k] & 15) | (packed[k] >> 6 << 4);
        const int minimum = group < 4 ? packed[4 + k] & 63 : (packed[8 + k] >> 4) | (packed[4 + k] >> 6 << 4);
        d = load_half(b) * static_cast<float>(scale);
        m = load_half(b + 2) * static_cast<float>(minimum);
    }
    float d, m;
};

struct Q4_K {
    static constexpr std::size_t bytes = 144, size = 256;
    static void decode(const Byte* __restrict b, float* __restrict out) {
        for (int group = 0; group < 8; ++group) {
            const GroupScale scale(b, group);
            const Byte* qs = b + 16 + group / 2 * 32;
            const int shift = group % 2 * 4;
            for (int j = 0; j < 32; ++j) {
                out[group * 32 + j] = static_cast<float>((qs[j] >> shift) & 15) * scale.d - scale.m;
            }
        }
    }
};

struct Q5_K {
    static constexpr std::size_t bytes = 176, size = 256;
    static void decode(const Byte* __restrict b, float* __restrict out) {
        const Byte* qh = b + 16;
        for (int group = 0; group < 8; ++group) {
            const GroupScale scale(b, group);
            const Byte* qs = b + 48 + group / 2 * 32;
            const int shift = group % 2 * 4;
            for (int j = 0; j < 32; ++j) {
                const int q = ((qs[j] >> shift) & 15) | ((qh[j] >> group) & 1) << 4;
                out[group * 32 + j] = static_cast<float>(q) * scale.d - scale.m;
            }
        }
    }
};

struct Q6_K {
    static constexpr std::size_t bytes = 210, size = 256;
    static void decode(const Byte* __restrict b, float* __restrict out) {
        const float d = load_half(b + 208);
        for (int group = 0; group < 16; ++group) {
            const float scale = d * static_cast<float>(static_cast<std::int8_t>(b[192 + group]));
            const Byte* ql = b + group / 8 * 64 + group % 4 * 16;
            const Byte* qh = b + 128 + group / 8 * 32 + group % 2 * 16;
            const int low_shift = group % 8 / 4 * 4, high_shift = group % 8 / 2 * 2;
            for (int j = 0; j < 16; ++j) {
                const int q = ((ql[j] >> low_shift) & 15) | ((qh[j] >> high_shift) & 3) << 4;
                out[group * 16 + j] = static_cast<float>(q - 32) * scale;
            }
        }
    }
};

template <class Format>
void to_float32(const Byte* __restrict blocks, std::size_t num_blocks, float* __restrict out) {
    for (std::size_t i = 0; i < num_blocks; ++i) Format::decode(blocks + i * Format::bytes, out + i * Format::size);
}

template <class Format>
void blocks_to_bfloat16(const Byte* __restrict blocks, std::size_t num_blocks, std::uint16_t* __restrict out) {
    for (std::size_t i = 0; i < num_blocks; ++i) {
        float values[Format::size];
        Format::decode(blocks + i * Format::bytes, values);
        for (std::size_t j = 0; j < Format::size; ++j) out[i * Format::size + j] = float_to_bfloat16(values[j]);
    }
}

template <class Format>
constexpr BlockFormat format(std::string_view name) {
    return {name, Format::bytes, Format::size, to_float32<Format>, blocks_to_bfloat16<Format>};
}

constexpr BlockFormat kFormats[] = {
    format<F32>("F32"),   format<F16>("F16"),   format<BF16>("BF16"), format<Q8_0>("Q8_0"), format<Q4_0>("Q4_0"),
    format<Q4_1>("Q4_1"), format<Q5_0>("Q5_0"), format<Q5_1>("Q5_1"), format<Q2_K>("Q2_K"), format<Q3_K>("Q3_K"),
    format<Q4_K>("Q4_K"), format<Q5_K>("Q5_K"), format<Q6_K>("Q6_K"), format<IQ4_NL>("IQ4_NL"),
};

}  // namespace

void to_bfloat16(const float* numbers, std::size_t count, std::uint16_t* out) {
    for (std::size_t i = 0; i < count; ++i) out[i] = float_to_bfloat16(numbers[i]);
}

const BlockFormat* find_block_format(std::string_view name) {
    for (const BlockFormat& each : kFormats) {
        if (each.name == name) return &each;
    }
    return nullptr;
}

}  // namespace octavo
