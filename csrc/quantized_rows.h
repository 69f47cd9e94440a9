// Activations as kernels of quantised weights read them: int8 in groups of 32, with what belongs to a group.
#pragma once

#include <algorithm>
#include <cstddef>

#include "packed_matrix.h"
#include "simd/elementwise.h"
#include "simd/quantized.h"
#include "threads/thread_pool.h"

namespace octavo {

// [num_rows, width], in blocks of kRowsOfBlock rows, the last of as many as are left: [groups, rows of the block].
struct QuantizedRows {
    static constexpr std::size_t kRowsOfBlock = 64;  // as many as a kernel takes at once

    ActivationGroup* data;
    std::size_t num_rows, width;

    static constexpr std::size_t row_bytes(std::size_t width) { return divide_up(width, kGroup) * sizeof(ActivationGroup); }

    // The first group of a row, and how far its next is.
    ActivationGroup* first_group(std::size_t row) const {
        const std::size_t in_block = row % kRowsOfBlock;
        return data + (row - in_block) * divide_up(width, kGroup) + in_block;
    }
    std::size_t stride(std::size_t row) const {
        return std::min(kRowsOfBlock, num_rows - row / kRowsOfBlock * kRowsOfBlock);
    }

    // Quantises `count` entries of a row from `column` on, where a group begins; zeros fill the last group.
    void put(std::size_t row, std::size_t column, const void* numbers, std::size_t count, NumberType type) const;
};

// Rows from one on, of quantised ones from the first of a block.
inline Activations rows_from(Activations rows, std::size_t row, std::size_t width) {
    const std::size_t bytes = rows.quantized ? QuantizedRows::row_bytes(width) : width * item_bytes(rows.type);
    return {static_cast<char*>(rows.data) + row * bytes, rows.type, rows.quantized};
}

// All rows of x [num_rows, width].
void quantize_rows(ThreadPool& pool, const void* x, NumberType type, const QuantizedRows& out);

// As rms_norm of elementwise.h and quantize_rows of its results, which are not stored.
void rms_norm_quantize(ThreadPool& pool, const NormCall& call, NumberType type, NumberType residual_type,
                       const QuantizedRows& out);

}  // namespace octavo
