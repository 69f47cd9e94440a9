// Micro-kernels of the packed linear: a few rows by a few panels, their sums in registers while k runs once.
#include "simd/linear.h"

#include "simd/math.h"
#include "simd/wide_lanes.h"
#if OCTAVO_ISA_amx
#include "simd/linear_tiles.h"
#endif

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int kVectors = 2;  // of a panel
constexpr std::size_t kColumns = kVectors * kWideLanes;
constexpr std::size_t kLine = kColumns * 4;  // bytes of a panel's row of words
constexpr std::size_t kSumsStride = 2 * kColumns;
constexpr TaskRows kTaskRows{1, 24, 96};
constexpr std::size_t kPrefetch = 1536;  // bytes ahead in a panel read once: past what the hardware does at a page's end

// Lines of a panel that the tiles of several rows share in a cache: the second level's, or, where panels come from memory
// while the tiles compute, the first's.
constexpr std::size_t kLinesAtOnce = 1024, kStreamedLinesAtOnce = 64;

// ---- Number formats: what a word of weights and a piece of an input are, and a link of the chain ----

// Tiles: rows by one panel, or by two. The sums of the largest, a vector of weights for each column of them and an input
// fill the registers. Few rows are one tile, for then weights come from memory and should come once; where registers are
// few, two panels hide that a sum must wait for the one before it.
struct TileSizes {
    int max_rows, max_rows_of_two;
    bool few_rows_take_two, many_rows_take_two;
};
#if OCTAVO_HAS_AVX512
constexpr TileSizes kTiles{14, 6, false, true}, kWidenedTiles = kTiles;
#else
constexpr TileSizes kTiles{6, 3, true, false}, kWidenedTiles{6, 2, true, false};  // which needs a register or two
#endif

struct Float32 {
    using Input = float;
    static constexpr TileSizes kSizes = kTiles;
    static constexpr std::size_t kPerLine = 1;  // of k
    static constexpr int kLinks = 1;            // of the chain, per line

    static OCTAVO_INLINE Wide weights(const char* line, int vector, int) {
        return Wide::load(reinterpret_cast<const float*>(line) + vector * kWideLanes);
    }
    static OCTAVO_INLINE Wide input(const float* x, int) { return Wide::broadcast(*x); }
    static OCTAVO_INLINE Wide add(Wide sum, Wide input, Wide weights) { return fma(input, weights, sum); }
};

#if OCTAVO_HAS_AVX512

struct BFloat16 {
    using Input = std::uint16_t;
    static constexpr TileSizes kSizes = kWidenedTiles;
    static constexpr std::size_t kPerLine = 2;
    static constexpr int kLinks = 1;

    static OCTAVO_INLINE BF16Pairs weights(const char* line, int vector, int) {
        return BF16Pairs::load(line + vector * 4 * kWideLanes);
    }
    static OCTAVO_INLINE BF16Pairs input(const std::uint16_t* x, int) {
        std::uint32_t pair;
        std::memcpy(&pair, x, sizeof pair);
        return BF16Pairs::broadcast(pair);
    }
    static OCTAVO_INLINE BF16Pairs last_input(const std::uint16_t* x) { return BF16Pairs::broadcast(*x); }
    static OCTAVO_INLINE Wide add(Wide sum, BF16Pairs input, BF16Pairs weights) { return add_dot(sum, input, weights); }
};

#else

#if OCTAVO_HAS_AVX2
// As second_of_pairs, with the mask from memory each time: a register for it is one too few for the sums.
OCTAVO_INLINE Wide second_weights(const std::uint16_t* pairs) {
    alignas(32) static constexpr std::uint32_t kMask[8] = {0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000,
                                                           0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000};
    Wide both = Wide::load(reinterpret_cast<const float*>(pairs));
    __asm__("vandps %1, %0, %0" : "+x"(both.v) : "m"(kMask));
    return both;
}
#else
OCTAVO_INLINE Wide second_weights(const std::uint16_t* pairs) { return second_of_pairs(pairs); }
#endif

struct BFloat16 {
    using Input = float;
    static constexpr TileSizes kSizes = kWidenedTiles;
    static constexpr std::size_t kPerLine = 2;
    static constexpr int kLinks = 2;

