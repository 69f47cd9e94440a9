#include "linear.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>

namespace octavo {
namespace {

constexpr IsaTable<LinearKernels> kKernels OCTAVO_ISA_TABLE_WITH_AMX(linear_kernels);
KernelCounter linear_counter("linear"), gated_counter("linear_gated");

constexpr std::size_t kTasksPerThread = 8;      // so that threads end together
constexpr std::size_t kMostPanelsPerTask = 8;
constexpr std::size_t kFewRows = 16;            // weights come from memory, and only once
constexpr std::size_t kStreamedRows = 128;      // reading weights takes a share of the time worth hiding
constexpr std::size_t kPackedAtOnce = 64;       // words of each row: what is written then stays in the first-level cache
constexpr std::size_t kWidenedAtOnce = 32768;   // numbers

// A panel is rows of 4-byte words: see simd/linear.h.
void pack_panel(const char* rows, std::size_t row_bytes, std::size_t num_rows, std::size_t columns, char* panel) {
    const std::size_t num_words = row_bytes / 4, rest = row_bytes % 4;
    for (std::size_t start = 0; start < num_words; start += kPackedAtOnce) {
        const std::size_t end = std::min(num_words, start + kPackedAtOnce);
        for (std::size_t row = 0; row < num_rows; ++row) {
            const char* from = rows + row * row_bytes;
            for (std::size_t i = start; i < end; ++i) std::memcpy(panel + (i * columns + row) * 4, from + i * 4, 4);
        }
    }
    for (std::size_t row = 0; rest && row < num_rows; ++row) {
        std::memcpy(panel + (num_words * columns + row) * 4, rows + row * row_bytes + num_words * 4, rest);
    }
}

void unpack_row(const char* panel, std::size_t lane, std::size_t columns, std::size_t row_bytes, char* row) {
    for (std::size_t i = 0; i < row_bytes; i += 4) {
        std::memcpy(row + i, panel + (i * columns) + lane * 4, std::min<std::size_t>(4, row_bytes - i));
    }
}

[[noreturn]] void throw_other_type() {
    throw std::invalid_argument("a dense weight takes and gives numbers of its own type; results may be float32 too");
}

// Where bfloat16 inputs are widened to; kept, for a step calls a hundred times.
float* scratch(std::size_t count) {
    thread_local std::vector<float> memory;
    if (memory.size() < count) memory.resize(count);
    return memory.data();
}

const float* widened(ThreadPool& pool, const LinearKernels& kernels, const void* x, std::size_t count) {
    float* wide = scratch(count);
    const auto* numbers = static_cast<const std::uint16_t*>(x);
    pool.run(divide_up(count, kWidenedAtOnce), [&](std::size_t task, int) {
        const std::size_t begin = task * kWidenedAtOnce;
        kernels.widen(numbers + begin, wide + begin, std::min(kWidenedAtOnce, count - begin));
    });
    return wide;
}

// How rows and panels are shared out: pairs of panels, which tiles of many rows and gated results want together.
struct Split {
    std::size_t rows_per_task, panels_per_task;
};

Split split(TaskRows rows, std::size_t num_rows, std::size_t num_panels, std::size_t panels_together,
            std::size_t num_threads) {
    const std::size_t wanted = kTasksPerThread * num_threads;
    const std::size_t panels = std::min(num_panels / wanted, kMostPanelsPerTask) / 2 * 2;
    if (num_rows <= kFewRows) return {num_rows, std::max(panels, panels_together)};
    const std::size_t for_balance = std::min(divide_up(wanted, divide_up(num_panels, 2)), num_rows / rows.least);
    const std::size_t row_tasks = std::max({divide_up(num_rows, rows.most), for_balance, std::size_t{1}});
    const std::size_t rows_per_task = divide_up(divide_up(num_rows, row_tasks), rows.block) * rows.block;
    return {rows_per_task, row_tasks == 1 ? std::max<std::size_t>(panels, 2) : 2};
}

}  // namespace

PackedLinear::PackedLinear(ThreadPool& pool, NumberType type, const void* weight, const void* bias,
                           std::size_t num_columns, std::size_t k, bool gated)
    : PackedMatrix(num_columns, k), isa_(kKernels.chosen()), kernels_(kKernels.of(isa_)), type_(type), gated_(gated),
      panels_(num_panels() * panel_bytes()), bias_(padded_bias(bias)) {
    if (gated && num_columns % 2) throw std::invalid_argument("a gated matrix has as many gates as other columns");
    const std::size_t row_bytes = k * item_bytes(type);
    // In the parts that few rows read them by, so that a thread's memory is near it. Padding of the last panel, and of the
    // last word of a row, stays the arena's zeros.
    pool.run_in_parts(num_panels(), [&](std::size_t index, int) {
        const Columns columns = columns_of(index);
        const char* rows = static_cast<const char*>(weight) + columns.first * row_bytes;
        pack_panel(rows, row_bytes, columns.count, panel_columns(), panel(index));
    });
}

std::size_t PackedLinear::panel_bytes() const { return divide_up(k() * item_bytes(type_), 4) * 4 * panel_columns(); }

std::size_t PackedLinear::num_panels() const {
    return gated_ ? 2 * divide_up(num_columns() / 2, panel_columns()) : divide_up(num_columns(), panel_columns());
}

PackedLinear::Columns PackedLinear::columns_of(std::size_t panel) const {
    const std::size_t half = num_columns() / 2, column = (gated_ ? panel / 2 : panel) * panel_columns();
    const std::size_t left = (gated_ ? half : num_columns()) - column;
    return {column + (gated_ && panel % 2 ? half : 0), std::min(left, panel_columns())};
}

std::vector<float> PackedLinear::padded_bias(const void* bias) const {
    if (!bias) return {};
    std::vector<float> padded(num_panels() * panel_columns(), 0.0f);
    for (std::size_t index = 0; index < num_panels(); ++index) {
        const Columns columns = columns_of(index);
        float* to = padded.data() + index * panel_columns();
        if (type_ == NumberType::float32) {
            std::memcpy(to, static_cast<const float*>(bias) + columns.first, columns.count * sizeof(float));
        } else {
            kernels_.widen(static_cast<const std::uint16_t*>(bias) + columns.first, to, columns.count);
        }
    }
    return padded;
}

struct PackedLinear::Tasks {
    // run_task(what to compute, and which results those are)
    template <class RunTask>
    void run(ThreadPool& pool, const RunTask& run_task) const {
        const auto run_numbered = [&](std::size_t index, int) {
            LinearTask part = task;
            const std::size_t row = index % row_tasks * rows_per_task;
            part.x = static_cast<const char*>(task.x) + row * row_bytes;
            part.num_rows = std::min(rows_per_task, task.num_rows - row);
            part.first_panel = index / row_tasks * panels_per_task;
            part.last_panel = std::min(part.first_panel + panels_per_task, num_panels);
            const std::size_t column = part.first_panel * panel_columns;
            const std::size_t end = std::min(part.last_panel * panel_columns, task.num_columns);
            run_task(part, ResultTile{index / row_tasks, row, part.num_rows, column, end - column});
        };
        if (row_tasks == 1) return pool.run_in_parts(panel_tasks, run_numbered);
        // All rows of some panels before the next: weights come from memory once.
        pool.run(panel_tasks * row_tasks, run_numbered);
    }

