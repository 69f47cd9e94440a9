#include "lora.h"

#include <algorithm>
#include <span>
#include <stdexcept>

#include "isa.h"
#include "simd/linear.h"

namespace octavo {
namespace {

constexpr IsaTable<LoraKernels> kKernels OCTAVO_ISA_TABLE(lora_kernels);
constexpr IsaTable<LinearKernels> kLinear OCTAVO_ISA_TABLE_WITH_AMX(linear_kernels);
KernelCounter lora_counter("lora");

constexpr std::size_t kPanelsPerTask = 16;  // at usual ranks they stay in the first-level cache for a task's rows

template <class T>
void pack(const T* a, const T* b, const LowRankUpdate& update, T* packed_a, T* packed_b) {
    const std::size_t rank = update.rank(), k = update.k(), stride = update.padded_rank();
    for (std::size_t r = 0; r < rank; ++r) {
        for (std::size_t i = 0; i < k; ++i) packed_a[i * stride + r] = a[r * k + i];
    }
    for (std::size_t column = 0; column < update.num_columns(); ++column) {
        T* panel = packed_b + column / kLoraColumns * rank * kLoraColumns + column % kLoraColumns;
        for (std::size_t r = 0; r < rank; ++r) panel[r * kLoraColumns] = b[column * rank + r];
    }
}

// Kept, for a step calls a hundred times: one of each per thread and use.
template <class T, class Use>
T* scratch(std::size_t count) {
    thread_local std::vector<T> memory;
    if (memory.size() < count) memory = std::vector<T>(count);
    return memory.data();
}

}  // namespace

LowRankUpdate::LowRankUpdate(NumberType type, const void* a, const void* b, std::size_t rank, std::size_t k,
                             std::size_t num_columns, float scale)
    : type_(type), rank_(rank), k_(k), num_columns_(num_columns), scale_(scale),
      a_(k * padded_rank() * item_bytes(type)), b_(num_panels() * rank * kLoraColumns * item_bytes(type)) {
    if (type == NumberType::float32) {
        pack(static_cast<const float*>(a), static_cast<const float*>(b), *this, reinterpret_cast<float*>(a_.data()),
             reinterpret_cast<float*>(b_.data()));
    } else {
        pack(static_cast<const std::uint16_t*>(a), static_cast<const std::uint16_t*>(b), *this,
             reinterpret_cast<std::uint16_t*>(a_.data()), reinterpret_cast<std::uint16_t*>(b_.data()));
    }
}

std::size_t LowRankUpdate::padded_rank() const { return divide_up(rank_, kLoraLanes) * kLoraLanes; }
const char* LowRankUpdate::panel(std::size_t index) const {
    return b_.data() + index * rank_ * kLoraColumns * item_bytes(type_);
}
std::size_t LowRankUpdate::num_panels() const { return divide_up(num_columns_, kLoraColumns); }

RowsBySlot::RowsBySlot(const std::int32_t* row_slots, std::size_t num_rows) : row_slots_(row_slots, row_slots + num_rows) {
    for (std::size_t row = 0; row < num_rows; ++row) {
        if (row_slots[row] >= 0) order_.push_back(row);
    }
    std::ranges::stable_sort(order_, {}, [&](std::size_t row) { return row_slots[row]; });
    for (std::size_t place = 0; place < order_.size(); ++place) {
        const auto slot = static_cast<std::size_t>(row_slots[order_[place]]);
        const bool goes_on = !runs_.empty() && runs_.back().slot == slot && place - runs_.back().first < kMostLoraRows;
        if (!goes_on) runs_.push_back({slot, place, place});
        runs_.back().last = place + 1;
    }
}

bool RowsBySlot::is_of(const std::int32_t* row_slots, std::size_t num_rows) const {
    return std::ranges::equal(row_slots_, std::span(row_slots, num_rows));
}

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
        for (std::size_t panel = 0; panel * kLoraColumns < columns_[part]; panel += kPanelsPerTask) {
            chunks_.push_back({part, panel});
        }
    }
}

void LoraSlots::put(std::size_t slot, std::size_t part, std::shared_ptr<const LowRankUpdate> update) {
    if (slot >= num_slots_ || part >= columns_.size()) throw std::out_of_range("there is no such slot or projection");
    if (update && (update->k() != k_ || update->num_columns() != columns_[part])) {
        throw std::invalid_argument("the update is not of this projection's shape");
    }
    updates_[slot * columns_.size() + part] = std::move(update);
}

