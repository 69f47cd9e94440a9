#include "quantized.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>

#include "dequantize.h"
#include "isa.h"
#include "quantized_panel.h"
#include "quantized_rows.h"

namespace octavo {
namespace {

constexpr IsaTable<QuantizedKernels> kKernels OCTAVO_ISA_TABLE_WITH_AMX(quantized_kernels);

constexpr std::string_view kNames[kNumWeightFormats] = {"Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1",
                                                        "Q4_K", "Q5_K", "Q6_K", "int8"};
KernelCounter counters[kNumWeightFormats] = {
    KernelCounter("linear_q8_0"), KernelCounter("linear_q4_0"), KernelCounter("linear_q4_1"),
    KernelCounter("linear_q5_0"), KernelCounter("linear_q5_1"), KernelCounter("linear_q4_k"),
    KernelCounter("linear_q5_k"), KernelCounter("linear_q6_k"), KernelCounter("linear_int8")};

constexpr std::size_t kTaskBytes = 64 << 10;  // of weights, at most: some microseconds, so that threads end together
constexpr std::size_t kLeastTaskBytes = 24 << 10;
constexpr std::size_t kRowsAtOnce = QuantizedRows::kRowsOfBlock;
constexpr std::size_t kFewRows = 8;  // weights come from memory, which each thread reads in one piece

std::size_t index_of(WeightFormat format) { return static_cast<std::size_t>(format); }

std::size_t columns_of(const std::vector<QuantizedMatrix::Source>& sources) {
    std::size_t sum = 0;
    for (const auto& source : sources) sum += source.rows.num_rows;
    return sum;
}

std::size_t panels_bytes(std::size_t k, const QuantizedMatrix::Source& source) {
    return divide_up(source.rows.num_rows, kQuantizedColumns) * layout_of(source.format).panel_bytes(divide_up(k, kGroup));
}

std::size_t panels_bytes(std::size_t k, const std::vector<QuantizedMatrix::Source>& sources) {
    std::size_t sum = 0;
    for (const auto& source : sources) sum += panels_bytes(k, source);
    return sum;
}

// Where quantised inputs are written to; kept, for a step calls a hundred times.
ActivationGroup* scratch(std::size_t count) {
    thread_local std::vector<ActivationGroup> memory;
    if (memory.size() < count) memory.resize(count);
    return memory.data();
}

// A source's rows by number, in the order that is asked.
class RowReader {
public:
    RowReader(const StoredRows& rows, std::size_t k) : rows_(rows), k_(k), format_(find_block_format(rows.type)) {
        if (!format_) throw std::invalid_argument("no block format " + std::string(rows.type));
        if (k % format_->block_size) {
            throw std::invalid_argument("rows of " + std::to_string(k) + " are not whole blocks of " +
                                        std::string(rows.type));
        }
    }

    const std::uint8_t* blocks(std::size_t row) const {
        const std::size_t stored = rows_.order ? static_cast<std::size_t>(rows_.order[row]) : row;
        return rows_.data + stored * (k_ / format_->block_size * format_->block_bytes);
    }

    bool has(WeightFormat format) const { return rows_.type == kNames[index_of(format)]; }

    void read(std::size_t row, float* out) const {
        format_->to_float32(blocks(row), k_ / format_->block_size, out);
    }

private:
    StoredRows rows_;
    std::size_t k_;
    const BlockFormat* format_;
};

}  // namespace

WeightFormat weight_format(std::string_view name) {
    const auto* found = std::find(std::begin(kNames), std::end(kNames), name);
    if (found == std::end(kNames)) {
        throw std::invalid_argument("there are no kernels for weights as " + std::string(name));
    }
    return static_cast<WeightFormat>(found - std::begin(kNames));
}

// Columns of one format, packed to where `panels` points.
struct QuantizedMatrix::Part {
    Part(std::size_t num_threads, const Source& source, std::size_t k, std::size_t first_column, const float* bias,
         char* panels)
        : format(source.format), layout(layout_of(format)), num_groups(divide_up(k, kGroup)),
          first_column(first_column), num_columns(source.rows.num_rows),
          panels_of_task(even_panels(num_threads)), panels(panels) {
        if (!bias) return;
        biases.resize(num_panels() * kQuantizedColumns);
        std::copy_n(bias + first_column, num_columns, biases.begin());
    }

    std::size_t num_panels() const { return divide_up(num_columns, kQuantizedColumns); }
    std::size_t panel_bytes() const { return layout.panel_bytes(num_groups); }

