#include "packed_matrix.h"

#include <algorithm>
#include <vector>

#include "elementwise.h"

namespace octavo {

namespace {

constexpr std::size_t kRowsAtOnce = 128;  // whose projections stay in the last-level cache until they are activated

}  // namespace

void PackedMatrix::run_gated(ThreadPool& pool, const void* x, NumberType x_type, std::size_t num_rows,
                             Activation activation, void* out) const {
    const std::size_t item = item_bytes(x_type), width = num_columns() / 2;
    thread_local std::vector<char> projected;  // kept, for a step calls as often as there are layers
    projected.resize(std::max(projected.size(), std::min(num_rows, kRowsAtOnce) * num_columns() * item));
    for (std::size_t row = 0; row < num_rows; row += kRowsAtOnce) {
        const std::size_t rows = std::min(kRowsAtOnce, num_rows - row);
        run(pool, static_cast<const char*>(x) + row * k() * item, x_type, rows, x_type, projected.data());
        const ActivationCall call{projected.data(), static_cast<char*>(out) + row * width * item, width, activation};
        gated_activation(pool, call, rows, x_type == NumberType::bfloat16);
    }
}

}  // namespace octavo
