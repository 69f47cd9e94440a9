// Rows of any width in pieces of eight lanes.
#pragma once

#include "simd/lanes.h"

namespace octavo::OCTAVO_ISA {

// Calls step(i, count) for the lanes of a row; the last may be fewer than kLanes.
template <class Step>
OCTAVO_INLINE void for_lanes(std::size_t width, Step step) {
    std::size_t i = 0;
    for (; i + kLanes <= width; i += kLanes) step(i, kLanes);
    if (i < width) step(i, static_cast<int>(width - i));
}

template <class T>
OCTAVO_INLINE Lanes load_some(const T* p, int count) {
    return count == kLanes ? load(p) : load_first(p, count);
}

template <class T>
OCTAVO_INLINE void store_some(T* p, Lanes a, int count) {
    if (count == kLanes) return store(p, a);
    store_first(p, a, count);
}

}  // namespace octavo::OCTAVO_ISA
