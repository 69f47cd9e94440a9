// Elementary functions of eight floats, or sixteen (wide_lanes.h): one polynomial each, so that every kernel and every
// instruction set agrees to the bit. Errors are below two units in the last place where not said otherwise; NaN stays NaN,
// but for one of a file whose last nine bits are not zero.
#pragma once

#include "simd/activation.h"
#include "simd/lanes.h"

namespace octavo::OCTAVO_ISA {

// e^x; 0 below -87 (the smallest normal numbers are given up), infinity above 88.72.
template <class V>
OCTAVO_INLINE V exponential(V x) {
    const V low = V::broadcast(-87.0f), high = V::broadcast(88.72f);
    const V clamped = smaller(high, larger(low, x));
    // Adding 1.5 * 2^23 leaves the nearest whole number in the last bits.
    const V shift = V::broadcast(12582912.0f);
    const V shifted = fma(clamped, V::broadcast(1.44269504088896341f), shift);
    const V n = shifted - shift;
    // ln 2 in two parts; the first has so few bits that n times it is exact.
    const V rest = fma(n, V::broadcast(2.12194440e-4f), fma(n, V::broadcast(-0.693359375f), clamped));
    V p = fma(V::broadcast(1.9875691500e-4f), rest, V::broadcast(1.3981999507e-3f));
    p = fma(p, rest, V::broadcast(8.3334519073e-3f));
    p = fma(p, rest, V::broadcast(4.1665795894e-2f));
    p = fma(p, rest, V::broadcast(1.6666665459e-1f));
    p = fma(p, rest, V::broadcast(5.0000001201e-1f));
    p = fma(p, rest * rest, rest) + V::broadcast(1.0f);
    const V value = select_less(x, low, V::zero(), scale_by_power(p, shifted));
    return select_less(high, x, V::broadcast(__builtin_inff()), value);
}

// x / (1 + e^-t): silu for t = x, the tanh form of gelu for t = 2 sqrt(2/pi) (x + 0.044715 x^3).
template <class V>
OCTAVO_INLINE V times_sigmoid(V x, V t) {
    return x / (V::broadcast(1.0f) + exponential(V::zero() - t));
}

template <class V>
OCTAVO_INLINE V hyperbolic_tangent(V x) {
    const V z = magnitude(x), one = V::broadcast(1.0f);
    const V large = one - V::broadcast(2.0f) / (exponential(z + z) + one);
    // Near zero the subtraction would lose what is left.
    const V square = z * z;
    V p = fma(V::broadcast(-5.70498872745e-3f), square, V::broadcast(2.06390887954e-2f));
    p = fma(p, square, V::broadcast(-5.37397155531e-2f));
    p = fma(p, square, V::broadcast(1.33314422036e-1f));
    p = fma(p, square, V::broadcast(-3.33332819422e-1f));
    const V small = fma(p * square, z, z);
    return with_sign_of(select_less(z, V::broadcast(0.625f), small, large), x);
}

// An error of 1.5e-7 (Abramowitz and Stegun, 7.1.26).
template <class V>
OCTAVO_INLINE V error_function(V x) {
    const V z = magnitude(x), one = V::broadcast(1.0f);
    const V t = one / fma(z, V::broadcast(0.3275911f), one);
    V p = fma(V::broadcast(1.061405429f), t, V::broadcast(-1.453152027f));
    p = fma(p, t, V::broadcast(1.421413741f));
    p = fma(p, t, V::broadcast(-0.284496736f));
    p = fma(p, t, V::broadcast(0.254829592f));
    return with_sign_of(one - p * t * exponential(V::zero() - z * z), x);
}

// What a gated layer multiplies by (ops/gate_up_activation), and what one without a gate computes (ops/linear_activation).
template <class V>
OCTAVO_INLINE V activate(V x, Activation activation) {
    if (activation == Activation::silu) return times_sigmoid(x, x);
    if (activation == Activation::relu) return select_less(x, V::zero(), V::zero(), x);
    if (activation == Activation::tanh) return hyperbolic_tangent(x);
    if (activation == Activation::gelu) {
        const V half = x * V::broadcast(0.5f);
        return fma(half, error_function(x * V::broadcast(0.70710678118654752f)), half);
    }
    const V cube = x * x * x;
    return times_sigmoid(x, fma(cube, V::broadcast(0.044715f), x) * V::broadcast(1.5957691216057308f));
}

OCTAVO_INLINE float exponential(float x) {
    float out[kLanes];
    store(out, exponential(broadcast(x)));
    return out[0];
}

}  // namespace octavo::OCTAVO_ISA