std::size_t LoraSlots::most_padded_rank() const {
    std::size_t most = 0;
    for (const auto& update : updates_) most = update ? std::max(most, update->padded_rank()) : most;
    return most;
}

void LoraSlots::run(ThreadPool& pool, const void* x, const std::int32_t* row_slots, std::size_t num_rows,
                    Results y) const {
    thread_local RowsBySlot rows;  // all layers of a step have the same
    if (!rows.is_of(row_slots, num_rows)) rows = RowsBySlot(row_slots, num_rows);
    if (rows.runs().empty()) return;
    if (rows.runs().back().slot >= num_slots_) throw std::out_of_range("there is no such LoRA slot");
    lora_counter.add(kKernels.chosen());
    const std::size_t num_parts = columns_.size(), lanes = most_padded_rank(), num_runs = rows.runs().size();
    const LowNumbers low{scratch<float, LowNumbers>(rows.size() * num_parts * lanes), num_parts, lanes};
    pool.run(num_runs, [&, &rows = rows](std::size_t run, int) { shrink(rows, rows.runs()[run], x, low); });
    // Column by column, as the layer's own weight was shared out: results are still near the thread that wrote them.
    const std::size_t num_tasks = num_runs * chunks_.size();
    const auto start = [&, &rows = rows](std::size_t task) {
        return start_of(rows.runs()[task % num_runs].slot, chunks_[task / num_runs]);
    };
    pool.run_in_parts(num_tasks, [&, &rows = rows](std::size_t task, int) {
        const char *here = start(task), *next = task + 1 < num_tasks ? start(task + 1) : here;
        if (!here) return;
        expand(rows, rows.runs()[task % num_runs], chunks_[task / num_runs], low, y, next ? next - here : 0);
    });
}

void LoraSlots::shrink(const RowsBySlot& rows, const RowsBySlot::Run& run, const void* x, const LowNumbers& low) const {
    const std::size_t count = run.last - run.first;
    float* wide = type_ == NumberType::bfloat16 ? scratch<float, LoraSlots>(count * k_) : nullptr;
    const float* inputs[kMostLoraRows];
    for (std::size_t i = 0; i < count; ++i) {
        const std::size_t number = rows.row(run.first + i) * k_;
        inputs[i] = wide ? wide + i * k_ : static_cast<const float*>(x) + number;
        if (wide) kLinear.active().widen(static_cast<const std::uint16_t*>(x) + number, wide + i * k_, k_);
    }
    for (std::size_t part = 0; part < columns_.size(); ++part) {
        const LowRankUpdate* found = update(run.slot, part);
        if (!found) continue;
        float* outputs[kMostLoraRows];
        for (std::size_t i = 0; i < count; ++i) outputs[i] = low.of(run.first + i, part);
        const auto kernel = kKernels.active().shrink[found->type() == NumberType::bfloat16];
        kernel({inputs, outputs, found->a(), count, k_, found->padded_rank(), found->scale()});
    }
}

const char* LoraSlots::start_of(std::size_t slot, Chunk chunk) const {
    const LowRankUpdate* found = update(slot, chunk.part);
    return found ? found->panel(chunk.first_panel) : nullptr;
}

void LoraSlots::expand(const RowsBySlot& rows, const RowsBySlot::Run& run, Chunk chunk, const LowNumbers& low,
                       Results y, std::ptrdiff_t ahead) const {
    const LowRankUpdate* found = update(run.slot, chunk.part);
    const std::size_t count = run.last - run.first;
    const float* inputs[kMostLoraRows];
    void* outputs[kMostLoraRows];
    for (std::size_t i = 0; i < count; ++i) {
        const std::size_t number = rows.row(run.first + i) * width_ + first_column_[chunk.part];
        inputs[i] = low.of(run.first + i, chunk.part);
        outputs[i] = static_cast<char*>(y.numbers) + number * item_bytes(y.type);
    }
    const auto kernel =
        kKernels.active().expand[found->type() == NumberType::bfloat16][y.type == NumberType::bfloat16];
    const std::size_t last_panel = std::min(chunk.first_panel + kPanelsPerTask, found->num_panels());
    kernel({outputs, inputs, found->b(), count, found->rank(), found->num_columns(), chunk.first_panel, last_panel, ahead});
}

}  // namespace octavo
