// LoRA adapters of one linear layer: which rows of a step use which, and what that adds to their results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "arena.h"
#include "packed_matrix.h"
#include "simd/lora.h"
#include "threads/thread_pool.h"

namespace octavo {

// One adapter's update of one projection, copied into the layout of simd/lora.h. Immutable.
class LowRankUpdate {
public:
    // a: [rank, k], b: [num_columns, rank], of `type`: that of the numbers as they are trained, which may be narrower than
    // those of the layer.
    LowRankUpdate(NumberType type, const void* a, const void* b, std::size_t rank, std::size_t k,
                  std::size_t num_columns, float scale);

    NumberType type() const { return type_; }
    std::size_t rank() const { return rank_; }
    std::size_t padded_rank() const;
    std::size_t k() const { return k_; }
    std::size_t num_columns() const { return num_columns_; }
    std::size_t num_panels() const;
    float scale() const { return scale_; }
    const void* a() const { return a_.data(); }
    const void* b() const { return b_.data(); }
    const char* panel(std::size_t index) const;  // of b
    std::size_t bytes() const { return a_.bytes() + b_.bytes(); }

private:
    const NumberType type_;
    const std::size_t rank_, k_, num_columns_;
    const float scale_;
    Arena a_, b_;
};

// The rows of a step that have an adapter, in the order of their slots, and runs of some of one slot.
class RowsBySlot {
public:
    struct Run {
        std::size_t slot, first, last;  // places in the order
    };

    RowsBySlot() = default;
    RowsBySlot(const std::int32_t* row_slots, std::size_t num_rows);

    bool is_of(const std::int32_t* row_slots, std::size_t num_rows) const;
    std::size_t row(std::size_t place) const { return order_[place]; }
    std::size_t size() const { return order_.size(); }
    const std::vector<Run>& runs() const { return runs_; }

private:
    std::vector<std::int32_t> row_slots_;
    std::vector<std::size_t> order_;
    std::vector<Run> runs_;
};

// The adapters that one layer has at hand, by slot. A layer may be several projections of one input, stacked: each has
// an update of its own, or none.
class LoraSlots {
public:
    LoraSlots(NumberType type, std::size_t num_slots, std::size_t k, std::vector<std::size_t> columns_of_parts);

    // Throws std::invalid_argument for an update of another shape, std::out_of_range for a place there is not.
    void put(std::size_t slot, std::size_t part, std::shared_ptr<const LowRankUpdate> update);

    // What a layer computed, [num_rows, columns of all parts], of the layer's type or float32.
    struct Results {
        void* numbers;
        NumberType type;
    };

    // y[row] += what the adapter in slot row_slots[row] says of x[row]; rows of slot -1 stay as they are, to the bit.
    // Throws std::out_of_range for a slot there is not.
    void run(ThreadPool& pool, const void* x, const std::int32_t* row_slots, std::size_t num_rows, Results y) const;

private:
    struct LowNumbers;
    // Panels from `first_panel` on of a projection.
    struct Chunk {
        std::size_t part, first_panel;
    };

    // Where an adapter's weights of a chunk begin; null where it has none.
    const char* start_of(std::size_t slot, Chunk chunk) const;

    // For the rows of a run: the first products of all projections, which have one input; the second ones of a chunk.
    // ahead: see LoraExpand.
    void shrink(const RowsBySlot& rows, const RowsBySlot::Run& run, const void* x, const LowNumbers& low) const;
    void expand(const RowsBySlot& rows, const RowsBySlot::Run& run, Chunk chunk, const LowNumbers& low, Results y,
                std::ptrdiff_t ahead) const;
    const LowRankUpdate* update(std::size_t slot, std::size_t part) const {
        return updates_[slot * columns_.size() + part].get();
    }
    std::size_t most_padded_rank() const;

    const NumberType type_;
    const std::size_t num_slots_, k_;
    const std::vector<std::size_t> columns_;  // of each projection
    std::vector<std::size_t> first_column_;
    std::vector<Chunk> chunks_;
    std::size_t width_ = 0;
    std::vector<std::shared_ptr<const LowRankUpdate>> updates_;  // [slot][projection]
};

}  // namespace octavo
