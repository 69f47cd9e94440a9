#include "simd/elementwise.h"

#include "simd/kv_strips.h"
#include "simd/math.h"
#include "simd/row_lanes.h"

namespace octavo::OCTAVO_ISA {
namespace {

// ---- Norms ----

// Sums of squares of every eighth entry, and those in a fixed order.
template <class T>
OCTAVO_INLINE float inverse_root_mean_square(const T* x, std::size_t width, float eps) {
    Lanes squares = zero_lanes();
    for_lanes(width, [&](std::size_t i, int count) {
        const Lanes entry = load_some(x + i, count);
        squares = fma(entry, entry, squares);
    });
    return 1.0f / __builtin_sqrtf(sum_lanes(squares) / static_cast<float>(width) + eps);
}

template <class From, class T, class To>
OCTAVO_INLINE void normalise(const From* x, const T* weight, std::size_t width, float eps, float offset, To* out) {
    const Lanes factor = broadcast(inverse_root_mean_square(x, width, eps)), added = broadcast(offset);
    for_lanes(width, [&](std::size_t i, int count) {
        const Lanes scale = load_some(weight + i, count) + added;
        store_some(out + i, load_some(x + i, count) * factor * scale, count);
    });
}

template <class T, class Residual>
void rms_norm(const NormCall& call, Rows rows) {
    const std::size_t width = call.width;
    const T* weight = static_cast<const T*>(call.weight);
    for (std::size_t row = rows.first; row < rows.last; ++row) {
        const T* x = static_cast<const T*>(call.x) + row * width;
        T* out = static_cast<T*>(call.out) + row * width;
        if (!call.residual) {
            normalise(x, weight, width, call.eps, call.weight_offset, out);
            continue;
        }
        const Residual* residual = static_cast<const Residual*>(call.residual) + row * width;
        float* total = call.total + row * width;
        for_lanes(width, [&](std::size_t i, int count) {
            store_some(total + i, load_some(residual + i, count) + load_some(x + i, count), count);
        });
        normalise(total, weight, width, call.eps, call.weight_offset, out);
    }
}

// ---- Activations ----

template <class T>
void gated_activation(const ActivationCall& call, Rows rows, Entries entries) {
    for (std::size_t row = rows.first; row < rows.last; ++row) {
        const T* gate = static_cast<const T*>(call.projected) + row * 2 * call.width + entries.first;
        T* out = static_cast<T*>(call.out) + row * call.out_stride + entries.first;
        for_wide_lanes(entries.last - entries.first, [&]<class V>(std::size_t i, int count) {
            const V active = activate(load_some_as<V>(gate + i, count), call.activation);
            store_some(out + i, active * load_some_as<V>(gate + call.width + i, count), count);
        });
    }
}

void softcap(float* numbers, std::size_t count, float cap) {
    const Lanes limit = broadcast(cap);
    for_lanes(count, [&](std::size_t i, int some) {
        store_some(numbers + i, hyperbolic_tangent(load_some(numbers + i, some) / limit) * limit, some);
    });
}

// ---- Embedding ----

template <class T>
void embedding(const EmbeddingCall& call, Rows rows) {
    const std::size_t width = call.width;
    const Lanes scale = broadcast(call.scale);
    for (std::size_t row = rows.first; row < rows.last; ++row) {
        const std::size_t from_row = call.token_ids ? static_cast<std::size_t>(call.token_ids[row]) : row;
        const T* from = static_cast<const T*>(call.table) + from_row * width;
        T* to = static_cast<T*>(call.out) + row * width;
        if (call.scale == 1.0f) {
            std::memcpy(to, from, width * sizeof(T));
        } else {
            for_lanes(width, [&](std::size_t i, int count) {
                store_some(to + i, load_some(from + i, count) * scale, count);
            });
        }
    }
}

// ---- Queries, keys and values ----

OCTAVO_INLINE void rotate_halves(float* head, const float* cosines, std::size_t half) {
    const float* sines = cosines + half;
    for_lanes(half, [&](std::size_t i, int count) {
        const Lanes first = load_some(head + i, count), second = load_some(head + half + i, count);
        const Lanes cosine = load_some(cosines + i, count), sine = load_some(sines + i, count);
        store_some(head + i, first * cosine - second * sine, count);
        store_some(head + half + i, second * cosine + first * sine, count);
    });
}

OCTAVO_INLINE void rotate_neighbours(float* head, const float* cosines, std::size_t half) {
    for (std::size_t i = 0; i < half; ++i) {
        const float first = head[2 * i], second = head[2 * i + 1];
        head[2 * i] = first * cosines[i] - second * cosines[half + i];
        head[2 * i + 1] = second * cosines[i] + first * cosines[half + i];
    }
}

// A head in `out`, normalised where there is a norm, and rotated.
template <class T>
OCTAVO_INLINE void turn_head(const RopeWriteCall& call, const float* head, const T* norm, std::int64_t position,
                             float* out) {
    if (norm) {
        normalise(head, norm, call.head_size, call.eps, call.weight_offset, out);
    } else {
        std::memcpy(out, head, call.head_size * sizeof(float));
    }
    const float* angles = call.cos_sin + position * call.rotary_dim;
    if (call.interleaved) return rotate_neighbours(out, angles, call.rotary_dim / 2);
    rotate_halves(out, angles, call.rotary_dim / 2);
}

OCTAVO_INLINE void subtract(const float* offset, int head_size, float* head) {
    for_lanes(head_size, [&](std::size_t i, int count) {
        store_some(head + i, load_some(head + i, count) - load_some(offset + i, count), count);
    });
}

template <class T>
OCTAVO_INLINE void write_query(const RopeWriteCall& call, std::size_t row, std::size_t head, const float* projected) {
    float turned[kMaxHeadSize];
    turn_head(call, projected, static_cast<const T*>(call.q_norm), call.positions[row], turned);
    convert(turned, call.head_size, static_cast<T*>(call.query) + (row * call.num_heads + head) * call.head_size);
}

template <class T, class Cache>
OCTAVO_INLINE void write_key(const RopeWriteCall& call, std::size_t row, int kv_head, const float* projected) {
    float turned[kMaxHeadSize];
    turn_head(call, projected, static_cast<const T*>(call.k_norm), call.positions[row], turned);
    if (call.key_offset) subtract(call.key_offset + kv_head * call.head_size, call.head_size, turned);
    const std::int64_t slot = call.slots[row];
    store_key(strip_of_slot<Cache>(call.cache, kv_head, slot), static_cast<int>(slot % kKeysPerStrip), turned);
}

template <class Cache>
OCTAVO_INLINE void write_value(const RopeWriteCall& call, std::size_t row, int kv_head, const float* projected) {
    const std::int64_t slot = call.slots[row];
    store_value(strip_of_slot<Cache>(call.cache, kv_head, slot), static_cast<int>(slot % kKeysPerStrip), projected);
}

template <class T, class Cache>
void rope_write(const RopeWriteCall& call, Rows rows, Heads heads) {
    const std::size_t size = call.head_size, num_heads = call.num_heads, num_kv_heads = call.num_kv_heads;
    for (std::size_t row = rows.first; row < rows.last; ++row) {
        const float* projected = call.projected + row * (num_heads + 2 * num_kv_heads) * size;
        for (std::size_t head = heads.first; head < heads.last; ++head) {
            const float* from = projected + head * size;
            if (head < num_heads) {
                write_query<T>(call, row, head, from);
            } else if (call.slots[row] < 0) {
                continue;
            } else if (head < num_heads + num_kv_heads) {
                write_key<T, Cache>(call, row, static_cast<int>(head - num_heads), from);
            } else {
                write_value<Cache>(call, row, static_cast<int>(head - num_heads - num_kv_heads), from);
            }
        }
    }
}

}  // namespace

extern const ElementwiseKernels elementwise_kernels{
    {{rms_norm<float, float>, rms_norm<float, Half>}, {rms_norm<Half, float>, rms_norm<Half, Half>}},
    {gated_activation<float>, gated_activation<Half>},
    {embedding<float>, embedding<Half>},
    {{rope_write<float, float>, rope_write<float, Half>, rope_write<float, Byte>},
     {rope_write<Half, float>, rope_write<Half, Half>, rope_write<Half, Byte>}},
    softcap};

}  // namespace octavo::OCTAVO_ISA
