// float16 numbers, to and from float32.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace octavo {

inline float half_to_float(std::uint16_t half) {
    const std::uint32_t magnitude = half & 0x7fffu, sign = (half & 0x8000u) << 16;
    // A subnormal is a whole number of 2^-24; else the exponent's bias changes, but for that of infinity and NaN.
    const float small = static_cast<float>(static_cast<int>(magnitude)) * 0x1p-24f;
    const std::uint32_t large = (magnitude << 13) + (magnitude >= 0x7c00u ? 0x70000000u : 0x38000000u);
    // A mask, not a choice: the compiler would branch around the product and vectorise nothing.
    const std::uint32_t is_small = 0u - (magnitude < 0x0400u);
    return std::bit_cast<float>((std::bit_cast<std::uint32_t>(small) & is_small) | (large & ~is_small) | sign);
}

// The nearest float16, ties to even; infinity from 65520 on.
inline std::uint16_t float_to_half(float value) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value), magnitude = bits & 0x7fffffffu;
    const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
    if (magnitude > 0x7f800000u) return sign | 0x7e00u;
    if (magnitude >= 0x477ff000u) return sign | 0x7c00u;
    if (magnitude < 0x38800000u) {
        // A whole number of 2^-24.
        const float whole = std::nearbyint(std::bit_cast<float>(magnitude) * 0x1p24f);
        return static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(whole));
    }
    const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

}  // namespace octavo