    static OCTAVO_INLINE Wide weights(const char* line, int vector, int link) {
        const auto* pairs = reinterpret_cast<const std::uint16_t*>(line) + 2 * vector * kWideLanes;
        return link == 0 ? first_of_pairs(pairs) : second_weights(pairs);
    }
    static OCTAVO_INLINE Wide input(const float* x, int link) { return Wide::broadcast(x[link]); }
    static OCTAVO_INLINE Wide last_input(const float* x) { return Wide::broadcast(*x); }
    static OCTAVO_INLINE Wide add(Wide sum, Wide input, Wide weights) { return fma(input, weights, sum); }
};

#endif

// ---- Tiles ----

// A stretch of k of some rows and one or two panels.
template <class Format>
struct Stretch {
    const typename Format::Input* x;
    std::size_t x_stride;
    const char* panel;
    std::size_t panel_stride;  // bytes to the second panel
    std::size_t num_lines;
    const char* ahead;         // what to have in the cache by the end, from each panel,
    std::size_t ahead_step;    // bytes of it per line
    bool is_first;             // sums start at zero
    bool ends_odd;             // the last line has one of k, and not all that fit
    float* sums;               // [rows][kSumsStride]
};

// Where the rows' inputs are: a pointer for every three, for a register each and all their distances are too many.
template <class Format, int kRows>
struct Rows {
    using Input = typename Format::Input;
    static constexpr int kPointers = (kRows + 2) / 3;

    const Input* pointers[kPointers];
    std::size_t stride;

    OCTAVO_INLINE Rows(const Input* first, std::size_t stride) : stride(stride) {
#pragma GCC unroll 8
        for (int i = 0; i < kPointers; ++i) {
            pointers[i] = first + 3 * i * stride;
            __asm__("" : "+r"(pointers[i]));  // of unknown distance to the others
        }
    }
    OCTAVO_INLINE const Input* at(int row) const { return pointers[row / 3] + row % 3 * stride; }
    OCTAVO_INLINE void advance() {
#pragma GCC unroll 8
        for (int i = 0; i < kPointers; ++i) pointers[i] += Format::kPerLine;
    }
};

// One link: an input of each row times each panel's vectors.
template <class Format, int kRows, int kPanels, class Inputs>
OCTAVO_INLINE void add_link(Wide (&sums)[kRows][kVectors * kPanels], const char* line, std::size_t panel_stride, int link,
                            Inputs inputs) {
    decltype(Format::weights(line, 0, 0)) weights[kVectors * kPanels];
#pragma GCC unroll 8
    for (int j = 0; j < kVectors * kPanels; ++j) {
        weights[j] = Format::weights(line + (j / kVectors) * panel_stride, j % kVectors, link);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
        const auto input = inputs(i);
#pragma GCC unroll 8
        for (int j = 0; j < kVectors * kPanels; ++j) sums[i][j] = Format::add(sums[i][j], input, weights[j]);
    }
}

template <class Format, int kRows, int kPanels>
void add_tile(const Stretch<Format>& stretch) {
    float* const in_memory = stretch.sums;
    Wide sums[kRows][kVectors * kPanels];
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
        for (int j = 0; j < kVectors * kPanels; ++j) {
            const float* before = in_memory + i * kSumsStride + j * kWideLanes;
            sums[i][j] = stretch.is_first ? Wide::zero() : Wide::load(before);
        }
    }
    const std::size_t panel_stride = stretch.panel_stride;
    Rows<Format, kRows> x(stretch.x, stretch.x_stride);
    const char *line = stretch.panel, *ahead = stretch.ahead;
    for (const char* end = line + (stretch.num_lines - stretch.ends_odd) * kLine; line != end; line += kLine) {
        for (int p = 0; p < kPanels; ++p) {
            // Tiles of two panels are several that share the work of fetching: one cache line is more than their share.
            for (std::size_t i = 0; i < (kPanels == 1 ? kLine : 64); i += 64) {
                __builtin_prefetch(ahead + p * panel_stride + i);
            }
        }
        ahead += stretch.ahead_step;
#pragma GCC unroll 2
        for (int link = 0; link < Format::kLinks; ++link) {
            // A new pointer to the compiler, which would keep the words of all links at hand, for want of registers in vain.
            if (Format::kLinks > 1) __asm__("" : "+r"(line));
            add_link<Format, kRows, kPanels>(sums, line, panel_stride, link,
                                             [&](int i) { return Format::input(x.at(i), link); });
        }
        x.advance();
    }
    if constexpr (Format::kPerLine == 2) {
        if (stretch.ends_odd) {
            add_link<Format, kRows, kPanels>(sums, line, panel_stride, 0,
                                             [&](int i) { return Format::last_input(x.at(i)); });
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
        for (int j = 0; j < kVectors * kPanels; ++j) sums[i][j].store(in_memory + i * kSumsStride + j * kWideLanes);
    }
}

