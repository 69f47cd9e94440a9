#include "roofline.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string_view.h>

#include <utility>

#include "bindings/bindings.h"

namespace nb = nanobind;

namespace octavo {
namespace {

std::pair<double, double> rate(ThreadPool& pool, std::string_view unit, double seconds) {
    const MultiplyRate found = multiply_rate(pool, unit, seconds);
    return {found.operations, found.seconds};
}

}  // namespace

void bind_roofline(nb::module_& m) {
    using released = nb::call_guard<nb::gil_scoped_release>;
    nb::class_<BandwidthProbe>(m, "BandwidthProbe", "Memory to stream through.")
        .def(nb::init<ThreadPool&, std::size_t>(), nb::arg("pool"), nb::arg("bytes"), released())
        .def_prop_ro("bytes", &BandwidthProbe::bytes)
        .def("read_seconds", &BandwidthProbe::read_seconds, nb::arg("pool"), released(), "Read all of it once.")
        .def("copy_seconds", &BandwidthProbe::copy_seconds, nb::arg("pool"), released(),
             "Copy its first half onto the second.");
    m.def("multiply_rate", &rate, nb::arg("pool"), nb::arg("unit"), nb::arg("seconds"), released(),
          "(operations, seconds) of multiply-adds of float32, bfloat16 or int8 in registers, for about `seconds`;\n"
          "(0, 0) where the active instruction set has no such unit.");
    m.def("barrier_seconds", &barrier_seconds, nb::arg("pool"), nb::arg("num_barriers"), released(),
          "Mean seconds of a job of one empty task per thread.");
    m.def("clock_hz", &clock_hz, released(), "Cycles per second of this CPU now.");
}

}  // namespace octavo