    LinearTask task;  // of all rows and panels
    std::size_t row_bytes, rows_per_task, row_tasks, panels_per_task, panel_tasks, num_panels, panel_columns;
};

PackedLinear::Tasks PackedLinear::tasks_of(ThreadPool& pool, const void* x, std::size_t num_rows, LinearTask task) const {
    const bool widens = type_ == NumberType::bfloat16 && kernels_.widens;
    const TaskRows rows = type_ == NumberType::float32 ? kernels_.rows_of_float32 : kernels_.rows_of_bfloat16;
    const auto num_threads = static_cast<std::size_t>(pool.num_threads());
    const Split step = split(rows, num_rows, num_panels(), gated_ ? 2 : 1, num_threads);
    task.x = widens ? widened(pool, kernels_, x, num_rows * k()) : x;
    task.num_rows = num_rows;
    task.k = k();
    task.panels = panels_.data();
    task.streams = num_rows <= kStreamedRows;
    task.bias = bias_.empty() ? nullptr : bias_.data();
    task.num_columns = num_columns();
    task.paired = gated_;
    return {.task = task,
            .row_bytes = k() * (widens ? sizeof(float) : item_bytes(type_)),
            .rows_per_task = step.rows_per_task,
            .row_tasks = divide_up(num_rows, step.rows_per_task),
            .panels_per_task = step.panels_per_task,
            .panel_tasks = divide_up(num_panels(), step.panels_per_task),
            .num_panels = num_panels(),
            .panel_columns = panel_columns()};
}

void PackedLinear::run(ThreadPool& pool, Activations x, std::size_t num_rows, NumberType out_type, void* out,
                       const TileStored& stored) const {
    if (gated_ && stored) throw std::invalid_argument("tiles of a gated matrix are not of its columns in their order");
    if (!takes(x) || (out_type != type_ && out_type != NumberType::float32)) throw_other_type();
    linear_counter.add(isa_);
    const LinearKernel kernel = type_ == NumberType::float32      ? kernels_.float32
                                : out_type == NumberType::float32 ? kernels_.bfloat16_float32
                                                                  : kernels_.bfloat16;
    run_kernel(pool, kernel, x.data, num_rows, {.out = out, .out_stride = num_columns()}, out_type, stored);
}

void PackedLinear::run_gated(ThreadPool& pool, Activations x, std::size_t num_rows, Activation activation,
                             Activations out) const {
    if (!gated_) return PackedMatrix::run_gated(pool, x, num_rows, activation, out);
    if (!takes(x) || !takes(out)) throw_other_type();
    gated_counter.add(isa_);
    const LinearKernel kernel = type_ == NumberType::float32 ? kernels_.gated_float32 : kernels_.gated_bfloat16;
    run_kernel(pool, kernel, x.data, num_rows, {.out = out.data, .out_stride = num_columns() / 2, .activation = activation},
               type_, {});
}

void PackedLinear::run_best(ThreadPool& pool, Activations x, std::size_t num_rows, float softcap, double* best) const {
    if (!takes(x) || gated_) throw_other_type();
    if (num_rows == 0) return;
    linear_counter.add(isa_);
    const LinearKernel kernel = type_ == NumberType::float32 ? kernels_.float32 : kernels_.bfloat16_float32;
    const Tasks tasks = tasks_of(pool, x.data, num_rows, {});
    BestColumns found(num_rows, tasks.panel_tasks, softcap);
    tasks.run(pool, [&](LinearTask part, const ResultTile& tile) {
        float* room = BestColumns::room(tile);
        part.out = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(room) - tile.column * sizeof(float));
        part.out_stride = tile.num_columns;
        kernel(part);
        found.take(tile, room);
    });
    found.write(best);
}

