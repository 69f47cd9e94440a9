#include "qkv_rope_write.h"

#include <algorithm>

#include "elementwise.h"
#include "isa.h"
#include "result_tiles.h"

namespace octavo {
namespace {

constexpr IsaTable<ElementwiseKernels> kKernels OCTAVO_ISA_TABLE(elementwise_kernels);
KernelCounter counter{"qkv_rope_write"};

}  // namespace

void qkv_rope_write(ThreadPool& pool, const PackedMatrix& weight, Activations x, std::size_t num_rows,
                    const RopeWriteCall& call) {
    check_places(call, num_rows);
    counter.add(kKernels.chosen());
    const auto kernel = rope_write_kernel(kKernels.active(), call, x.type == NumberType::bfloat16);
    const std::size_t size = static_cast<std::size_t>(call.head_size), num_heads = weight.num_columns() / size;
    const Stretches heads(num_rows, num_heads);
    weight.run(pool, x, num_rows, NumberType::float32, call.projected, [&](const ResultTile& tile) {
        const Rows rows{tile.row, tile.row + tile.num_rows};
        const std::size_t end = tile.column + tile.num_columns;
        for (std::size_t column = tile.column, next; column < end; column = next) {
            const std::size_t head = column / size;
            next = std::min((head + 1) * size, end);
            if (heads.completes(tile.row, head, next - column, size)) kernel(call, rows, {head, head + 1});
        }
    });
}

}  // namespace octavo
