// A linear layer with its weights packed once into panels of columns, for any number of rows.
#pragma once

#include <vector>

#include "arena.h"
#include "packed_matrix.h"

namespace octavo {

// Float32 or bfloat16 weights. Inputs are of that type, results of that type or float32.
class PackedLinear : public PackedMatrix {
public:
    // weight: [num_columns, k], bias: [num_columns] or null, both of `type`; read only here. Panels are packed, and so
    // first touched, by the pool's threads.
    PackedLinear(ThreadPool& pool, NumberType type, const void* weight, const void* bias, std::size_t num_columns,
                 std::size_t k);

    // Sums are float32, in ascending k; rounded once, after the bias.
    void run(ThreadPool& pool, const void* x, NumberType x_type, std::size_t num_rows, NumberType out_type,
             void* out) const override;
    void unpack_rows(ThreadPool& pool, const std::int64_t* ids, std::size_t num_ids, NumberType out_type,
                     void* out) const override;
    std::size_t bytes() const override { return panels_.bytes() + bias_.size() * sizeof(float); }

private:
    std::size_t num_panels() const;
    std::size_t panel_bytes() const;

    NumberType type_;
    Arena panels_;
    std::vector<float> bias_;  // padded to whole panels, or empty
};

}  // namespace octavo