    // As many panels as are read fast in one piece, of those numbers the one after which the threads end together.
    std::size_t even_panels(std::size_t num_threads) const {
        const std::size_t most = std::max<std::size_t>(1, kTaskBytes / panel_bytes());
        const std::size_t least = std::max<std::size_t>(1, kLeastTaskBytes / panel_bytes());
        const auto longest = [&](std::size_t panels) {
            return divide_up(divide_up(num_panels(), panels), num_threads) * panels;
        };
        std::size_t best = most;
        for (std::size_t panels = most; panels-- > least;) {
            if (longest(panels) < longest(best)) best = panels;
        }
        return best;
    }
    std::size_t num_tasks() const { return divide_up(num_panels(), panels_of_task); }

    std::size_t lanes_of(std::size_t panel) const {
        return std::min(kQuantizedColumns, num_columns - panel * kQuantizedColumns);
    }
    PanelColumn column(std::size_t panel, std::size_t lane) const {
        return {panels + panel * panel_bytes(), lane, num_groups};
    }

    void pack(const RowReader& rows, std::size_t panel, std::size_t k) {
        rows.has(format) ? move(rows, panel) : quantize(rows, panel, k);
    }

    void move(const RowReader& rows, std::size_t panel) {
        const std::size_t step = layout.groups_of_block();
        for (std::size_t group = 0; group < num_groups; group += step) {
            for (std::size_t lane = 0; lane < lanes_of(panel); ++lane) {
                const std::uint8_t* blocks = rows.blocks(panel * kQuantizedColumns + lane);
                pack_blocks(format, blocks, group, group + step, column(panel, lane));
            }
        }
    }

    void quantize(const RowReader& rows, std::size_t panel, std::size_t k) {
        std::vector<float> numbers(num_groups * kGroup, 0.0f);
        for (std::size_t lane = 0; lane < lanes_of(panel); ++lane) {
            rows.read(panel * kQuantizedColumns + lane, numbers.data());
            std::fill(numbers.begin() + static_cast<std::ptrdiff_t>(k), numbers.end(), 0.0f);
            quantize_row(format, numbers.data(), column(panel, lane));
        }
    }

    QuantizedTask task(std::size_t number) const {
        const std::size_t panel = number * panels_of_task, column = panel * kQuantizedColumns;
        QuantizedTask task{};
        task.num_groups = num_groups;
        task.panels = panels + panel * panel_bytes();
        task.num_panels = std::min(panels_of_task, num_panels() - panel);
        task.bias = biases.empty() ? nullptr : biases.data() + column;
        task.num_columns = num_columns - column;
        return task;
    }

