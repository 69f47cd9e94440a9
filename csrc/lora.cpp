#include "lora.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "isa.h"

namespace octavo {
namespace {

constexpr IsaTable<LoraKernels> kKernels OCTAVO_ISA_TABLE(lora_kernels);
KernelCounter lora_counter("lora");

constexpr std::size_t kPanelsPerTask = 64;  // at usual ranks they stay in the first-level cache for a task's rows
constexpr std::size_t kRowsPerTask = 16;    // read an adapter's weights once

std::size_t padded(std::size_t number) { return divide_up(number, kLoraLanes) * kLoraLanes; }

template <class T>
void pack(const T* a, const T* b, const LowRankUpdate& update, T* packed_a, T* packed_b) {
    const std::size_t rank = update.rank(), k = update.k(), stride = update.padded_rank();
    for (std::size_t r = 0; r < rank; ++r) {
        for (std::size_t i = 0; i < k; ++i) packed_a[i * stride + r] = a[r * k + i];
    }
    for (std::size_t column = 0; column < update.num_columns(); ++column) {
        T* panel = packed_b + column / kLoraLanes * rank * kLoraLanes + column % kLoraLanes;
        for (std::size_t r = 0; r < rank; ++r) panel[r * kLoraLanes] = b[column * rank + r];
    }
}

// Results of the first product; kept, for a step calls a hundred times.
float* scratch(std::size_t count) {
    thread_local std::vector<float> memory;
    if (memory.size() < count) memory.resize(count);
    return memory.data();
}

}  // namespace

LowRankUpdate::LowRankUpdate(NumberType type, const void* a, const void* b, std::size_t rank, std::size_t k,
                             std::size_t num_columns, float scale)
    : type_(type), rank_(rank), k_(k), num_columns_(num_columns), scale_(scale),
      a_(k * padded_rank() * item_bytes(type)), b_(num_panels() * rank * kLoraLanes * item_bytes(type)) {
    if (type == NumberType::float32) {
        pack(static_cast<const float*>(a), static_cast<const float*>(b), *this, reinterpret_cast<float*>(a_.data()),
             reinterpret_cast<float*>(b_.data()));
    } else {
        pack(static_cast<const std::uint16_t*>(a), static_cast<const std::uint16_t*>(b), *this,
             reinterpret_cast<std::uint16_t*>(a_.data()), reinterpret_cast<std::uint16_t*>(b_.data()));
    }
}

std::size_t LowRankUpdate::padded_rank() const { return padded(rank_); }
std::size_t LowRankUpdate::num_panels() const { return divide_up(num_columns_, kLoraLanes); }

// The rows of a step that have an adapter, by slot, and runs of up to kRowsPerTask of one slot.
struct LoraSlots::Rows {
    struct Run {
        std::size_t slot, first, last;
    };
    std::vector<std::size_t> order;
    std::vector<Run> runs;
};

// Results of the first product: for each row, by its place in the order, and each projection `lanes` numbers.
struct LoraSlots::LowNumbers {
    float* numbers;
    std::size_t num_parts, lanes;

