// Tile registers in memory, for tests on a CPU without AMX: what its instructions do, byte by byte. Where those would fault,
// so does this.
#pragma once

#include "simd/vector.h"

namespace octavo::OCTAVO_ISA {

struct EmulatedTiles {
    int rows[8], row_bytes[8];
    alignas(64) unsigned char bytes[8][16][64];

    void configure(const std::uint8_t* num_rows, const std::uint16_t* bytes_of_row) {
        *this = {};
        for (int i = 0; i < 8; ++i) rows[i] = num_rows[i], row_bytes[i] = bytes_of_row[i];
        for (int i = 0; i < 8; ++i) expect((rows[i] == 0) == (row_bytes[i] == 0) && rows[i] <= 16 && row_bytes[i] <= 64);
    }
    void zero(int tile) { std::memset(bytes[tile], 0, sizeof bytes[tile]); }
    void load(int tile, const void* from, std::size_t stride) {
        zero(tile);
        for (int i = 0; i < rows[tile]; ++i) {
            std::memcpy(bytes[tile][i], static_cast<const char*>(from) + i * stride, static_cast<std::size_t>(row_bytes[tile]));
        }
    }
    void store(int tile, void* to, std::size_t stride) const {
        for (int i = 0; i < rows[tile]; ++i) {
            std::memcpy(static_cast<char*>(to) + i * stride, bytes[tile][i], static_cast<std::size_t>(row_bytes[tile]));
        }
    }

    template <class Number>
    Number number(int tile, int row, int index) const {
        Number value;
        std::memcpy(&value, bytes[tile][row] + index * sizeof value, sizeof value);
        return value;
    }

    // Calls add(row, column, value of the sum) for each sum, which is what it returns.
    template <class Sum, class Add>
    void for_sums(int sums, Add add) {
        for (int row = 0; row < rows[sums]; ++row) {
            for (int column = 0; column < row_bytes[sums] / 4; ++column) {
                const Sum value = add(row, column, number<Sum>(sums, row, column));
                std::memcpy(bytes[sums][row] + column * sizeof value, &value, sizeof value);
            }
        }
    }

    static void expect(bool is_so) {
        if (!is_so) __builtin_trap();
    }
    void expect_to_fit(int sums, int left, int right) const {
        expect(rows[sums] && rows[sums] == rows[left] && row_bytes[left] == 4 * rows[right] &&
               row_bytes[sums] == row_bytes[right]);
    }

    static float flushed(float x) { return x < 0x1p-126f && x > -0x1p-126f ? 0.0f * x : x; }
    static float fused(float a, float b, float sum) {
        return flushed(__builtin_fmaf(flushed(a), flushed(b), flushed(sum)));
    }

    void add_products_bfloat16(int sums, int left, int right) {
        expect_to_fit(sums, left, right);
        for_sums<float>(sums, [&](int row, int column, float before) {
            float parts[2] = {0.0f, 0.0f};
            for (int k = 0; k < row_bytes[left] / 4; ++k) {
                for (int i = 0; i < 2; ++i) {
                    parts[i] = fused(from_bfloat16(number<std::uint16_t>(left, row, 2 * k + i)),
                                     from_bfloat16(number<std::uint16_t>(right, k, 2 * column + i)), parts[i]);
                }
            }
            return flushed(flushed(before) + flushed(parts[0] + parts[1]));
        });
    }

    void add_products_int8(int sums, int left, int right) {
        expect_to_fit(sums, left, right);
        for_sums<std::int32_t>(sums, [&](int row, int column, std::int32_t sum) {
            for (int k = 0; k < row_bytes[left]; ++k) {
                sum += number<std::int8_t>(left, row, k) * number<std::int8_t>(right, k / 4, 4 * column + k % 4);
            }
            return sum;
        });
    }
};

inline thread_local EmulatedTiles emulated_tiles;

}  // namespace octavo::OCTAVO_ISA