template <class Format>
using AddTile = void (*)(const Stretch<Format>&);

// One function per number of rows.
template <class Format, int kPanels, int kMaxRows>
OCTAVO_INLINE AddTile<Format> tile_of(std::size_t num_rows) {
    if constexpr (kMaxRows > 1) {
        if (num_rows < kMaxRows) return tile_of<Format, kPanels, kMaxRows - 1>(num_rows);
    }
    return add_tile<Format, kMaxRows, kPanels>;
}

// ---- Results ----

OCTAVO_INLINE Wide biased(const LinearTask& task, std::size_t panel, std::size_t column, const float* sums) {
    const Wide sum = Wide::load(sums + column);
    return task.bias ? sum + Wide::load(task.bias + panel * kColumns + column) : sum;
}

// Where the panel's columns go, and how many of them there are.
struct Place {
    std::size_t column, count;
};

OCTAVO_INLINE Place place_of(const LinearTask& task, std::size_t panel) {
    const std::size_t half = task.num_columns / 2, column = (task.paired ? panel / 2 : panel) * kColumns;
    const std::size_t left = (task.paired ? half : task.num_columns) - column;
    return {column + (task.paired && panel % 2 ? half : 0), left < kColumns ? left : kColumns};
}

template <class Out>
OCTAVO_INLINE void store_columns(Out* out, std::size_t count, std::size_t column, Wide values) {
    if (column + kWideLanes <= count) {
        store(out + column, values);
    } else {
        store_first(out + column, values, static_cast<int>(count - column));
    }
}

// The results of rows from their sums, for panel `panel` and, if there is one in the task, the next.
template <class Out>
struct Plain {
    static void finish(const LinearTask& task, std::size_t row, std::size_t num_rows, std::size_t panel,
                       std::size_t num_panels, const float* sums) {
        for (std::size_t p = 0; p < num_panels; ++p) {
            const Place place = place_of(task, panel + p);
            for (std::size_t i = 0; i < num_rows; ++i) {
                Out* out = static_cast<Out*>(task.out) + (row + i) * task.out_stride + place.column;
                for (std::size_t c = 0; c < place.count; c += kWideLanes) {
                    store_columns(out, place.count, c, biased(task, panel + p, c, sums + i * kSumsStride + p * kColumns));
                }
            }
        }
    }
};

template <class Out>
struct Gated {
    static void finish(const LinearTask& task, std::size_t row, std::size_t num_rows, std::size_t panel, std::size_t,
                       const float* sums) {
        const Place place = place_of(task, panel);
        for (std::size_t i = 0; i < num_rows; ++i) {
            Out* out = static_cast<Out*>(task.out) + (row + i) * task.out_stride + place.column;
            for (std::size_t c = 0; c < place.count; c += kWideLanes) {
                const Wide gate = round_lanes<Out>(biased(task, panel, c, sums + i * kSumsStride));
                const Wide up = round_lanes<Out>(biased(task, panel + 1, c, sums + i * kSumsStride + kColumns));
                store_columns(out, place.count, c, activate(gate, task.activation) * up);
            }
        }
    }
};

// ---- Tasks ----

struct Shape {
    bool takes_two;
    std::size_t max_rows;
};

