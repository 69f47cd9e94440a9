// Loops that do nothing but read, copy or multiply, as each instruction set does it best: what kernels are held against.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd/instruction_sets.h"

namespace octavo {

// Multiply-adds in registers, in independent chains. `run` is null where the instruction set has no unit of that type.
struct Multiplier {
    void (*run)(std::size_t rounds);
    std::size_t operations_per_round;  // a multiply-add counts as two
};

struct RooflineKernels {
    std::uint64_t (*read)(const char* from, std::size_t bytes);           // aligned to 64 and a multiple of 1024 bytes
    void (*copy)(const char* from, char* to, std::size_t bytes);          // the same
    Multiplier float32, bfloat16, int8;
};

OCTAVO_DECLARE_KERNELS(RooflineKernels, roofline_kernels)

}  // namespace octavo
