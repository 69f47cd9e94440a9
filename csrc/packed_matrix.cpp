#include "packed_matrix.h"

#include <vector>

#include "elementwise.h"

namespace octavo {

void PackedMatrix::run_gated(ThreadPool& pool, const void* x, NumberType x_type, std::size_t num_rows,
                             Activation activation, void* out) const {
    thread_local std::vector<char> projected;  // kept, for a step calls as often as there are layers
    const std::size_t bytes = num_rows * num_columns() * item_bytes(x_type);
    if (projected.size() < bytes) projected.resize(bytes);
    run(pool, x, x_type, num_rows, x_type, projected.data());
    const ActivationCall call{projected.data(), out, num_columns() / 2, activation};
    gated_activation(pool, call, num_rows, x_type == NumberType::bfloat16);
}

}  // namespace octavo
