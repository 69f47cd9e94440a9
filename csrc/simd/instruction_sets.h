// The instruction sets that files in csrc/simd are compiled for, each into a namespace of its name.
#pragma once

// Declares `name` in each of them.
#define OCTAVO_DECLARE_KERNELS(Type, name) \
    namespace generic { extern const Type name; } \
    namespace avx2 { extern const Type name; } \
    namespace avx512 { extern const Type name; } \
    namespace amx { extern const Type name; }