    float* of(std::size_t place, std::size_t part) const { return numbers + (place * num_parts + part) * lanes; }
};

LoraSlots::LoraSlots(NumberType type, std::size_t num_slots, std::size_t k, std::vector<std::size_t> columns_of_parts)
    : type_(type), num_slots_(num_slots), k_(k), columns_(std::move(columns_of_parts)),
      updates_(num_slots * columns_.size()) {
    for (std::size_t part = 0; part < columns_.size(); ++part) {
        first_column_.push_back(width_);
        width_ += columns_[part];
        for (std::size_t panel = 0; panel * kLoraLanes < columns_[part]; panel += kPanelsPerTask) {
            chunks_.push_back({part, panel});
        }
    }
}

void LoraSlots::put(std::size_t slot, std::size_t part, std::shared_ptr<const LowRankUpdate> update) {
    if (slot >= num_slots_ || part >= columns_.size()) throw std::out_of_range("there is no such slot or projection");
    if (update && (update->type() != type_ || update->k() != k_ || update->num_columns() != columns_[part])) {
        throw std::invalid_argument("the update is not of this projection's type and shape");
    }
    updates_[slot * columns_.size() + part] = std::move(update);
}

LoraSlots::Rows LoraSlots::rows_by_slot(const std::int32_t* row_slots, std::size_t num_rows) const {
    Rows rows;
    for (std::size_t row = 0; row < num_rows; ++row) {
        if (row_slots[row] < 0) continue;
        if (static_cast<std::size_t>(row_slots[row]) >= num_slots_) throw std::out_of_range("no such LoRA slot");
        rows.order.push_back(row);
    }
    std::ranges::stable_sort(rows.order, {}, [&](std::size_t row) { return row_slots[row]; });
    for (std::size_t place = 0; place < rows.order.size(); ++place) {
        const auto slot = static_cast<std::size_t>(row_slots[rows.order[place]]);
        const bool goes_on = !rows.runs.empty() && rows.runs.back().slot == slot &&
                             place - rows.runs.back().first < kRowsPerTask;
        if (!goes_on) rows.runs.push_back({slot, place, place});
        rows.runs.back().last = place + 1;
    }
    return rows;
}

std::size_t LoraSlots::most_padded_rank() const {
    std::size_t most = 0;
    for (const auto& update : updates_) most = update ? std::max(most, update->padded_rank()) : most;
    return most;
}

void LoraSlots::run(ThreadPool& pool, const void* x, const std::int32_t* row_slots, std::size_t num_rows,
                    Results y) const {
    const Rows rows = rows_by_slot(row_slots, num_rows);
    if (rows.runs.empty()) return;
    lora_counter.add();
    const std::size_t num_parts = columns_.size(), lanes = most_padded_rank();
    const LowNumbers low{scratch(rows.order.size() * num_parts * lanes), num_parts, lanes};
    shrink(pool, rows, x, low);
    expand(pool, rows, low, y);
}

void LoraSlots::shrink(ThreadPool& pool, const Rows& rows, const void* x, const LowNumbers& low) const {
    const auto kernel = kKernels.active().shrink[type_ == NumberType::bfloat16];
    const std::size_t row_bytes = k_ * item_bytes(type_);
    pool.run(rows.runs.size() * columns_.size(), [&](std::size_t task, int) {
        const Rows::Run& run = rows.runs[task / columns_.size()];
        const std::size_t part = task % columns_.size();
        const LowRankUpdate* found = update(run.slot, part);
        if (!found) return;
        for (std::size_t first = run.first; first < run.last; first += kMostLoraRows) {
            const std::size_t count = std::min(run.last - first, kMostLoraRows);
            const void* inputs[kMostLoraRows];
            float* outputs[kMostLoraRows];
            for (std::size_t i = 0; i < count; ++i) {
                inputs[i] = static_cast<const char*>(x) + rows.order[first + i] * row_bytes;
                outputs[i] = low.of(first + i, part);
            }
            kernel({inputs, outputs, found->a(), count, k_, found->padded_rank(), found->scale()});
        }
    });
}

void LoraSlots::expand(ThreadPool& pool, const Rows& rows, const LowNumbers& low, Results y) const {
    const auto kernel =
        kKernels.active().expand[type_ == NumberType::bfloat16][y.type == NumberType::bfloat16];
    pool.run(rows.runs.size() * chunks_.size(), [&](std::size_t task, int) {
        const Rows::Run& run = rows.runs[task / chunks_.size()];
        const auto [part, first_panel] = chunks_[task % chunks_.size()];
        const LowRankUpdate* found = update(run.slot, part);
        if (!found) return;
        const std::size_t last_panel = std::min(first_panel + kPanelsPerTask, found->num_panels());
        for (std::size_t first = run.first; first < run.last; first += kMostLoraRows) {
            const std::size_t count = std::min(run.last - first, kMostLoraRows);
            const float* inputs[kMostLoraRows];
            void* outputs[kMostLoraRows];
            for (std::size_t i = 0; i < count; ++i) {
                const std::size_t number = rows.order[first + i] * width_ + first_column_[part];
                inputs[i] = low.of(first + i, part);
                outputs[i] = static_cast<char*>(y.numbers) + number * item_bytes(y.type);
            }
            kernel({outputs, inputs, found->b(), count, found->rank(), found->num_columns(), first_panel, last_panel});
        }
    });
}

}  // namespace octavo
