#include "simd/encoder.h"

#include "simd/math.h"
#include "simd/row_lanes.h"

namespace octavo::OCTAVO_ISA {
namespace {

using Half = std::uint16_t;  // bfloat16

// ---- Norms ----

// A row of each source, added up as it is read.
template <class T, int kSources>
struct SummedRow {
    const T* parts[kSources];

    OCTAVO_INLINE SummedRow(const LayerNormCall& call, std::size_t row) {
        for (int s = 0; s < kSources; ++s) {
            const RowSource& source = call.sources[s];
            const std::size_t from = source.ids ? static_cast<std::size_t>(source.ids[row]) : row;
            parts[s] = static_cast<const T*>(source.numbers) + from * call.width;
        }
    }
    OCTAVO_INLINE Lanes at(std::size_t i, int count) const {
        Lanes sum = load_some(parts[0] + i, count);
        for (int s = 1; s < kSources; ++s) sum = sum + load_some(parts[s] + i, count);
        return sum;
    }
};

template <class T, int kSources>
void normalise_rows(const LayerNormCall& call, Rows rows) {
    const std::size_t width = call.width;
    const float count_of_all = static_cast<float>(width);
    const T *weight = static_cast<const T*>(call.weight), *bias = static_cast<const T*>(call.bias);
    for (std::size_t row = rows.first; row < rows.last; ++row) {
        const SummedRow<T, kSources> x(call, row);
        Lanes sums = zero_lanes(), squares = zero_lanes();
        for_lanes(width, [&](std::size_t i, int count) { sums = sums + x.at(i, count); });
        const Lanes mean = broadcast(sum_lanes(sums) / count_of_all);
        for_lanes(width, [&](std::size_t i, int count) {
            Lanes centred = x.at(i, count) - mean;
            if (count < kLanes) {  // lanes behind the row would be minus the mean
                float kept[kLanes];
                store(kept, centred);
                centred = load_first(kept, count);
            }
            squares = fma(centred, centred, squares);
        });
        const Lanes factor = broadcast(1.0f / __builtin_sqrtf(sum_lanes(squares) / count_of_all + call.eps));
        T* out = static_cast<T*>(call.out) + row * width;
        for_lanes(width, [&](std::size_t i, int count) {
            const Lanes scale = load_some(weight + i, count), shift = load_some(bias + i, count);
            store_some(out + i, fma((x.at(i, count) - mean) * factor, scale, shift), count);
        });
    }
}

template <class T>
void layer_norm(const LayerNormCall& call, Rows rows) {
    if (call.num_sources == 1) return normalise_rows<T, 1>(call, rows);
    if (call.num_sources == 2) return normalise_rows<T, 2>(call, rows);
    normalise_rows<T, 3>(call, rows);
}

// ---- Activations ----

template <class T>
void activation(const ElementActivationCall& call, Rows rows) {
    const T* x = static_cast<const T*>(call.x) + rows.first * call.width;
    T* out = static_cast<T*>(call.out) + rows.first * call.width;
    for_lanes((rows.last - rows.first) * call.width, [&](std::size_t i, int count) {
        store_some(out + i, activate(load_some(x + i, count), call.activation), count);
    });
}

// ---- Attention ----

constexpr int kRowsPerBlock = 6, kGroups = 2;  // whose sums, with a vector for each group and an input, fill 16 registers

// One text under one head, as float32: keys by groups of lanes, [num_groups][head_size][kLanes], and values as rows,
// [num_keys][padded]. Places behind the last key, and behind the last entry of a value, are zeros.
struct Text {
    std::int64_t num_keys;
    int head_size, padded;
    float *keys, *values, *queries, *weights;

