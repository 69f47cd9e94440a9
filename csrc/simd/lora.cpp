#include "simd/lora.h"

#include "simd/row_lanes.h"

namespace octavo::OCTAVO_ISA {
namespace {

using Half = std::uint16_t;

// Adapters come from memory: many in a step, each for few rows. Bytes from what is computed to what is fetched, past the
// end of a page, where the CPU's own prefetching ends.
constexpr std::size_t kAhead = 2048;

template <class T>
OCTAVO_INLINE void fetch_ahead(const T* numbers) {
    __builtin_prefetch(reinterpret_cast<const char*>(numbers) + kAhead);
}

static_assert(kLoraLanes == kLanes);

// kVectors * 8 ranks from `lane` on.
template <class T, int kRows, int kVectors>
OCTAVO_INLINE void shrink_ranks(const LoraShrink& task, std::size_t lane) {
    Lanes sums[kRows][kVectors];
    for (auto& row : sums) {
        for (Lanes& sum : row) sum = zero_lanes();
    }
    const T* a = static_cast<const T*>(task.a) + lane;
    for (std::size_t i = 0; i < task.k; ++i, a += task.padded_rank) {
        for (int v = 0; v < kVectors; ++v) fetch_ahead(a + v * kLanes);
        for (int row = 0; row < kRows; ++row) {
            const Lanes x = broadcast(task.x[row][i]);
            for (int v = 0; v < kVectors; ++v) sums[row][v] = fma(load(a + v * kLanes), x, sums[row][v]);
        }
    }
    const Lanes scale = broadcast(task.scale);
    for (int row = 0; row < kRows; ++row) {
        for (int v = 0; v < kVectors; ++v) store(task.low[row] + lane + v * kLanes, sums[row][v] * scale);
    }
}

template <class T, int kRows>
OCTAVO_INLINE void shrink_rows(const LoraShrink& task) {
    std::size_t lane = 0;
    for (; lane + 2 * kLanes <= task.padded_rank; lane += 2 * kLanes) shrink_ranks<T, kRows, 2>(task, lane);
    if (lane < task.padded_rank) shrink_ranks<T, kRows, 1>(task, lane);
}

template <class T>
OCTAVO_INLINE void add_to(T* y, Lanes sum, std::size_t count) {
    const int some = count < kLanes ? static_cast<int>(count) : kLanes;
    store_some(y, load_some(y, some) + sum, some);
}

// B is of T numbers, y of Y.
template <class T, class Y, int kRows, int kPanels>
OCTAVO_INLINE void expand_panels(const LoraExpand& task, std::size_t panel) {
    Lanes sums[kRows][kPanels];
    for (auto& row : sums) {
        for (Lanes& sum : row) sum = zero_lanes();
    }
    const std::size_t panel_numbers = task.rank * kLanes;
    const T* b = static_cast<const T*>(task.b) + panel * panel_numbers;
    for (std::size_t rank = 0; rank < task.rank; ++rank, b += kLanes) {
        for (int p = 0; p < kPanels; ++p) fetch_ahead(b + p * panel_numbers);
        for (int row = 0; row < kRows; ++row) {
            const Lanes low = broadcast(task.low[row][rank]);
            for (int p = 0; p < kPanels; ++p) sums[row][p] = fma(load(b + p * panel_numbers), low, sums[row][p]);
        }
    }
    for (int row = 0; row < kRows; ++row) {
        Y* y = static_cast<Y*>(task.y[row]) + panel * kLanes;
        for (int p = 0; p < kPanels; ++p) {
            add_to(y + p * kLanes, sums[row][p], task.num_columns - (panel + p) * kLanes);
        }
    }
}

template <class T, class Y, int kRows>
OCTAVO_INLINE void expand_rows(const LoraExpand& task) {
    std::size_t panel = task.first;
    for (; panel + 2 <= task.last; panel += 2) expand_panels<T, Y, kRows, 2>(task, panel);
    if (panel < task.last) expand_panels<T, Y, kRows, 1>(task, panel);
}

template <class T>
void shrink(const LoraShrink& task) {
    switch (task.num_rows) {
        case 1: return shrink_rows<T, 1>(task);
        case 2: return shrink_rows<T, 2>(task);
        case 3: return shrink_rows<T, 3>(task);
        default: return shrink_rows<T, 4>(task);
    }
}

template <class T, class Y>
void expand(const LoraExpand& task) {
    switch (task.num_rows) {
        case 1: return expand_rows<T, Y, 1>(task);
        case 2: return expand_rows<T, Y, 2>(task);
        case 3: return expand_rows<T, Y, 3>(task);
        default: return expand_rows<T, Y, 4>(task);
    }
}

}  // namespace

extern const LoraKernels lora_kernels{
    {shrink<float>, shrink<Half>}, {{expand<float, float>, expand<float, Half>}, {expand<Half, float>, expand<Half, Half>}}};

}  // namespace octavo::OCTAVO_ISA