constexpr Shape shape_of(TileSizes sizes, std::size_t num_rows) {
    const int few = sizes.few_rows_take_two ? sizes.max_rows_of_two : sizes.max_rows;
    const bool takes_two = num_rows <= static_cast<std::size_t>(few) ? sizes.few_rows_take_two : sizes.many_rows_take_two;
    return {takes_two, static_cast<std::size_t>(takes_two ? sizes.max_rows_of_two : sizes.max_rows)};
}

// A tile that is small beside the others of its task takes two panels as one that is alone would.
template <class Format>
OCTAVO_INLINE void add_tiles(Stretch<Format> stretch, std::size_t num_rows, std::size_t num_panels, bool takes_two) {
    takes_two |= shape_of(Format::kSizes, num_rows).takes_two;
    if (takes_two && num_panels == 2) return tile_of<Format, 2, Format::kSizes.max_rows_of_two>(num_rows)(stretch);
    for (std::size_t p = 0; p < num_panels; ++p) {
        tile_of<Format, 1, Format::kSizes.max_rows>(num_rows)(stretch);
        stretch.panel += stretch.panel_stride;
        stretch.ahead += stretch.panel_stride;
        stretch.sums += kColumns;
    }
}

// Each of several tiles fetches a part of the lines that come next; a tile that is alone runs ahead of itself.
template <class Format>
OCTAVO_INLINE void look_ahead(Stretch<Format>& stretch, const char* next, std::size_t tile, std::size_t num_tiles) {
    stretch.ahead_step = (kLine + num_tiles - 1) / num_tiles;
    stretch.ahead = num_tiles == 1 ? stretch.panel + kPrefetch : next + tile * stretch.num_lines * stretch.ahead_step;
}

// Rows are split evenly: seven are four and three, not six and one. Where registers do not hold three rows of two panels,
// three of one are too few sums to hide that each waits for the one before it: there seven are five and two.
template <class Format>
OCTAVO_INLINE std::size_t rows_of_tile(std::size_t rows_left, std::size_t tiles_left) {
    constexpr TileSizes kSizes = Format::kSizes;
    const std::size_t even = (rows_left + tiles_left - 1) / tiles_left;
    const bool leaves_three = rows_left - even == 3 && even < static_cast<std::size_t>(kSizes.max_rows);
    return even + (kSizes.few_rows_take_two && kSizes.max_rows_of_two < 3 && leaves_three ? 1 : 0);
}

template <class Format, class Results>
void multiply(const LinearTask& task, std::size_t panel, std::size_t num_panels, float* sums) {
    const std::size_t num_lines = (task.k + Format::kPerLine - 1) / Format::kPerLine;
    const Shape shape = shape_of(Format::kSizes, task.num_rows);
    const std::size_t num_tiles = (task.num_rows + shape.max_rows - 1) / shape.max_rows;
    const std::size_t at_once = task.streams ? kStreamedLinesAtOnce : kLinesAtOnce;
    const std::size_t lines_at_once = num_tiles == 1 ? num_lines : at_once;
    const char* const panels = static_cast<const char*>(task.panels) + panel * num_lines * kLine;
    for (std::size_t first = 0; first < num_lines; first += lines_at_once) {
        const bool is_last = num_lines - first <= lines_at_once;
        Stretch<Format> stretch{.x = nullptr,
                                .x_stride = task.k,
                                .panel = panels + first * kLine,
                                .panel_stride = num_lines * kLine,
                                .num_lines = is_last ? num_lines - first : lines_at_once,
                                .ahead = nullptr,
                                .ahead_step = 0,
                                .is_first = first == 0,
                                .ends_odd = is_last && task.k % Format::kPerLine != 0,
                                .sums = nullptr};
        const char* const next = is_last ? panels + 2 * num_lines * kLine : stretch.panel + lines_at_once * kLine;
        for (std::size_t i = 0, row = 0; i < num_tiles; ++i) {
            const std::size_t rows = rows_of_tile<Format>(task.num_rows - row, num_tiles - i);
            stretch.x = static_cast<const typename Format::Input*>(task.x) + row * task.k + first * Format::kPerLine;
            stretch.sums = sums + row * kSumsStride;
            look_ahead(stretch, next, i, num_tiles);
            add_tiles(stretch, rows, num_panels, shape.takes_two);
            if (is_last) Results::finish(task, row, rows, panel, num_panels, stretch.sums);
            row += rows;
        }
    }
}

