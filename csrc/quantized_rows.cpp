#include "quantized_rows.h"

#include <vector>

#include "isa.h"

namespace octavo {
namespace {

constexpr IsaTable<QuantizedKernels> kKernels OCTAVO_ISA_TABLE_WITH_AMX(quantized_kernels);
constexpr IsaTable<ElementwiseKernels> kElementwise OCTAVO_ISA_TABLE(elementwise_kernels);
KernelCounter norm_counter{"rms_norm_quantize"};

constexpr std::size_t kRowsPerTask = 8;

template <class Work>
void over_each_row(ThreadPool& pool, std::size_t num_rows, const Work& work) {
    pool.run(divide_up(num_rows, kRowsPerTask), [&](std::size_t task, int) {
        const std::size_t end = std::min(num_rows, (task + 1) * kRowsPerTask);
        for (std::size_t row = task * kRowsPerTask; row < end; ++row) work(row);
    });
}

const char* row_of(const void* rows, std::size_t row, std::size_t width, NumberType type) {
    return rows ? static_cast<const char*>(rows) + row * width * item_bytes(type) : nullptr;
}

// Where a thread keeps one row's results.
void* room(std::size_t bytes) {
    thread_local std::vector<char> memory;
    if (memory.size() < bytes) memory.resize(bytes);
    return memory.data();
}

}  // namespace

void QuantizedRows::put(std::size_t row, std::size_t column, const void* numbers, std::size_t count,
                        NumberType type) const {
    const QuantizedKernels& kernels = kKernels.active();
    const std::size_t step = stride(row);
    ActivationGroup* to = first_group(row) + column / kGroup * step;
    if (type == NumberType::float32) return kernels.quantize_float32(static_cast<const float*>(numbers), count, to, step);
    kernels.quantize_bfloat16(static_cast<const std::uint16_t*>(numbers), count, to, step);
}

void quantize_rows(ThreadPool& pool, const void* x, NumberType type, const QuantizedRows& out) {
    over_each_row(pool, out.num_rows, [&](std::size_t row) {
        out.put(row, 0, row_of(x, row, out.width, type), out.width, type);
    });
}

void rms_norm_quantize(ThreadPool& pool, const NormCall& call, NumberType type, NumberType residual_type,
                       const QuantizedRows& out) {
    norm_counter.add(kElementwise.chosen());
    const auto kernel = kElementwise.active().rms_norm[type == NumberType::bfloat16][residual_type == NumberType::bfloat16];
    over_each_row(pool, out.num_rows, [&](std::size_t row) {
        NormCall one = call;
        one.x = row_of(call.x, row, call.width, type);
        one.residual = row_of(call.residual, row, call.width, residual_type);
        if (call.total) one.total = call.total + row * call.width;
        one.out = room(call.width * item_bytes(type));
        kernel(one, {0, 1});
        out.put(row, 0, one.out, call.width, type);
    });
}

}  // namespace octavo
