// A linear layer with its weights packed once into panels of columns, for any number of rows.
#pragma once

#include <vector>

#include "arena.h"
#include "best_columns.h"
#include "isa.h"
#include "packed_matrix.h"
#include "simd/linear.h"

namespace octavo {

// Float32 or bfloat16 weights. Inputs are of that type, results of that type or float32.
class PackedLinear : public PackedMatrix {
public:
    // weight: [num_columns, k], bias: [num_columns] or null, both of `type`; read only here. Panels are packed, and so
    // first touched, by the pool's threads, for the instruction set in use. A `gated` matrix, an even number of columns
    // whose first half are gates, lies so that run_gated has both halves at hand; it takes `run` as well.
    PackedLinear(ThreadPool& pool, NumberType type, const void* weight, const void* bias, std::size_t num_columns,
                 std::size_t k, bool gated);

    // Sums are float32, in the order of simd/linear.h; rounded once, after the bias.
    void run(ThreadPool& pool, Activations x, std::size_t num_rows, NumberType out_type, void* out,
             const TileStored& stored) const override;
    void run_best(ThreadPool& pool, Activations x, std::size_t num_rows, float softcap, double* best) const override;
    void run_gated(ThreadPool& pool, Activations x, std::size_t num_rows, Activation activation,
                   Activations out) const override;
    void unpack_rows(ThreadPool& pool, const std::int64_t* ids, std::size_t num_ids, NumberType out_type,
                     void* out) const override;
    std::size_t bytes() const override { return panels_.bytes() + bias_.size() * sizeof(float); }
    std::span<const char> weights() const override { return {panels_.data(), panels_.bytes()}; }

private:
    // Columns [first, first + count) are lanes of a panel.
    struct Columns {
        std::size_t first, count;
    };

    bool takes(Activations x) const { return x.type == type_ && !x.quantized; }
    std::size_t panel_columns() const { return kernels_.panel_columns; }
    std::size_t panel_bytes() const;
    std::size_t num_panels() const;
    Columns columns_of(std::size_t panel) const;
    char* panel(std::size_t index) const { return panels_.data() + index * panel_bytes(); }
    std::vector<float> padded_bias(const void* bias) const;
    void run_kernel(ThreadPool& pool, LinearKernel kernel, const void* x, std::size_t num_rows, LinearTask task,
                    NumberType out_type, const TileStored& stored) const;

    // How rows and panels are shared out, and what of `task` all tasks have in common.
    struct Tasks;
    Tasks tasks_of(ThreadPool& pool, const void* x, std::size_t num_rows, LinearTask task) const;

    const Isa isa_;
    const LinearKernels& kernels_;
    const NumberType type_;
    const bool gated_;
    Arena panels_;
    std::vector<float> bias_;  // in the panels' order, padded to whole panels, or empty
};

}  // namespace octavo
