#include "packed_matrix.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "isa.h"
#include "quantized_rows.h"
#include "result_tiles.h"
#include "simd/elementwise.h"

namespace octavo {
namespace {

constexpr IsaTable<ElementwiseKernels> kKernels OCTAVO_ISA_TABLE(elementwise_kernels);
KernelCounter counter{"gate_up_activation"};

constexpr std::size_t kRowsAtOnce = 2 * QuantizedRows::kRowsOfBlock;  // whose projections stay in a cache until activated
constexpr std::size_t kStretch = 64;  // columns, of gates and of what they let through, that are activated together

// Activates the columns of `call.projected` as tiles of it are stored: a stretch when both of its halves are there.
class GatedTiles {
public:
    GatedTiles(const ActivationCall& call, Activations out, std::size_t num_rows)
        : call_(call), out_(out), num_rows_(num_rows), stretches_(num_rows, divide_up(call.width, kStretch)),
          kernel_(kKernels.active().gated_activation[out.type == NumberType::bfloat16]) {}

    void operator()(const ResultTile& tile) const {
        const std::size_t end = tile.column + tile.num_columns;
        for (std::size_t column = tile.column, next; column < end; column = next) {
            const std::size_t half = column < call_.width ? 0 : call_.width, stretch = (column - half) / kStretch;
            const Entries entries{stretch * kStretch, std::min((stretch + 1) * kStretch, call_.width)};
            next = std::min(half + entries.last, end);
            const std::size_t size = 2 * (entries.last - entries.first);
            if (stretches_.completes(tile.row, stretch, next - column, size)) activate(tile, entries);
        }
    }

private:
    void activate(const ResultTile& tile, Entries entries) const {
        kernel_(call_, {tile.row, tile.row + tile.num_rows}, entries);
        if (!out_.quantized) return;
        const QuantizedRows rows{static_cast<ActivationGroup*>(out_.data), num_rows_, call_.width};
        for (std::size_t row = tile.row; row < tile.row + tile.num_rows; ++row) {
            const std::size_t first = row * call_.out_stride + entries.first;
            const void* active = static_cast<const char*>(call_.out) + first * item_bytes(out_.type);
            rows.put(row, entries.first, active, entries.last - entries.first, out_.type);
        }
    }

    const ActivationCall call_;
    const Activations out_;
    const std::size_t num_rows_;
    const Stretches stretches_;
    void (*const kernel_)(const ActivationCall&, Rows, Entries);
};

}  // namespace

void PackedMatrix::run_gated(ThreadPool& pool, Activations x, std::size_t num_rows, Activation activation,
                             Activations out) const {
    counter.add(kKernels.chosen());
    const std::size_t width = num_columns() / 2;
    thread_local std::vector<char> projected;  // kept, for a step calls as often as there are layers
    projected.resize(std::max(projected.size(), std::min(num_rows, kRowsAtOnce) * num_columns() * item_bytes(x.type)));
    for (std::size_t row = 0; row < num_rows; row += kRowsAtOnce) {
        const std::size_t rows = std::min(kRowsAtOnce, num_rows - row);
        const Activations results = rows_from(out, row, width);
        void* active = out.quantized ? projected.data() : results.data;
        const ActivationCall call{projected.data(), active, width, out.quantized ? 2 * width : width, activation};
        const GatedTiles tiles(call, results, rows);
        run(pool, rows_from(x, row, k()), rows, x.type, projected.data(), std::cref(tiles));
    }
}

}  // namespace octavo
