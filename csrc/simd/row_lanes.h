// Rows of any width in pieces of eight lanes, or of sixteen where one instruction takes so many.
#pragma once

#include "simd/wide_lanes.h"

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

template <class V, class T>
OCTAVO_INLINE V load_some_as(const T* p, int count) {
    if constexpr (sizeof(V) == sizeof(Lanes)) {
        return load_some(p, count);
    } else {
        return load_as<V>(p);  // wider ones are whole
    }
}

template <class T, class V>
OCTAVO_INLINE void store_some(T* p, V a, int count) {
    if (count == sizeof(V) / sizeof(float)) return store(p, a);
    store_first(p, a, count);
}

// Calls step.operator()<V>(i, count) for the lanes of a row: of Wide as long as those are whole, then as for_lanes.
template <class Step>
OCTAVO_INLINE void for_wide_lanes(std::size_t width, Step step) {
    std::size_t i = 0;
    if constexpr (kWideLanes > kLanes) {
        for (; i + kWideLanes <= width; i += kWideLanes) step.template operator()<Wide>(i, kWideLanes);
    }
    for_lanes(width - i, [&](std::size_t rest, int count) { step.template operator()<Lanes>(i + rest, count); });
}

// Numbers as a T keeps them.
template <class T>
OCTAVO_INLINE void convert(const float* from, std::size_t count, T* to) {
    for_wide_lanes(count, [&]<class V>(std::size_t i, int some) { store_some(to + i, load_some_as<V>(from + i, some), some); });
}

}  // namespace octavo::OCTAVO_ISA
