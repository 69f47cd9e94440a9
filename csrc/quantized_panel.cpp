#include "quantized_panel.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "half.h"
#include "quantization_grid.h"

namespace octavo {
namespace {

using Byte = std::uint8_t;

static_assert(std::endian::native == std::endian::little);

std::uint32_t load4(const void* p) {
    std::uint32_t value;
    std::memcpy(&value, p, sizeof value);
    return value;
}
void store4(void* p, std::uint32_t value) { std::memcpy(p, &value, sizeof value); }

float load_half(const void* p) {
    std::uint16_t half;
    std::memcpy(&half, p, sizeof half);
    return half_to_float(half);
}
void store_half(void* p, float value) {
    const std::uint16_t half = float_to_half(value);
    std::memcpy(p, &half, sizeof half);
}

// A group's 32 integers in the panel's bits, of which each of four bytes is one.
void place_integers(int bits, const Byte (&q)[kGroup], char* group, std::size_t lane) {
    char* column = group + 4 * lane;
    if (bits == 8) {
        for (int s = 0; s < 8; ++s) store4(column + 64 * s, load4(q + 4 * s));
        return;
    }
    for (int s = 0; s < 4; ++s) {
        store4(column + 64 * s, (load4(q + 4 * s) & 0x0f0f0f0fu) | (load4(q + 4 * s + 16) & 0x0f0f0f0fu) << 4);
    }
    if (bits == 4) return;
    const int high_bits = bits - 4, steps = 8 / high_bits;
    const std::uint32_t mask = 0x01010101u * ((1u << high_bits) - 1);
    for (int vector = 0; vector < high_bits; ++vector) {
        std::uint32_t high = 0;
        for (int s = 0; s < steps; ++s) {
            high |= ((load4(q + 4 * (vector * steps + s)) >> 4) & mask) << (high_bits * s);
        }
        store4(column + 256 + 64 * vector, high);
    }
}

void take_integers(int bits, const char* group, std::size_t lane, Byte (&q)[kGroup]) {
    const char* column = group + 4 * lane;
    if (bits == 8) {
        for (int s = 0; s < 8; ++s) store4(q + 4 * s, load4(column + 64 * s));
        return;
    }
    for (int s = 0; s < 4; ++s) {
        store4(q + 4 * s, load4(column + 64 * s) & 0x0f0f0f0fu);
        store4(q + 4 * s + 16, (load4(column + 64 * s) >> 4) & 0x0f0f0f0fu);
    }
    if (bits == 4) return;
    const int high_bits = bits - 4, steps = 8 / high_bits;
    const std::uint32_t mask = 0x01010101u * ((1u << high_bits) - 1);
    for (int s = 0; s < 8; ++s) {
        const std::uint32_t high = load4(column + 256 + 64 * (s / steps)) >> (high_bits * (s % steps));
        store4(q + 4 * s, load4(q + 4 * s) | (high & mask) << 4);
    }
}

// Where a group of a panel and its block's header are.
struct Place {
    Place(const PanelLayout& layout, char* panel, std::size_t group) {
        const std::size_t per_block = layout.groups_of_block();
        block = panel + layout.panel_header() + group / per_block * layout.block_bytes();
        header = block + layout.block_header() + group % per_block * layout.group_bytes();
        bits = header + layout.group_header();
    }
    char *block, *header, *bits;
};

// GGUF's blocks: how many bytes, how many groups, where the scales are, and the integers of a group. Fields are named as
// the format's authors name them.

void copy_half(const Byte* from, char* header, std::size_t lane) { std::memcpy(header + 2 * lane, from, 2); }

void split_nibbles(const Byte* qs, Byte (&q)[kGroup]) {
    for (int j = 0; j < 16; ++j) {
        q[j] = qs[j] & 15;
        q[j + 16] = qs[j] >> 4;
    }
}

void add_fifth_bits(const Byte* qh, Byte (&q)[kGroup]) {
    const std::uint32_t bits = load4(qh);
    for (int j = 0; j < 32; ++j) q[j] |= static_cast<Byte>(((bits >> j) & 1u) << 4);
}

struct Q8_0 {
    static constexpr std::size_t bytes = 34;
    static void scales(const Byte* b, std::size_t, const Place& to, std::size_t lane) { copy_half(b, to.header, lane); }
    static void integers(const Byte* b, std::size_t, Byte (&q)[kGroup]) {
        for (std::size_t j = 0; j < kGroup; ++j) q[j] = b[2 + j] ^ 0x80;
    }
};

struct Q4_0 {
    static constexpr std::size_t bytes = 18;
    static void scales(const Byte* b, std::size_t, const Place& to, std::size_t lane) { copy_half(b, to.header, lane); }
    static void integers(const Byte* b, std::size_t, Byte (&q)[kGroup]) { split_nibbles(b + 2, q); }
};

struct Q5_0 {
    static constexpr std::size_t bytes = 22;
    static void scales(const Byte* b, std::size_t, const Place& to, std::size_t lane) { copy_half(b, to.header, lane); }
    static void integers(const Byte* b, std::size_t, Byte (&q)[kGroup]) {
        split_nibbles(b + 6, q);
        add_fifth_bits(b + 2, q);
    }
};

void copy_scale_and_minimum(const Byte* b, char* header, std::size_t lane) {
    copy_half(b, header, lane);
    copy_half(b + 2, header + 2 * kQuantizedColumns, lane);
}

struct Q4_1 {
    static constexpr std::size_t bytes = 20;
    static void scales(const Byte* b, std::size_t, const Place& to, std::size_t lane) {
        copy_scale_and_minimum(b, to.header, lane);
    }
    static void integers(const Byte* b, std::size_t, Byte (&q)[kGroup]) { split_nibbles(b + 4, q); }
};

struct Q5_1 {
    static constexpr std::size_t bytes = 24;
    static void scales(const Byte* b, std::size_t, const Place& to, std::size_t lane) {
        copy_scale_and_minimum(b, to.header, lane);
    }
    static void integers(const Byte* b, std::size_t, Byte (&q)[kGroup]) {
        split_nibbles(b + 8, q);
        add_fifth_bits(b + 4, q);
    }
};

// Of Q4_K and Q5_K: d and dmin of the block, and one of eight pairs of 6 bits that are packed into 12 bytes.
void unpack_6_bit_scales(const Byte* b, std::size_t group, const Place& to, std::size_t lane) {
    if (group == 0) copy_scale_and_minimum(b, to.block, lane);
    const Byte* packed = b + 4;
    const std::size_t k = group % 4;
    const int scale = group < 4 ? packed[k] & 63 : (packed[8 + k] & 15) | (packed[k] >> 6 << 4);
    const int minimum = group < 4 ? packed[4 + k] & 63 : (packed[8 + k] >> 4) | (packed[4 + k] >> 6 << 4);
    to.header[lane] = static_cast<char>(scale);
    to.header[kQuantizedColumns + lane] = static_cast<char>(minimum);
}

struct Q4_K {
    static constexpr std::size_t bytes = 144;
    static void scales(const Byte* b, std::size_t group, const Place& to, std::size_t lane) {
        unpack_6_bit_scales(b, group, to, lane);
    }
    static void integers(const Byte* b, std::size_t group, Byte (&q)[kGroup]) {
        const Byte* qs = b + 16 + group / 2 * 32;
        const std::size_t shift = group % 2 * 4;
        for (std::size_t j = 0; j < kGroup; ++j) q[j] = (qs[j] >> shift) & 15;
    }
};

struct Q5_K {
    static constexpr std::size_t bytes = 176;
    static void scales(const Byte* b, std::size_t group, const Place& to, std::size_t lane) {
        unpack_6_bit_scales(b, group, to, lane);
    }
    static void integers(const Byte* b, std::size_t group, Byte (&q)[kGroup]) {
        const Byte *qs = b + 48 + group / 2 * 32, *qh = b + 16;
        const std::size_t shift = group % 2 * 4;
        for (std::size_t j = 0; j < kGroup; ++j) {
            q[j] = static_cast<Byte>(((qs[j] >> shift) & 15) | ((qh[j] >> group) & 1) << 4);
        }
    }
};

struct Q6_K {
    static constexpr std::size_t bytes = 210;
    static void scales(const Byte* b, std::size_t group, const Place& to, std::size_t lane) {
        if (group == 0) copy_half(b + 208, to.block, lane);
        to.header[lane] = static_cast<char>(b[192 + 2 * group]);
        to.header[kQuantizedColumns + lane] = static_cast<char>(b[192 + 2 * group + 1]);
    }
    static void integers(const Byte* b, std::size_t group, Byte (&q)[kGroup]) {
        const std::size_t half = group / 4, quarter = group % 4;
        const Byte *ql = b + 64 * half + quarter % 2 * 32, *qh = b + 128 + 32 * half;
        const std::size_t low_shift = quarter / 2 * 4, high_shift = quarter * 2;
        for (std::size_t j = 0; j < kGroup; ++j) {
            q[j] = static_cast<Byte>(((ql[j] >> low_shift) & 15) | ((qh[j] >> high_shift) & 3) << 4);
        }
    }
};

template <WeightFormat kFormat, class Blocks>
void pack(const Byte* row, std::size_t begin, std::size_t end, PanelColumn to) {
    constexpr PanelLayout kLayout = layout_of(kFormat);
    for (std::size_t group = begin; group < end; ++group) {
        const std::size_t in_block = group % kLayout.groups_of_block();
        const Byte* block = row + group / kLayout.groups_of_block() * Blocks::bytes;
        const Place place(kLayout, to.panel, group);
        Blocks::scales(block, in_block, place, to.lane);
        Byte q[kGroup];
        Blocks::integers(block, in_block, q);
        place_integers(kLayout.bits, q, place.bits, to.lane);
    }
}

void quantize_int8(const float* row, PanelColumn to) {
    constexpr PanelLayout kLayout = layout_of(WeightFormat::int8);
    const float scale = std::abs(extreme(row, to.num_groups * kGroup)) / 127.0f;
    std::memcpy(to.panel + 4 * to.lane, &scale, sizeof scale);
    for (std::size_t group = 0; group < to.num_groups; ++group) {
        Byte q[kGroup];
        round_to_bytes(row + group * kGroup, scale, q);
        place_integers(kLayout.bits, q, Place(kLayout, to.panel, group).bits, to.lane);
    }
}

void quantize_q8_0(const float* row, PanelColumn to) {
    constexpr PanelLayout kLayout = layout_of(WeightFormat::q8_0);
    for (std::size_t group = 0; group < to.num_groups; ++group) {
        const float* numbers = row + group * kGroup;
        const Place place(kLayout, to.panel, group);
        store_half(place.header + 2 * to.lane, std::abs(extreme(numbers, kGroup)) / 127.0f);
        Byte q[kGroup];
        round_to_bytes(numbers, load_half(place.header + 2 * to.lane), q);
        place_integers(kLayout.bits, q, place.bits, to.lane);
    }
}

void quantize_q4_1(const float* row, PanelColumn to) {
    constexpr PanelLayout kLayout = layout_of(WeightFormat::q4_1);
    for (std::size_t group = 0; group < to.num_groups; ++group) {
        const Place place(kLayout, to.panel, group);
        Byte q[kGroup];
        const Grid grid = nearest_grid(row + group * kGroup, q);
        store_half(place.header + 2 * to.lane, grid.scale);
        store_half(place.header + 2 * (kQuantizedColumns + to.lane), grid.minimum);
        place_integers(kLayout.bits, q, place.bits, to.lane);
    }
}

}  // namespace

void pack_blocks(WeightFormat format, const Byte* row, std::size_t begin, std::size_t end, PanelColumn to) {
    switch (format) {
        case WeightFormat::q8_0: return pack<WeightFormat::q8_0, Q8_0>(row, begin, end, to);
        case WeightFormat::q4_0: return pack<WeightFormat::q4_0, Q4_0>(row, begin, end, to);
        case WeightFormat::q4_1: return pack<WeightFormat::q4_1, Q4_1>(row, begin, end, to);
        case WeightFormat::q5_0: return pack<WeightFormat::q5_0, Q5_0>(row, begin, end, to);
        case WeightFormat::q5_1: return pack<WeightFormat::q5_1, Q5_1>(row, begin, end, to);
        case WeightFormat::q4_k: return pack<WeightFormat::q4_k, Q4_K>(row, begin, end, to);
        case WeightFormat::q5_k: return pack<WeightFormat::q5_k, Q5_K>(row, begin, end, to);
        case WeightFormat::q6_k: return pack<WeightFormat::q6_k, Q6_K>(row, begin, end, to);
        case WeightFormat::int8: return;  // no file has blocks of it
    }
}

bool is_quantizer(WeightFormat format) {
    return format == WeightFormat::q8_0 || format == WeightFormat::q4_1 || format == WeightFormat::int8;
}

void quantize_row(WeightFormat format, const float* row, PanelColumn to) {
    switch (format) {
        case WeightFormat::q8_0: return quantize_q8_0(row, to);
        case WeightFormat::q4_1: return quantize_q4_1(row, to);
        case WeightFormat::int8: return quantize_int8(row, to);
        default: return;
    }
}

void unpack_row(WeightFormat format, PanelColumn from, float* row) {
    const PanelLayout layout = layout_of(format);
    const std::size_t lane = from.lane;
    for (std::size_t group = 0; group < from.num_groups; ++group, row += kGroup) {
        const Place place(layout, from.panel, group);
        Byte q[kGroup];
        take_integers(layout.bits, place.bits, lane, q);
        float scales[2] = {0.0f, 0.0f}, minimum = 0.0f;  // of each half, and of both
        switch (layout.scales) {
            case Scales::half_and_minimum: minimum = load_half(place.header + 2 * (kQuantizedColumns + lane)); [[fallthrough]];
            case Scales::half: scales[0] = scales[1] = load_half(place.header + 2 * lane); break;
            case Scales::block:
                scales[0] = scales[1] = load_half(place.block + 2 * lane) * static_cast<float>(static_cast<Byte>(place.header[lane]));
                minimum = -(load_half(place.block + 2 * (kQuantizedColumns + lane)) *
                            static_cast<float>(static_cast<Byte>(place.header[kQuantizedColumns + lane])));
                break;
            case Scales::block_of_halves:
                for (int half = 0; half < 2; ++half) {
                    scales[half] = load_half(place.block + 2 * lane) *
                                   static_cast<float>(static_cast<signed char>(place.header[kQuantizedColumns * half + lane]));
                }
                break;
            case Scales::column:
                std::memcpy(scales, from.panel + 4 * lane, sizeof(float));
                scales[1] = scales[0];
        }
        for (std::size_t j = 0; j < kGroup; ++j) {
            row[j] = static_cast<float>(q[j] - layout.offset) * scales[j / 16] + minimum;
        }
    }
}

}  // namespace octavo
