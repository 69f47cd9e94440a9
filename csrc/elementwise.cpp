#include "elementwise.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "isa.h"

namespace octavo {
namespace {

constexpr IsaTable<ElementwiseKernels> kKernels OCTAVO_ISA_TABLE(elementwise_kernels);

KernelCounter norm_counter{"rms_norm"};
KernelCounter activation_counter{"gated_activation"};
KernelCounter rope_counter{"rope_write"};
KernelCounter embedding_counter{"embedding"};
KernelCounter scale_counter{"scale"};
KernelCounter softcap_counter{"softcap"};

// Some microseconds of work; less is not worth another thread's attention.
constexpr std::size_t kEntriesPerTask = 16384;

// Calls work(Rows) for all rows, in pieces of about kEntriesPerTask entries.
template <class Work>
void over_rows(ThreadPool& pool, std::size_t num_rows, std::size_t width, Work work) {
    const std::size_t step = std::max<std::size_t>(1, kEntriesPerTask / std::max<std::size_t>(1, width));
    pool.run((num_rows + step - 1) / step, [&](std::size_t task, int) {
        work(Rows{task * step, std::min(num_rows, (task + 1) * step)});
    });
}

void check_below(const char* what, const std::int64_t* numbers, std::size_t count, std::int64_t lowest, std::int64_t end) {
    for (std::size_t i = 0; i < count; ++i) {
        if (numbers[i] >= lowest && numbers[i] < end) continue;
        throw std::out_of_range(what + (" " + std::to_string(numbers[i])) + " is not below " + std::to_string(end));
    }
}

}  // namespace

void rms_norm(ThreadPool& pool, const NormCall& call, std::size_t num_rows, bool is_bfloat16) {
    norm_counter.add();
    const auto kernel = kKernels.active().rms_norm[is_bfloat16];
    over_rows(pool, num_rows, call.width, [&](Rows rows) { kernel(call, rows); });
}

void gated_activation(ThreadPool& pool, const ActivationCall& call, std::size_t num_rows, bool is_bfloat16) {
    activation_counter.add();
    const auto kernel = kKernels.active().gated_activation[is_bfloat16];
    over_rows(pool, num_rows, 4 * call.width, [&](Rows rows) { kernel(call, rows); });
}

void rope_write(ThreadPool& pool, const RopeWriteCall& call, std::size_t num_rows, bool is_bfloat16) {
    check_below("position", call.positions, num_rows, 0, call.num_positions);
    check_below("slot", call.slots, num_rows, -1, call.cache.num_blocks * call.cache.block_size);
    rope_counter.add();
    const auto kernel = kKernels.active().rope_write[is_bfloat16][static_cast<std::size_t>(call.cache.type)];
    const std::size_t heads = static_cast<std::size_t>(call.num_heads) + 2 * call.num_kv_heads;
    over_rows(pool, num_rows, heads * call.head_size, [&](Rows rows) { kernel(call, rows); });
}

void softcap(ThreadPool& pool, float* numbers, std::size_t count, float cap) {
    softcap_counter.add();
    const auto kernel = kKernels.active().softcap;
    over_rows(pool, count, 1, [&](Rows some) { kernel(numbers + some.first, some.last - some.first, cap); });
}

void scale(ThreadPool& pool, void* numbers, std::size_t num_rows, std::size_t width, float factor, bool is_bfloat16) {
    scale_counter.add();
    const EmbeddingCall call{nullptr, numbers, numbers, width, factor};
    const auto kernel = kKernels.active().embedding[is_bfloat16];
    over_rows(pool, num_rows, width, [&](Rows rows) { kernel(call, rows); });
}

void embedding(ThreadPool& pool, const EmbeddingCall& call, std::size_t num_rows, std::int64_t vocab_size,
               bool is_bfloat16) {
    check_below("token", call.token_ids, num_rows, 0, vocab_size);
    embedding_counter.add();
    const auto kernel = kKernels.active().embedding[is_bfloat16];
    over_rows(pool, num_rows, call.width, [&](Rows rows) { kernel(call, rows); });
}

}  // namespace octavo