template <class Format, class Results>
void linear(const LinearTask& task) {
    alignas(64) float sums[kTaskRows.most * kSumsStride];
    for (std::size_t panel = task.first_panel; panel < task.last_panel; panel += 2) {
        multiply<Format, Results>(task, panel, task.last_panel - panel < 2 ? 1 : 2, sums);
    }
}

#if OCTAVO_ISA_amx

constexpr TaskRows kBFloat16TaskRows{kRowsOfTiles, 4 * kRowsOfTiles, 8 * kRowsOfTiles};

// Panels that come next are fetched by the blocks of rows together; a block that is alone runs ahead of itself.
OCTAVO_INLINE void look_ahead(TileBlock& block, std::size_t panel_bytes, std::size_t number, std::size_t num_blocks) {
    block.ahead_step = (kStepBytes / num_blocks + 63) / 64 * 64;
    const std::size_t share = block.k / kStepK * block.ahead_step;
    block.ahead = block.panel + (num_blocks == 1 ? kPrefetch : 2 * panel_bytes + number * share);
}

template <class Results>
void bfloat16_linear(const LinearTask& task) {
    alignas(64) float sums[kRowsOfTiles * kSumsStride];
    const std::size_t panel_bytes = (task.k + 1) / 2 * kLine;
    const std::size_t num_blocks = (task.num_rows + kRowsOfTiles - 1) / kRowsOfTiles;
    std::size_t rows_of_shapes = task.num_rows < kRowsOfTiles ? task.num_rows : kRowsOfTiles;
    const TileScope scope(shapes_for(rows_of_shapes));
    for (std::size_t panel = task.first_panel; panel < task.last_panel; panel += 2) {
        const std::size_t num_panels = task.last_panel - panel < 2 ? 1 : 2;
        for (std::size_t i = 0, row = 0; i < num_blocks; ++i, row += kRowsOfTiles) {
            const std::size_t left = task.num_rows - row, num_rows = left < kRowsOfTiles ? left : kRowsOfTiles;
            if (num_rows != rows_of_shapes) configure_tiles(shapes_for(rows_of_shapes = num_rows));
            TileBlock block{.x = static_cast<const std::uint16_t*>(task.x) + row * task.k,
                            .num_rows = num_rows,
                            .k = task.k,
                            .panel = static_cast<const char*>(task.panels) + panel * panel_bytes,
                            .ahead = nullptr,
                            .ahead_step = 0,
                            .sums = sums,
                            .sums_stride = kSumsStride * sizeof(float)};
            for (std::size_t p = 0; p < num_panels; ++p, block.panel += panel_bytes, block.sums += kColumns) {
                look_ahead(block, panel_bytes, i, num_blocks);
                num_rows > kTileRows ? multiply_block<true>(block) : multiply_block<false>(block);
            }
            Results::finish(task, row, num_rows, panel, num_panels, sums);
        }
    }
}

#else

constexpr TaskRows kBFloat16TaskRows = kTaskRows;

template <class Results>
constexpr LinearKernel bfloat16_linear = linear<BFloat16, Results>;

#endif

void widen(const std::uint16_t* from, float* to, std::size_t count) {
    std::size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) store(to + i, load(from + i));
    for (; i < count; ++i) to[i] = from_bfloat16(from[i]);
}

}  // namespace

const LinearKernels linear_kernels{
    .panel_columns = kColumns,
    .rows_of_float32 = kTaskRows,
    .rows_of_bfloat16 = kBFloat16TaskRows,
    .widens = sizeof(BFloat16::Input) != sizeof(std::uint16_t),
    .float32 = linear<Float32, Plain<float>>,
    .bfloat16 = bfloat16_linear<Plain<std::uint16_t>>,
    .bfloat16_float32 = bfloat16_linear<Plain<float>>,
    .gated_float32 = linear<Float32, Gated<float>>,
    .gated_bfloat16 = bfloat16_linear<Gated<std::uint16_t>>,
    .widen = widen,
};

}  // namespace octavo::OCTAVO_ISA