// `task` says where results go.
void PackedLinear::run_kernel(ThreadPool& pool, LinearKernel kernel, const void* x, std::size_t num_rows,
                              LinearTask task, NumberType out_type, const TileStored& stored) const {
    if (num_rows == 0) return;
    tasks_of(pool, x, num_rows, task).run(pool, [&](LinearTask part, const ResultTile& tile) {
        part.out = static_cast<char*>(task.out) + tile.row * task.out_stride * item_bytes(out_type);
        kernel(part);
        if (stored) stored(tile);
    });
}

void PackedLinear::unpack_rows(ThreadPool& pool, const std::int64_t* ids, std::size_t num_ids, NumberType out_type,
                               void* out) const {
    if (out_type != type_) throw_other_type();
    const std::size_t row_bytes = k() * item_bytes(type_), half = num_columns() / 2;
    pool.run(num_ids, [&](std::size_t i, int) {
        const std::size_t id = static_cast<std::size_t>(ids[i]);
        const bool second = gated_ && id >= half;
        const std::size_t column = second ? id - half : id, index = column / panel_columns();
        unpack_row(panel(gated_ ? 2 * index + second : index), column % panel_columns(), panel_columns(), row_bytes,
                   static_cast<char*>(out) + i * row_bytes);
    });
}

}  // namespace octavo