    const WeightFormat format;
    const PanelLayout layout;
    const std::size_t num_groups, first_column, num_columns, panels_of_task;
    char* const panels;
    std::vector<float> biases;  // padded to whole panels, or empty
};

QuantizedMatrix::QuantizedMatrix(ThreadPool& pool, std::size_t k, const std::vector<Source>& sources, const float* bias)
    : PackedMatrix(columns_of(sources), k), panels_(panels_bytes(k, sources)) {
    std::vector<RowReader> rows;
    std::size_t first_column = 0, num_panels = 0;
    char* panels = panels_.data();
    for (const Source& source : sources) {
        rows.emplace_back(source.rows, k);
        if (!rows.back().has(source.format) && !is_quantizer(source.format)) {
            throw std::invalid_argument("numbers are quantised to Q8_0, Q4_1 and int8 only");
        }
        const auto num_threads = static_cast<std::size_t>(pool.num_threads());
        parts_.push_back(std::make_unique<Part>(num_threads, source, k, first_column, bias, panels));
        first_column += source.rows.num_rows;
        num_panels += parts_.back()->num_panels();
        panels += panels_bytes(k, source);
    }
    // In the parts that few rows read them by, so that a thread's memory is near it.
    pool.run_in_parts(num_panels, [&](std::size_t panel, int) {
        std::size_t part = 0;
        while (panel >= parts_[part]->num_panels()) panel -= parts_[part++]->num_panels();
        parts_[part]->pack(rows[part], panel, k);
    });
}

QuantizedMatrix::~QuantizedMatrix() = default;

std::size_t QuantizedMatrix::quantized_row_bytes() const { return QuantizedRows::row_bytes(k()); }

std::size_t QuantizedMatrix::bytes() const {
    std::size_t sum = panels_.bytes();
    for (const auto& part : parts_) sum += part->biases.size() * sizeof(float);
    return sum;
}

std::size_t QuantizedMatrix::num_column_tasks() const {
    std::size_t sum = 0;
    for (const auto& part : parts_) sum += part->num_tasks();
    return sum;
}

std::size_t QuantizedMatrix::column_tasks_together(std::size_t num_rows) const {
    const bool has_halves = parts_.size() == 2 && parts_[0]->num_columns == parts_[1]->num_columns &&
                            parts_[0]->num_tasks() == parts_[1]->num_tasks();
    return has_halves && num_rows > kFewRows ? 2 : 1;
}

template <class Put>
void QuantizedMatrix::run_tiles(ThreadPool& pool, Activations x, std::size_t num_rows, NumberType out_type,
                                std::size_t together, const Put& put) const {
    for (const auto& part : parts_) counters[index_of(part->format)].add(kKernels.chosen());
    if (num_rows == 0) return;
    const QuantizedKernels& kernels = kKernels.active();
    QuantizedRows inputs{static_cast<ActivationGroup*>(x.data), num_rows, k()};
    if (!x.quantized) {
        inputs.data = scratch(num_rows * num_groups());
        quantize_rows(pool, x.data, x.type, inputs);
    }
    const std::size_t column_tasks = num_column_tasks(), tasks_of_rows = column_tasks / together;
    const auto run_column_task = [&](std::size_t row, std::size_t number) {
        std::size_t of_part = number;
        auto part = parts_.begin();
        while (of_part >= (*part)->num_tasks()) of_part -= (*part++)->num_tasks();
        QuantizedTask task = (*part)->task(of_part);
        task.x = inputs.first_group(row);
        task.x_stride = inputs.stride(row);
        task.num_rows = std::min(kRowsAtOnce, num_rows - row);
        const std::size_t column = (*part)->first_column + (*part)->num_columns - task.num_columns;
        const std::size_t columns = std::min(task.num_panels * kQuantizedColumns, task.num_columns);
        const auto& kernel = out_type == NumberType::float32 ? kernels.to_float32 : kernels.to_bfloat16;
        put(ResultTile{number, row, task.num_rows, column, columns}, [&](void* out, std::size_t stride) {
            task.out = out;
            task.out_stride = stride;
            kernel[index_of((*part)->format)](task);
        });
    };
    const auto run_task = [&](std::size_t number, int) {
        const std::size_t row = number / tasks_of_rows * kRowsAtOnce;
        for (std::size_t i = number % tasks_of_rows; i < column_tasks; i += tasks_of_rows) run_column_task(row, i);
    };
    if (num_rows <= kRowsAtOnce) return pool.run_in_parts(tasks_of_rows, run_task);
    pool.run(tasks_of_rows * divide_up(num_rows, kRowsAtOnce), run_task);
}

void QuantizedMatrix::run(ThreadPool& pool, Activations x, std::size_t num_rows, NumberType out_type, void* out,
                          const TileStored& stored) const {
    const std::size_t together = stored ? column_tasks_together(num_rows) : 1;
    run_tiles(pool, x, num_rows, out_type, together, [&](const ResultTile& tile, const auto& compute) {
        const std::size_t first = tile.row * num_columns() + tile.column;
        compute(static_cast<char*>(out) + first * item_bytes(out_type), num_columns());
        if (stored) stored(tile);
    });
}

void QuantizedMatrix::run_best(ThreadPool& pool, Activations x, std::size_t num_rows, float softcap,
                               double* best) const {
    BestColumns found(num_rows, num_column_tasks(), softcap);
    run_tiles(pool, x, num_rows, NumberType::float32, 1, [&](const ResultTile& tile, const auto& compute) {
        float* room = BestColumns::room(tile);
        compute(room, tile.num_columns);
        found.take(tile, room);
    });
    found.write(best);
}

const QuantizedMatrix::Part& QuantizedMatrix::part_of(std::size_t column) const {
    auto part = parts_.begin();
    while (column >= (*part)->first_column + (*part)->num_columns) ++part;
    return **part;
}

void QuantizedMatrix::unpack_rows(ThreadPool& pool, const std::int64_t* ids, std::size_t num_ids, NumberType out_type,
                                  void* out) const {
    pool.run(num_ids, [&](std::size_t i, int) {
        const std::size_t id = static_cast<std::size_t>(ids[i]);
        const Part& part = part_of(id);
        const std::size_t column = id - part.first_column;
        std::vector<float> row(num_groups() * kGroup);
        unpack_row(part.format, part.column(column / kQuantizedColumns, column % kQuantizedColumns), row.data());
        char* to = static_cast<char*>(out) + i * k() * item_bytes(out_type);
        if (out_type == NumberType::float32) {
            std::copy_n(row.data(), k(), reinterpret_cast<float*>(to));
        } else {
            to_bfloat16(row.data(), k(), reinterpret_cast<std::uint16_t*>(to));
        }
    });
}

}  // namespace octavo
