#include "simd/lora.h"

#include "simd/row_lanes.h"

namespace octavo::OCTAVO_ISA {
namespace {

using Half = std::uint16_t;

// Adapters come from memory: many in a step, each for few rows. Bytes from what is computed to what is fetched.
constexpr std::ptrdiff_t kAhead = 4096;

template <class T>
OCTAVO_INLINE void fetch_ahead(const T* numbers, std::ptrdiff_t ahead) {
    __builtin_prefetch(reinterpret_cast<const char*>(numbers) + ahead);
}

#if OCTAVO_HAS_AVX512
constexpr int kRowsAtOnce = 8, kPanelsAtOnce = 2;
#else
constexpr int kRowsAtOnce = 4, kPanelsAtOnce = 1;
#endif
constexpr int kVectorsOfPanel = kLoraColumns / kWideLanes;

// Ranks from `lane` on, kVectors of V.
template <class V, class T, int kRows, int kVectors>
OCTAVO_INLINE void shrink_ranks(const LoraShrink& task, std::size_t first, std::size_t lane) {
    constexpr std::size_t kLanesOfVector = sizeof(V) / sizeof(float);
    V sums[kRows][kVectors];
    for (auto& row : sums) {
        for (V& sum : row) sum = V::zero();
    }
    const T* a = static_cast<const T*>(task.a) + lane;
    for (std::size_t i = 0; i < task.k; ++i, a += task.padded_rank) {
        V weights[kVectors];
        for (int v = 0; v < kVectors; ++v) {
            fetch_ahead(a + v * kLanesOfVector, kAhead);
            weights[v] = load_as<V>(a + v * kLanesOfVector);
        }
        for (int row = 0; row < kRows; ++row) {
            const V x = V::broadcast(task.x[first + row][i]);
            for (int v = 0; v < kVectors; ++v) sums[row][v] = fma(weights[v], x, sums[row][v]);
        }
    }
    const V scale = V::broadcast(task.scale);
    for (int row = 0; row < kRows; ++row) {
        float* low = task.low[first + row] + lane;
        for (int v = 0; v < kVectors; ++v) (sums[row][v] * scale).store(low + v * kLanesOfVector);
    }
}

template <class T>
struct Shrink {
    using Task = LoraShrink;

    template <int kRows>
    static OCTAVO_INLINE void rows(const LoraShrink& task, std::size_t first) {
        std::size_t lane = 0;
        for (; lane + 2 * kWideLanes <= task.padded_rank; lane += 2 * kWideLanes) {
            shrink_ranks<Wide, T, kRows, 2>(task, first, lane);
        }
        if (lane + kWideLanes <= task.padded_rank) {
            shrink_ranks<Wide, T, kRows, 1>(task, first, lane);
            lane += kWideLanes;
        }
        if (lane < task.padded_rank) shrink_ranks<Lanes, T, kRows, 1>(task, first, lane);
    }
};

template <class Y>
OCTAVO_INLINE void add_to(Y* y, Lanes sum, std::size_t count) {
    const int some = count < kLanes ? static_cast<int>(count) : kLanes;
    store_some(y, load_some(y, some) + sum, some);
}

#if OCTAVO_HAS_AVX512
template <class Y>
OCTAVO_INLINE void add_to(Y* y, Wide sum, std::size_t count) {
    if (count >= kWideLanes) return store(y, load_as<Wide>(y) + sum);
    add_to(y, lower_half(sum), count);
    if (count > kLanes) add_to(y + kLanes, upper_half(sum), count - kLanes);
}
#endif

// B is of T numbers, y of Y.
template <class T, class Y, int kRows, int kPanels>
OCTAVO_INLINE void expand_panels(const LoraExpand& task, std::size_t first, std::size_t panel) {
    Wide sums[kRows][kPanels * kVectorsOfPanel];
    for (auto& row : sums) {
        for (Wide& sum : row) sum = Wide::zero();
    }
    const std::size_t panel_numbers = task.rank * kLoraColumns;
    const T* b = static_cast<const T*>(task.b) + panel * panel_numbers;
    for (std::size_t rank = 0; rank < task.rank; ++rank, b += kLoraColumns) {
        Wide weights[kPanels * kVectorsOfPanel];
        for (int j = 0; j < kPanels * kVectorsOfPanel; ++j) {
            const T* from = b + j / kVectorsOfPanel * panel_numbers + j % kVectorsOfPanel * kWideLanes;
            fetch_ahead(from, task.ahead);
            weights[j] = load_as<Wide>(from);
        }
        for (int row = 0; row < kRows; ++row) {
            const Wide low = Wide::broadcast(task.low[first + row][rank]);
            for (int j = 0; j < kPanels * kVectorsOfPanel; ++j) sums[row][j] = fma(weights[j], low, sums[row][j]);
        }
    }
    for (int row = 0; row < kRows; ++row) {
        Y* y = static_cast<Y*>(task.y[first + row]);
        for (int j = 0; j < kPanels * kVectorsOfPanel; ++j) {
            const std::size_t column = panel * kLoraColumns + j * kWideLanes;
            if (column < task.num_columns) add_to(y + column, sums[row][j], task.num_columns - column);
        }
    }
}

template <class T, class Y>
struct Expand {
    using Task = LoraExpand;

    template <int kRows>
    static OCTAVO_INLINE void rows(const LoraExpand& task, std::size_t first) {
        std::size_t panel = task.first;
        for (; panel + kPanelsAtOnce <= task.last; panel += kPanelsAtOnce) {
            expand_panels<T, Y, kRows, kPanelsAtOnce>(task, first, panel);
        }
        if (panel < task.last) expand_panels<T, Y, kRows, 1>(task, first, panel);
    }
};

// As many rows at once as registers hold; then half of that, and so on.
template <class Product, int kRows = kRowsAtOnce>
OCTAVO_INLINE void rows_from(const typename Product::Task& task, std::size_t first) {
    for (; first + kRows <= task.num_rows; first += kRows) Product::template rows<kRows>(task, first);
    if constexpr (kRows > 1) rows_from<Product, kRows / 2>(task, first);
}

template <class Product>
void run(const typename Product::Task& task) {
    rows_from<Product>(task, 0);
}

}  // namespace

extern const LoraKernels lora_kernels{{run<Shrink<float>>, run<Shrink<Half>>},
                                      {{run<Expand<float, float>>, run<Expand<float, Half>>},
                                       {run<Expand<Half, float>>, run<Expand<Half, Half>>}}};

}  // namespace octavo::OCTAVO_ISA
