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
void gated_activation(const ActivationCall& call, Rows rows) {
    const std::size_t width = call.width;
    for (std::size_t row = rows.first; row < rows.last; ++row) {
        const T* gate = static_cast<const T*>(call.projected) + row * 2 * width;
        T* out = static_cast<T*>(call.out) + row * width;
        for_lanes(width, [&](std::size_t i, int count) {
            const Lanes active = activate(load_some(gate + i, count), call.activation);
            store_some(out + i, active * load_some(gate + width + i, count), count);
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

template <class To>
OCTAVO_INLINE void store_head(const float* head, int head_size, To* out) {
    for_lanes(head_size, [&](std::size_t i, int count) { store_some(out + i, load_some(head + i, count), count); });
}

OCTAVO_INLINE void subtract(const float* offset, int head_size, float* head) {
    for_lanes(head_size, [&](std::size_t i, int count) {
        store_some(head + i, load_some(head + i, count) - load_some(offset + i, count), count);
    });
}

template <class T, class Cache>
OCTAVO_INLINE void write_key_value(const RopeWriteCall& call, const float* keys, std::int64_t position,
                                   std::int64_t slot) {
    const int size = call.head_size, token = static_cast<int>(slot % call.cache.block_size);
    const float* values = keys + static_cast<std::size_t>(call.num_kv_heads) * size;
    float key[kMaxHeadSize];
    for (int head = 0; head < call.num_kv_heads; ++head) {
        turn_head(call, keys + head * size, static_cast<const T*>(call.k_norm), position, key);
        if (call.key_offset) subtract(call.key_offset + head * size, size, key);
        const auto strip = strip_of<Cache>(call.cache, slot / call.cache.block_size, head, token);
        write_token(strip, token % kKeysPerStrip, key, values + head * size);
    }
}

template <class T, class Cache>
void rope_write(const RopeWriteCall& call, Rows rows) {
    const std::size_t size = call.head_size, heads = call.num_heads;
    const std::size_t width = (heads + 2 * static_cast<std::size_t>(call.num_kv_heads)) * size;
    float turned[kMaxHeadSize];
    for (std::size_t row = rows.first; row < rows.last; ++row) {
        const float* projected = call.projected + row * width;
        T* query = static_cast<T*>(call.query) + row * heads * size;
        for (std::size_t head = 0; head < heads; ++head) {
            turn_head(call, projected + head * size, static_cast<const T*>(call.q_norm), call.positions[row], turned);
            store_head(turned, call.head_size, query + head * size);
        }
        if (call.slots[row] < 0) continue;
        write_key_value<T, Cache>(call, projected + heads * size, call.positions[row], call.slots[row]);
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