    OCTAVO_INLINE std::int64_t num_groups() const { return (num_keys + kLanes - 1) / kLanes; }
    OCTAVO_INLINE std::int64_t num_weights() const { return num_groups() * kLanes; }  // of a row
};

OCTAVO_INLINE Text text_of(std::int64_t num_keys, int head_size, float* scratch) {
    Text text{num_keys, head_size, (head_size + kLanes - 1) / kLanes * kLanes, nullptr, nullptr, nullptr, nullptr};
    text.keys = scratch;
    text.values = text.keys + text.num_weights() * text.padded;
    text.queries = text.values + num_keys * text.padded;
    text.weights = text.queries + kRowsPerBlock * text.padded;
    return text;
}

// rows: the text's first key or value under the head; stride: from one to the next.
template <class T>
void lay_out_keys(const T* rows, std::size_t stride, const Text& text) {
    for (std::int64_t group = 0; group < text.num_groups(); ++group) {
        for (int d = 0; d < text.head_size; d += kLanes) {
            const int left = text.head_size - d, count = left < kLanes ? left : kLanes;
            Lanes square[8];
            for (int i = 0; i < kLanes; ++i) {
                const std::int64_t key = group * kLanes + i;
                square[i] = key < text.num_keys ? load_some(rows + key * stride + d, count) : zero_lanes();
            }
            transpose(square);
            float* to = text.keys + (group * text.padded + d) * kLanes;
            for (int i = 0; i < kLanes; ++i) store(to + i * kLanes, square[i]);
        }
    }
}

template <class T>
OCTAVO_INLINE void widen_row(const T* from, float* to, int head_size, Lanes scale) {
    for_lanes(head_size, [&](std::size_t d, int count) { store(to + d, load_some(from + d, count) * scale); });
}

// Scores of some queries against kWide groups of keys: one ascending chain over the head's entries each.
template <int kRows, int kWide>
OCTAVO_INLINE void score_groups(const Text& text, std::int64_t group) {
    Lanes sums[kRows][kWide];
    for (auto& row : sums) {
        for (Lanes& sum : row) sum = zero_lanes();
    }
    const float* keys = text.keys + group * text.padded * kLanes;
    for (int d = 0; d < text.head_size; ++d) {
        Lanes key[kWide];
        for (int g = 0; g < kWide; ++g) key[g] = load(keys + (g * text.padded + d) * kLanes);
        for (int r = 0; r < kRows; ++r) {
            const Lanes query = broadcast(text.queries[r * text.padded + d]);
            for (int g = 0; g < kWide; ++g) sums[r][g] = fma(query, key[g], sums[r][g]);
        }
    }
    for (int r = 0; r < kRows; ++r) {
        for (int g = 0; g < kWide; ++g) store(text.weights + r * text.num_weights() + (group + g) * kLanes, sums[r][g]);
    }
}

template <int kRows>
OCTAVO_INLINE void score_text(const Text& text) {
    std::int64_t group = 0;
    for (; group + kGroups <= text.num_groups(); group += kGroups) score_groups<kRows, kGroups>(text, group);
    if (group < text.num_groups()) score_groups<kRows, 1>(text, group);
}

// Turns a row's scores into weights relative to the largest, and returns one over their sum.
OCTAVO_INLINE float weigh(float* scores, const Text& text) {
    for (std::int64_t key = text.num_keys; key < text.num_weights(); ++key) scores[key] = -__builtin_inff();
    Lanes most = broadcast(-__builtin_inff()), sums = zero_lanes();
    for (std::int64_t i = 0; i < text.num_weights(); i += kLanes) most = larger(load(scores + i), most);
    const Lanes largest = broadcast(largest_lane(most));
    for (std::int64_t i = 0; i < text.num_weights(); i += kLanes) {
        const Lanes weight = exponential(load(scores + i) - largest);
        sums = sums + weight;
        store(scores + i, weight);
    }
    return 1.0f / sum_lanes(sums);
}

// kWide vectors, from entry d on, of some rows' weighted values: one ascending chain over the keys each.
template <int kRows, int kWide, class T>
OCTAVO_INLINE void add_values(const Text& text, int d, const float* factors, T* out, std::size_t stride) {
    Lanes sums[kRows][kWide];
    for (auto& row : sums) {
        for (Lanes& sum : row) sum = zero_lanes();
    }
    const float* value = text.values + d;
    for (std::int64_t key = 0; key < text.num_keys; ++key, value += text.padded) {
        Lanes entries[kWide];
        for (int g = 0; g < kWide; ++g) entries[g] = load(value + g * kLanes);
        for (int r = 0; r < kRows; ++r) {
            const Lanes weight = broadcast(text.weights[r * text.num_weights() + key]);
            for (int g = 0; g < kWide; ++g) sums[r][g] = fma(weight, entries[g], sums[r][g]);
        }
    }
    for (int r = 0; r < kRows; ++r) {
        for (int g = 0; g < kWide; ++g) {
            const int at = d + g * kLanes, left = text.head_size - at;
            store_some(out + r * stride + at, sums[r][g] * broadcast(factors[r]), left < kLanes ? left : kLanes);
        }
    }
}

template <int kRows, class T>
void attend_rows(const EncoderAttentionCall& call, const Text& text, const T* queries, std::size_t stride, T* out) {
    for (int r = 0; r < kRows; ++r) {
        widen_row(queries + r * stride, text.queries + r * text.padded, text.head_size, broadcast(call.scale));
    }
    score_text<kRows>(text);
    float factors[kRows];
    for (int r = 0; r < kRows; ++r) factors[r] = weigh(text.weights + r * text.num_weights(), text);
    const std::size_t out_stride = static_cast<std::size_t>(call.num_heads) * call.head_size;
    int d = 0;
    for (; d + kGroups * kLanes <= text.padded; d += kGroups * kLanes) {
        add_values<kRows, kGroups>(text, d, factors, out, out_stride);
    }
    if (d < text.padded) add_values<kRows, 1>(text, d, factors, out, out_stride);
}

template <int kRows, class T>
void attend_some(int rows, const EncoderAttentionCall& call, const Text& text, const T* queries, std::size_t stride, T* out) {
    if (rows == kRows) return attend_rows<kRows>(call, text, queries, stride, out);
    if constexpr (kRows > 1) attend_some<kRows - 1>(rows, call, text, queries, stride, out);
}

template <class T>
void attention(const EncoderAttentionCall& call, const EncoderAttentionTask& task, float* scratch) {
    const Text text = text_of(task.end - task.begin, call.head_size, scratch);
    const std::size_t width = static_cast<std::size_t>(call.num_heads) * call.head_size, stride = 3 * width;
    const T* qkv = static_cast<const T*>(call.qkv);
    for (int head = task.first_head; head < task.last_head; ++head) {
        const T* first = qkv + task.begin * stride + static_cast<std::size_t>(head) * call.head_size;
        lay_out_keys(first + width, stride, text);
        for (std::int64_t key = 0; key < text.num_keys; ++key) {
            widen_row(first + 2 * width + key * stride, text.values + key * text.padded, text.head_size, broadcast(1.0f));
        }
        for (std::int64_t row = task.first_row; row < task.last_row;) {
            const std::int64_t left = task.last_row - row, blocks = (left + kRowsPerBlock - 1) / kRowsPerBlock;
            const int rows = static_cast<int>((left + blocks - 1) / blocks);  // even sizes: 7 is 4 + 3, not 6 + 1
            T* out = static_cast<T*>(call.out) + row * width + static_cast<std::size_t>(head) * call.head_size;
            attend_some<kRowsPerBlock>(rows, call, text, first + (row - task.begin) * stride, stride, out);
            row += rows;
        }
    }
}

}  // namespace

extern const EncoderKernels encoder_kernels{
    {layer_norm<float>, layer_norm<Half>},
    {activation<float>, activation<Half>},
    {attention<float>, attention<Half>}};

}  // namespace octavo::OCTAVO_ISA
