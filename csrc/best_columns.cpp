#include "best_columns.h"

#include <cmath>

#include "isa.h"
#include "simd/elementwise.h"
#include "simd/sampling.h"

namespace octavo {
namespace {

constexpr IsaTable<SamplingKernels> kSampling OCTAVO_ISA_TABLE(sampling_kernels);
constexpr IsaTable<ElementwiseKernels> kElementwise OCTAVO_ISA_TABLE(elementwise_kernels);
KernelCounter best_counter("linear_best");

}  // namespace

BestColumns::BestColumns(std::size_t num_rows, std::size_t num_parts, float softcap)
    : num_rows_(num_rows), softcap_(softcap), found_(num_rows * num_parts) {
    best_counter.add(kSampling.chosen());
}

float* BestColumns::room(const ResultTile& tile) {
    thread_local std::vector<float> memory;  // kept, for a thread has many tiles
    if (memory.size() < tile.num_rows * tile.num_columns) memory.resize(tile.num_rows * tile.num_columns);
    return memory.data();
}

void BestColumns::take(const ResultTile& tile, float* results) {
    const SamplingKernels& kernels = kSampling.active();
    if (softcap_ != 0.0f) kElementwise.active().softcap(results, tile.num_rows * tile.num_columns, softcap_);
    Found* found = found_.data() + tile.part * num_rows_ + tile.row;
    for (std::size_t i = 0; i < tile.num_rows; ++i) {
        const float* row = results + i * tile.num_columns;
        const float value = kernels.largest(row, tile.num_columns);
        found[i] = {value, tile.column + (std::isnan(value) ? 0 : kernels.find(row, tile.num_columns, value))};
    }
}

void BestColumns::write(double* best) const {
    for (std::size_t r = 0; r < num_rows_; ++r) {
        Found first = found_[r];
        for (std::size_t i = r + num_rows_; i < found_.size() && !std::isnan(first.value); i += num_rows_) {
            if (found_[i].value > first.value || std::isnan(found_[i].value)) first = found_[i];
        }
        best[2 * r] = static_cast<double>(first.value);
        best[2 * r + 1] = static_cast<double>(first.column);
    }
}

}  // namespace octavo
