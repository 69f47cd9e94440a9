// A group of a quantised panel in registers: its bits as bytes, and its scales.
#pragma once

#include "simd/columns.h"

namespace octavo::OCTAVO_ISA {

// Bytes: past what the hardware fetches by itself, and where it stops at a page's end.
inline constexpr std::size_t kAhead = 2048;

// A group of a panel as its kernels want it.
template <WeightFormat kFormat>
struct Group {
    static constexpr PanelLayout kLayout = layout_of(kFormat);

    Bytes weights[8];
    Columns scale, minimum;
    HalfScales half_scales;

    OCTAVO_INLINE Group(const char* block_header, const char* group) {
        read_scales(block_header, group);
        read_weights(group + kLayout.group_header());
    }

    OCTAVO_INLINE void read_scales(const char* block_header, const char* group) {
        if constexpr (kLayout.scales == Scales::half || kLayout.scales == Scales::half_and_minimum) {
            scale = Columns::load_half(group);
        }
        if constexpr (kLayout.scales == Scales::half_and_minimum) minimum = Columns::load_half(group + 32);
        if constexpr (kLayout.scales == Scales::block) {
            // Products of 11 and 6 bits: exact.
            scale = Columns::load_half(block_header) * Columns::load_uint8(group);
            minimum = -(Columns::load_half(block_header + 32) * Columns::load_uint8(group + 16));
        }
        if constexpr (kLayout.scales == Scales::block_of_halves) {
            scale = Columns::load_half(block_header);
            half_scales = HalfScales::load(group);
        }
    }

    OCTAVO_INLINE void read_weights(const char* bits) {
        if constexpr (kLayout.bits == 8) {
            for (int s = 0; s < 8; ++s) weights[s] = Bytes::load(bits + 64 * s);
            return;
        }
        for (int s = 0; s < 4; ++s) {
            const Bytes both = Bytes::load(bits + 64 * s);
            weights[s] = shifted<0>(both, 0x0f);
            weights[s + 4] = shifted<-4>(both, 0x0f);
        }
        if constexpr (kLayout.bits == 5) add_fifth_bits(Bytes::load(bits + 256));
        if constexpr (kLayout.bits == 6) {
            add_two_bits(Bytes::load(bits + 256), weights);
            add_two_bits(Bytes::load(bits + 320), weights + 4);
        }
    }

    OCTAVO_INLINE void add_fifth_bits(Bytes high) {
        weights[0] = weights[0] | shifted<4>(high, 0x10);
        weights[1] = weights[1] | shifted<3>(high, 0x10);
        weights[2] = weights[2] | shifted<2>(high, 0x10);
        weights[3] = weights[3] | shifted<1>(high, 0x10);
        weights[4] = weights[4] | shifted<0>(high, 0x10);
        weights[5] = weights[5] | shifted<-1>(high, 0x10);
        weights[6] = weights[6] | shifted<-2>(high, 0x10);
        weights[7] = weights[7] | shifted<-3>(high, 0x10);
    }

    static OCTAVO_INLINE void add_two_bits(Bytes high, Bytes* four) {
        four[0] = four[0] | shifted<4>(high, 0x30);
        four[1] = four[1] | shifted<2>(high, 0x30);
        four[2] = four[2] | shifted<0>(high, 0x30);
        four[3] = four[3] | shifted<-2>(high, 0x30);
    }
};

// The whole of a group's bytes that are some groups, a panel or a task further on.
template <WeightFormat kFormat>
OCTAVO_INLINE void fetch_ahead(const char* group) {
    for (std::size_t i = 0; i < layout_of(kFormat).group_bytes(); i += 64) __builtin_prefetch(group + kAhead + i);
}

}  // namespace octavo::OCTAVO_ISA
