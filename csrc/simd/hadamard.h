// The Hadamard transform of a head, which spreads an entry far from the others over all of them.
#pragma once

#include "simd/lanes.h"

namespace octavo::OCTAVO_ISA {

// Each lane whose number has not the bit kStride, plus the lane kStride on; and in that one their difference.
template <int kStride>
OCTAVO_INLINE Lanes butterfly(Lanes a) {
#if OCTAVO_HAS_AVX2
    __m256 other, negative;
    if constexpr (kStride == 1) {
        other = _mm256_permute_ps(a.v, 0xb1);
        negative = _mm256_setr_ps(0, -0.0f, 0, -0.0f, 0, -0.0f, 0, -0.0f);
    } else if constexpr (kStride == 2) {
        other = _mm256_permute_ps(a.v, 0x4e);
        negative = _mm256_setr_ps(0, 0, -0.0f, -0.0f, 0, 0, -0.0f, -0.0f);
    } else {
        other = _mm256_permute2f128_ps(a.v, a.v, 1);
        negative = _mm256_setr_ps(0, 0, 0, 0, -0.0f, -0.0f, -0.0f, -0.0f);
    }
    return {_mm256_add_ps(other, _mm256_xor_ps(a.v, negative))};
#else
    Lanes out;
    for (int i = 0; i < kLanes; ++i) out.v[i] = i & kStride ? a.v[i ^ kStride] - a.v[i] : a.v[i] + a.v[i ^ kStride];
    return out;
#endif
}

// Entries that are transformed together: the largest power of two that divides a head size, a multiple of 8.
OCTAVO_INLINE int hadamard_size(int head_size) { return head_size & -head_size; }

// Each run of hadamard_size entries times the matrix of Hadamard in its natural order; twice is hadamard_size times.
OCTAVO_INLINE void hadamard(float* head, int head_size) {
    for (int i = 0; i < head_size; i += kLanes) {
        store(head + i, butterfly<4>(butterfly<2>(butterfly<1>(load(head + i)))));
    }
    for (int stride = kLanes; stride < hadamard_size(head_size); stride *= 2) {
        for (int i = 0; i < head_size; i += kLanes) {
            if (i & stride) continue;
            const Lanes a = load(head + i), b = load(head + i + stride);
            store(head + i, a + b);
            store(head + i + stride, a - b);
        }
    }
}

}  // namespace octavo::OCTAVO_ISA
