// A weight matrix in the form its kernels read, whatever its number format: the one operand of every linear op.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "result_tiles.h"
#include "simd/activation.h"
#include "threads/thread_pool.h"

namespace octavo {

enum class NumberType { float32, bfloat16 };

constexpr std::size_t item_bytes(NumberType type) { return type == NumberType::float32 ? 4 : 2; }
constexpr NumberType number_type(bool is_bfloat16) { return is_bfloat16 ? NumberType::bfloat16 : NumberType::float32; }

constexpr std::size_t divide_up(std::size_t number, std::size_t divisor) { return (number + divisor - 1) / divisor; }

// Rows of numbers of a type; `quantized`: what kernels of quantised weights make of them (quantized_rows.h).
struct Activations {
    void* data;
    NumberType type;
    bool quantized = false;
};

// Immutable once made. A format states which types its methods take, and throws std::invalid_argument for another.
class PackedMatrix {
public:
    virtual ~PackedMatrix() = default;
    PackedMatrix(const PackedMatrix&) = delete;
    PackedMatrix& operator=(const PackedMatrix&) = delete;

    // x: [num_rows, k] -> out: [num_rows, num_columns], both contiguous; the bias is part of the matrix. A row's result
    // depends on that row alone, to the bit. `stored`, if there is one, is told of the tiles; it must not throw.
    virtual void run(ThreadPool& pool, Activations x, std::size_t num_rows, NumberType out_type, void* out,
                     const TileStored& stored = {}) const = 0;

    // Of the float32 results of `run`: best [num_rows, 2], as BestColumns writes it.
    virtual void run_best(ThreadPool& pool, Activations x, std::size_t num_rows, float softcap, double* best) const = 0;

    // activation(gate) * up, [num_rows, num_columns / 2] of x's type, where the first half of the columns are gates and
    // the others what they let through. Rounded as `run`, the activation after it and a quantisation after that would.
    virtual void run_gated(ThreadPool& pool, Activations x, std::size_t num_rows, Activation activation,
                           Activations out) const;

    // Rows [k] of the weight, e.g. of an embedding, as the kernels see them. ids are below num_columns.
    virtual void unpack_rows(ThreadPool& pool, const std::int64_t* ids, std::size_t num_ids, NumberType out_type,
                             void* out) const = 0;

    // Of a row that is quantised for it; 0 where it only takes numbers.
    virtual std::size_t quantized_row_bytes() const { return 0; }

    // Of memory held.
    virtual std::size_t bytes() const = 0;

    // What `run` reads from its first byte to its last.
    virtual std::span<const char> weights() const = 0;

    std::size_t num_columns() const { return num_columns_; }
    std::size_t k() const { return k_; }

protected:
    PackedMatrix(std::size_t num_columns, std::size_t k) : num_columns_(num_columns), k_(k) {}

private:
    const std::size_t num_columns_, k_;
};

}  // namespace octavo
