// The Python face of the native library; every function here is a thin call into a file of its own.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "cpu_features.h"

namespace nb = nanobind;

NB_MODULE(_native, m) {
    m.doc() = "Octavo's native library.";
    m.def("cpu_features", &octavo::cpu_features, "Instruction sets this process may use, spelled as Linux spells them.");
    m.def("compiled_architecture", &octavo::compiled_architecture, "x86_64, aarch64 or other.");
}
