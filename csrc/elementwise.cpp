#include "elementwise.h"

#include "isa.h"
#include "over_rows.h"

namespace octavo {
namespace {

constexpr IsaTable<ElementwiseKernels> kKernels OCTAVO_ISA_TABLE(elementwise_kernels);

KernelCounter norm_counter{"rms_norm"};
KernelCounter activation_counter{"gated_activation"};
KernelCounter rope_counter{"rope_write"};
KernelCounter embedding_counter{"embedding"};
KernelCounter scale_counter{"scale"};
KernelCounter softcap_counter{"softcap"};

}  // namespace

void rms_norm(ThreadPool& pool, const NormCall& call, std::size_t num_rows, bool is_bfloat16, bool residual_is_bfloat16) {
    norm_counter.add(kKernels.chosen());
    const auto kernel = kKernels.active().rms_norm[is_bfloat16][residual_is_bfloat16];
    over_rows(pool, num_rows, call.width, [&](Rows rows) { kernel(call, rows); });
}

void gated_activation(ThreadPool& pool, const ActivationCall& call, std::size_t num_rows, bool is_bfloat16) {
    activation_counter.add(kKernels.chosen());
    const auto kernel = kKernels.active().gated_activation[is_bfloat16];
    over_rows(pool, num_rows, 4 * call.width, [&](Rows rows) { kernel(call, rows, {0, call.width}); });
}

void check_places(const RopeWriteCall& call, std::size_t num_rows) {
    check_below("position", call.positions, num_rows, 0, call.num_positions);
    check_below("slot", call.slots, num_rows, -1, call.cache.num_blocks * call.cache.block_size);
}

void rope_write(ThreadPool& pool, const RopeWriteCall& call, std::size_t num_rows, bool is_bfloat16) {
    check_places(call, num_rows);
    rope_counter.add(kKernels.chosen());
    const auto kernel = rope_write_kernel(kKernels.active(), call, is_bfloat16);
    const std::size_t heads = static_cast<std::size_t>(call.num_heads) + 2 * call.num_kv_heads;
    over_rows(pool, num_rows, heads * call.head_size, [&](Rows rows) { kernel(call, rows, {0, heads}); });
}

void softcap(ThreadPool& pool, float* numbers, std::size_t count, float cap) {
    softcap_counter.add(kKernels.chosen());
    const auto kernel = kKernels.active().softcap;
    over_rows(pool, count, 1, [&](Rows some) { kernel(numbers + some.first, some.last - some.first, cap); });
}

void scale(ThreadPool& pool, void* numbers, std::size_t num_rows, std::size_t width, float factor, bool is_bfloat16) {
    scale_counter.add(kKernels.chosen());
    const EmbeddingCall call{nullptr, numbers, numbers, width, factor};
    const auto kernel = kKernels.active().embedding[is_bfloat16];
    over_rows(pool, num_rows, width, [&](Rows rows) { kernel(call, rows); });
}

void embedding(ThreadPool& pool, const EmbeddingCall& call, std::size_t num_rows, std::int64_t vocab_size,
               bool is_bfloat16) {
    check_below("token", call.token_ids, num_rows, 0, vocab_size);
    embedding_counter.add(kKernels.chosen());
    const auto kernel = kKernels.active().embedding[is_bfloat16];
    over_rows(pool, num_rows, call.width, [&](Rows rows) { kernel(call, rows); });
}

}  // namespace octavo
