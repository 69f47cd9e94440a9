// Elementary functions of eight floats: one polynomial each, so that every kernel and every instruction set agrees to
// the bit. Errors are below two units in the last place where not said otherwise; NaN stays NaN.
#pragma once

#include "simd/activation.h"
#include "simd/lanes.h"

namespace octavo::OCTAVO_ISA {

// e^x; 0 below -87 (the smallest normal numbers are given up), infinity above 88.72.
OCTAVO_INLINE Lanes exponential(Lanes x) {
    const Lanes low = broadcast(-87.0f), high = broadcast(88.72f);
    const Lanes clamped = smaller(high, larger(low, x));
    // Adding 1.5 * 2^23 leaves the nearest whole number in the last bits.
    const Lanes shift = broadcast(12582912.0f);
    const Lanes shifted = fma(clamped, broadcast(1.44269504088896341f), shift);
    const Lanes n = shifted - shift;
    // ln 2 in two parts; the first has so few bits that n times it is exact.
    const Lanes rest = fma(n, broadcast(2.12194440e-4f), fma(n, broadcast(-0.693359375f), clamped));
    Lanes p = fma(broadcast(1.9875691500e-4f), rest, broadcast(1.3981999507e-3f));
    p = fma(p, rest, broadcast(8.3334519073e-3f));
    p = fma(p, rest, broadcast(4.1665795894e-2f));
    p = fma(p, rest, broadcast(1.6666665459e-1f));
    p = fma(p, rest, broadcast(5.0000001201e-1f));
    p = fma(p, rest * rest, rest) + broadcast(1.0f);
    const Lanes value = select_less(x, low, zero_lanes(), scale_by_power(p, shifted));
    return select_less(high, x, broadcast(__builtin_inff()), value);
}

// x / (1 + e^-t): silu for t = x, the tanh form of gelu for t = 2 sqrt(2/pi) (x + 0.044715 x^3).
OCTAVO_INLINE Lanes times_sigmoid(Lanes x, Lanes t) {
    return x / (broadcast(1.0f) + exponential(zero_lanes() - t));
}

OCTAVO_INLINE Lanes hyperbolic_tangent(Lanes x) {
    const Lanes z = magnitude(x), one = broadcast(1.0f);
    const Lanes large = one - broadcast(2.0f) / (exponential(z + z) + one);
    // Near zero the subtraction would lose what is left.
    const Lanes square = z * z;
    Lanes p = fma(broadcast(-5.70498872745e-3f), square, broadcast(2.06390887954e-2f));
    p = fma(p, square, broadcast(-5.37397155531e-2f));
    p = fma(p, square, broadcast(1.33314422036e-1f));
    p = fma(p, square, broadcast(-3.33332819422e-1f));
    const Lanes small = fma(p * square, z, z);
    return with_sign_of(select_less(z, broadcast(0.625f), small, large), x);
}

// An error of 1.5e-7 (Abramowitz and Stegun, 7.1.26).
OCTAVO_INLINE Lanes error_function(Lanes x) {
    const Lanes z = magnitude(x), one = broadcast(1.0f);
    const Lanes t = one / fma(z, broadcast(0.3275911f), one);
    Lanes p = fma(broadcast(1.061405429f), t, broadcast(-1.453152027f));
    p = fma(p, t, broadcast(1.421413741f));
    p = fma(p, t, broadcast(-0.284496736f));
    p = fma(p, t, broadcast(0.254829592f));
    return with_sign_of(one - p * t * exponential(zero_lanes() - z * z), x);
}

// What a gated layer multiplies by (ops/gate_up_activation), and what one without a gate computes (ops/linear_activation).
OCTAVO_INLINE Lanes activate(Lanes x, Activation activation) {
    if (activation == Activation::silu) return times_sigmoid(x, x);
    if (activation == Activation::relu) return select_less(x, zero_lanes(), zero_lanes(), x);
    if (activation == Activation::tanh) return hyperbolic_tangent(x);
    if (activation == Activation::gelu) {
        const Lanes half = x * broadcast(0.5f);
        return fma(half, error_function(x * broadcast(0.70710678118654752f)), half);
    }
    const Lanes cube = x * x * x;
    return times_sigmoid(x, fma(cube, broadcast(0.044715f), x) * broadcast(1.5957691216057308f));
}

OCTAVO_INLINE float exponential(float x) {
    float out[kLanes];
    store(out, exponential(broadcast(x)));
    return out[0];
}

}  // namespace octavo::OCTAVO_ISA
