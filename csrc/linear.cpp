#include "linear.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "isa.h"
#include "simd/linear.h"

namespace octavo {
namespace {

constexpr IsaTable<LinearKernels> kKernels{&generic::linear_kernels, OCTAVO_AVX2_OR_NULL(avx2::linear_kernels)};
KernelCounter linear_float32("linear_float32"), linear_bfloat16("linear_bfloat16");

constexpr std::size_t kTaskBytes = 128 << 10;       // of weights: some microseconds, so that threads end together
constexpr std::size_t kRowsBytes = 256 << 10;       // of inputs that stay in the second-level cache
constexpr std::size_t kPackedAtOnce = 64;            // of k: 4 KiB of a float32 panel
constexpr std::size_t kRowsAtOnce = 6;              // as in the micro-kernel

std::size_t round_up(std::size_t number, std::size_t step) { return (number + step - 1) / step * step; }
std::size_t divide_up(std::size_t number, std::size_t divisor) { return (number + divisor - 1) / divisor; }

// k per 64 bytes of a panel: see the layouts in simd/linear.cpp.
std::size_t step_of(NumberType type) { return type == NumberType::float32 ? 1 : 2; }

// Where weight [column, k] of a panel lies in it, in elements.
std::size_t place(std::size_t lane, std::size_t k, std::size_t step) {
    return (k / step * kPanelColumns + lane) * step + k % step;
}

template <class Number>
void pack_panel(const Number* weight, std::size_t num_lanes, std::size_t k, std::size_t step, Number* panel) {
    // A stretch of k at a time: what is written then stays in the first-level cache until all lanes have been there.
    for (std::size_t start = 0; start < k; start += kPackedAtOnce) {
        const std::size_t end = std::min(k, start + kPackedAtOnce);
        for (std::size_t lane = 0; lane < num_lanes; ++lane) {
            for (std::size_t i = start; i < end; ++i) panel[place(lane, i, step)] = weight[lane * k + i];
        }
    }
}

template <class Number>
void unpack_row(const Number* panel, std::size_t lane, std::size_t k, std::size_t step, Number* row) {
    for (std::size_t i = 0; i < k; ++i) row[i] = panel[place(lane, i, step)];
}

[[noreturn]] void throw_other_type() {
    throw std::invalid_argument("a dense weight takes and gives numbers of its own type; results may be float32 too");
}

std::vector<float> padded_bias(NumberType type, const void* bias, std::size_t count) {
    if (!bias) return {};
    std::vector<float> padded(round_up(count, kPanelColumns), 0.0f);
    if (type == NumberType::float32) {
        std::memcpy(padded.data(), bias, count * sizeof(float));
    } else {
        kKernels.active().widen(static_cast<const std::uint16_t*>(bias), padded.data(), count);
    }
    return padded;
}

// Where bfloat16 inputs are widened to; kept, for a step calls a hundred times.
float* scratch(std::size_t count) {
    thread_local std::vector<float> memory;
    if (memory.size() < count) memory.resize(count);
    return memory.data();
}

const float* widened(ThreadPool& pool, const void* x, std::size_t num_rows, std::size_t k) {
    float* wide = scratch(num_rows * k);
    const auto* rows = static_cast<const std::uint16_t*>(x);
    const std::size_t rows_at_once = std::max<std::size_t>(1, kTaskBytes / (2 * k));
    pool.run(divide_up(num_rows, rows_at_once), [&](std::size_t task, int) {
        const std::size_t begin = task * rows_at_once, end = std::min(num_rows, begin + rows_at_once);
        kKernels.active().widen(rows + begin * k, wide + begin * k, (end - begin) * k);
    });
    return wide;
}

}  // namespace

PackedLinear::PackedLinear(ThreadPool& pool, NumberType type, const void* weight, const void* bias,
                           std::size_t num_columns, std::size_t k)
    : PackedMatrix(num_columns, k), type_(type), panels_(num_panels() * panel_bytes()),
      bias_(padded_bias(type, bias, num_columns)) {
    // Padding of the last panel, and of the last pair of k, stays the arena's zeros.
    const std::size_t step = step_of(type);
    pool.run(num_panels(), [&](std::size_t panel, int) {
        const std::size_t lanes = std::min(kPanelColumns, num_columns - panel * kPanelColumns);
        const char* from = static_cast<const char*>(weight) + panel * kPanelColumns * k * item_bytes(type_);
        char* to = panels_.data() + panel * panel_bytes();
        if (type_ == NumberType::float32) {
            pack_panel(reinterpret_cast<const float*>(from), lanes, k, step, reinterpret_cast<float*>(to));
        } else {
            pack_panel(reinterpret_cast<const std::uint16_t*>(from), lanes, k, step,
                       reinterpret_cast<std::uint16_t*>(to));
        }
    });
}

std::size_t PackedLinear::num_panels() const { return divide_up(num_columns(), kPanelColumns); }

std::size_t PackedLinear::panel_bytes() const { return divide_up(k(), step_of(type_)) * 64; }

void PackedLinear::run(ThreadPool& pool, const void* x, NumberType x_type, std::size_t num_rows, NumberType out_type,
                       void* out) const {
    if (x_type != type_ || (out_type != type_ && out_type != NumberType::float32)) throw_other_type();
    (type_ == NumberType::float32 ? linear_float32 : linear_bfloat16).add();
    if (num_rows == 0) return;
    const LinearKernels& kernels = kKernels.active();
    const auto kernel = type_ == NumberType::float32      ? kernels.float32
                        : out_type == NumberType::float32 ? kernels.bfloat16_float32
                                                          : kernels.bfloat16;
    const float* rows = type_ == NumberType::float32 ? static_cast<const float*>(x) : widened(pool, x, num_rows, k());
    const std::size_t row_step = std::clamp(round_up(kRowsBytes / (4 * k() + 1), kRowsAtOnce), kRowsAtOnce, num_rows + 5);
    // Pairs of panels: few rows take two at once.
    const std::size_t panel_step = std::clamp<std::size_t>(kTaskBytes / panel_bytes() / 2 * 2, 2, 8);
    const std::size_t panel_tasks = divide_up(num_panels(), panel_step);
    pool.run(panel_tasks * divide_up(num_rows, row_step), [&](std::size_t task, int) {
        const std::size_t row = task / panel_tasks * row_step, panel = task % panel_tasks * panel_step;
        const std::size_t column = panel * kPanelColumns;
        kernel({.x = rows + row * k(),
                .num_rows = std::min(row_step, num_rows - row),
                .k = k(),
                .panels = panels_.data() + panel * panel_bytes(),
                .num_panels = std::min(panel_step, num_panels() - panel),
                .bias = bias_.empty() ? nullptr : bias_.data() + column,
                .out = static_cast<char*>(out) + (row * num_columns() + column) * item_bytes(out_type),
                .out_stride = num_columns(),
                .num_columns = num_columns() - column});
    });
}

void PackedLinear::unpack_rows(ThreadPool& pool, const std::int64_t* ids, std::size_t num_ids, NumberType out_type,
                               void* out) const {
    if (out_type != type_) throw_other_type();
    const std::size_t step = step_of(type_);
    pool.run(num_ids, [&](std::size_t i, int) {
        const std::size_t id = static_cast<std::size_t>(ids[i]), lane = id % kPanelColumns;
        const char* panel = panels_.data() + id / kPanelColumns * panel_bytes();
        char* row = static_cast<char*>(out) + i * k() * item_bytes(type_);
        if (type_ == NumberType::float32) {
            unpack_row(reinterpret_cast<const float*>(panel), lane, k(), step, reinterpret_cast<float*>(row));
        } else {
            unpack_row(reinterpret_cast<const std::uint16_t*>(panel), lane, k(), step,
                       reinterpret_cast<std::uint16_t*>(row));
        }
    });
}

}  // namespace octavo
