// A linear layer whose weights stay in a few bits: GGUF's blocks as they are, or quantised while they are packed.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "arena.h"
#include "best_columns.h"
#include "packed_matrix.h"
#include "simd/quantized.h"

namespace octavo {

// Rows of a weight matrix as a file has them.
struct StoredRows {
    std::string_view type;      // a block format of dequantize.h
    const std::uint8_t* data;   // rows of k numbers, one after the other
    std::size_t num_rows;
    const std::int64_t* order;  // which stored row each of the num_rows is; null: as they are stored
};

// One of the formats by its name: a GGUF type in capitals, or int8. Throws std::invalid_argument for any other.
WeightFormat weight_format(std::string_view name);

// Several matrices of the same input, stacked from the top down, each in a format of its own. Inputs are quantised to
// int8 in groups of 32, once for all of them. Inputs and results are float32 or bfloat16 each.
class QuantizedMatrix : public PackedMatrix {
public:
    struct Source {
        WeightFormat format;
        StoredRows rows;
    };

    // Blocks of a source's own format are moved bit by bit; other numbers are quantised. bias: [num_columns] float32, or
    // null. All is read only here. Panels are packed by the pool's threads. Throws std::invalid_argument for rows that
    // are not whole blocks.
    QuantizedMatrix(ThreadPool& pool, std::size_t k, const std::vector<Source>& sources, const float* bias);
    ~QuantizedMatrix() override;

    void run(ThreadPool& pool, Activations x, std::size_t num_rows, NumberType out_type, void* out,
             const TileStored& stored) const override;

    void run_best(ThreadPool& pool, Activations x, std::size_t num_rows, float softcap, double* best) const override;

    // The numbers that the format's scales and integers stand for, as dequantize.h has them.
    void unpack_rows(ThreadPool& pool, const std::int64_t* ids, std::size_t num_ids, NumberType out_type,
                     void* out) const override;

    std::size_t quantized_row_bytes() const override;
    std::size_t bytes() const override;
    std::span<const char> weights() const override { return {panels_.data(), panels_.bytes()}; }

private:
    struct Part;

    std::size_t num_groups() const { return (k() + kGroup - 1) / kGroup; }
    const Part& part_of(std::size_t column) const;
    std::size_t num_column_tasks() const;

    // How many tasks of columns a thread should do one after the other: of gates and of what they let through, whose
    // results are put together, the same columns of both.
    std::size_t column_tasks_together(std::size_t num_rows) const;

    // put(tile, compute) for all tiles of the product, where compute(where its results go, and their stride) makes them.
    template <class Put>
    void run_tiles(ThreadPool& pool, Activations x, std::size_t num_rows, NumberType out_type, std::size_t together,
                   const Put& put) const;

    Arena panels_;  // of the parts, one after the other
    std::vector<std::unique_ptr<Part>> parts_;
};

}  // namespace octavo
