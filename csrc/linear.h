// A linear layer with its weights packed once into panels of columns, for any number of rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "threads/thread_pool.h"

namespace octavo {

enum class NumberType { float32, bfloat16 };

// Memory in whole huge pages where the system gives them: streaming through small pages is slower.
class Arena {
public:
    explicit Arena(std::size_t bytes);
    ~Arena();
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;

    char* data() const { return data_; }
    std::size_t bytes() const { return bytes_; }

private:
    std::size_t bytes_;
    char* data_;
};

class PackedLinear {
public:
    // weight: [num_columns, k], bias: [num_columns] or null, both of `type`; read only here. Panels are packed, and so
    // first touched, by the pool's threads.
    PackedLinear(ThreadPool& pool, NumberType type, const void* weight, const void* bias, std::size_t num_columns,
                 std::size_t k);

    // x: [num_rows, k] of the weights' type -> out: [num_rows, num_columns] of `out_type`, which is that type or float32.
    // Both contiguous. Sums are float32, in ascending k; rounded once, after the bias.
    void run(ThreadPool& pool, const void* x, std::size_t num_rows, NumberType out_type, void* out) const;

    // Rows [k] of the weight as it was before packing, e.g. of an embedding. ids are below num_columns.
    void unpack_rows(ThreadPool& pool, const std::int64_t* ids, std::size_t num_ids, void* out) const;

    NumberType type() const { return type_; }
    std::size_t num_columns() const { return num_columns_; }
    std::size_t k() const { return k_; }
    std::size_t bytes() const { return panels_.bytes() + bias_.size() * sizeof(float); }

private:
    std::size_t num_panels() const;
    std::size_t panel_bytes() const;

    NumberType type_;
    std::size_t num_columns_, k_;
    Arena panels_;
    std::vector<float> bias_;  // padded to whole panels, or empty
};

}  // namespace octavo
