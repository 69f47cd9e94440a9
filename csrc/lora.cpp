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

constexpr std::size_t kPanelsPerTask = 64;  // some microseconds of work

std::size_t divide_up(std::size_t number, std::size_t divisor) { return (number + divisor - 1) / divisor; }
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

// Results of the first product: of each tile and projection a row of `lanes` numbers for each of the tile's rows.
struct LoraSlots::LowNumbers {
    float* numbers;
    std::size_t num_parts, lanes;

    float* of(std::size_t tile, std::size_t part, std::size_t row) const {
        return numbers + ((tile * num_parts + part) * kMostLoraRows + row) * lanes;
    }
};

// Rows of one slot, up to kMostLoraRows.
struct LoraSlots::Tile {
    std::size_t slot, num_rows;
    std::size_t rows[kMostLoraRows];
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

std::vector<LoraSlots::Tile> LoraSlots::tiles_of(const std::int32_t* row_slots, std::size_t num_rows) const {
    std::vector<Tile> tiles;
    std::vector<std::size_t> order;  // rows that have an adapter, by slot: its weights are then read once
    for (std::size_t row = 0; row < num_rows; ++row) {
        if (row_slots[row] < 0) continue;
        if (static_cast<std::size_t>(row_slots[row]) >= num_slots_) throw std::out_of_range("no such LoRA slot");
        order.push_back(row);
    }
    std::ranges::stable_sort(order, {}, [&](std::size_t row) { return row_slots[row]; });
    for (const std::size_t row : order) {
        const auto slot = static_cast<std::size_t>(row_slots[row]);
        if (tiles.empty() || tiles.back().slot != slot || tiles.back().num_rows == kMostLoraRows) {
            tiles.push_back({slot, 0, {}});
        }
        Tile& tile = tiles.back();
        tile.rows[tile.num_rows++] = row;
    }
    return tiles;
}

std::size_t LoraSlots::most_padded_rank() const {
    std::size_t most = 0;
    for (const auto& update : updates_) most = update ? std::max(most, update->padded_rank()) : most;
    return most;
}

void LoraSlots::run(ThreadPool& pool, const void* x, const std::int32_t* row_slots, std::size_t num_rows,
                    void* y) const {
    const std::vector<Tile> tiles = tiles_of(row_slots, num_rows);
    if (tiles.empty()) return;
    lora_counter.add();
    const std::size_t num_parts = columns_.size(), lanes = most_padded_rank();
    const LowNumbers low{scratch(tiles.size() * num_parts * kMostLoraRows * lanes), num_parts, lanes};
    shrink(pool, tiles, x, low);
    expand(pool, tiles, low, y);
}

void LoraSlots::shrink(ThreadPool& pool, const std::vector<Tile>& tiles, const void* x, const LowNumbers& low) const {
    const auto kernel = kKernels.active().shrink[type_ == NumberType::bfloat16];
    const std::size_t row_bytes = k_ * item_bytes(type_);
    pool.run(tiles.size() * columns_.size(), [&](std::size_t task, int) {
        const std::size_t index = task / columns_.size(), part = task % columns_.size();
        const Tile& tile = tiles[index];
        const LowRankUpdate* found = update(tile.slot, part);
        if (!found) return;
        const void* inputs[kMostLoraRows];
        float* outputs[kMostLoraRows];
        for (std::size_t row = 0; row < tile.num_rows; ++row) {
            inputs[row] = static_cast<const char*>(x) + tile.rows[row] * row_bytes;
            outputs[row] = low.of(index, part, row);
        }
        kernel({inputs, outputs, found->a(), tile.num_rows, k_, found->padded_rank(), found->scale()});
    });
}

void LoraSlots::expand(ThreadPool& pool, const std::vector<Tile>& tiles, const LowNumbers& low, void* y) const {
    const auto kernel = kKernels.active().expand[type_ == NumberType::bfloat16];
    pool.run(tiles.size() * chunks_.size(), [&](std::size_t task, int) {
        const std::size_t index = task / chunks_.size();
        const auto [part, first_panel] = chunks_[task % chunks_.size()];
        const Tile& tile = tiles[index];
        const LowRankUpdate* found = update(tile.slot, part);
        if (!found) return;
        const float* inputs[kMostLoraRows];
        void* outputs[kMostLoraRows];
        for (std::size_t row = 0; row < tile.num_rows; ++row) {
            inputs[row] = low.of(index, part, row);
            const std::size_t number = tile.rows[row] * width_ + first_column_[part];
            outputs[row] = static_cast<char*>(y) + number * item_bytes(type_);
        }
        const std::size_t last = std::min(first_panel + kPanelsPerTask, found->num_panels());
        kernel({outputs, inputs, found->b(), tile.num_rows, found->rank(), found->num_columns(), first_panel, last});
    });
}

}  // namespace octavo
