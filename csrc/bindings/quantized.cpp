#include "quantized.h"

#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string_view>
#include <tuple>
#include <vector>

#include "bindings/bindings.h"

namespace nb = nanobind;

namespace octavo {
namespace {

// format, stored type, address, number of rows, address of their order or 0
using Rows = std::tuple<std::string_view, std::string_view, std::uintptr_t, std::size_t, std::uintptr_t>;

QuantizedMatrix::Source source(const Rows& rows) {
    const auto& [format, type, data, num_rows, order] = rows;
    if (num_rows == 0) throw std::invalid_argument("an empty weight matrix cannot be packed");
    return {weight_format(format),
            {type, reinterpret_cast<const std::uint8_t*>(data), num_rows, reinterpret_cast<const std::int64_t*>(order)}};
}

void construct(QuantizedMatrix* self, ThreadPool& pool, std::size_t k, const std::vector<Rows>& stack,
               std::uintptr_t bias) {
    std::vector<QuantizedMatrix::Source> sources;
    for (const Rows& rows : stack) sources.push_back(source(rows));
    if (sources.empty() || k == 0) throw std::invalid_argument("an empty weight matrix cannot be packed");
    const nb::gil_scoped_release released;
    new (self) QuantizedMatrix(pool, k, sources, reinterpret_cast<const float*>(bias));
}

}  // namespace

void bind_quantized(nb::module_& m) {
    nb::class_<QuantizedMatrix, PackedMatrix>(m, "QuantizedMatrix", "Weights of a few bits, in the formats of GGUF or int8.")
        .def("__init__", &construct, nb::arg("pool"), nb::arg("k"), nb::arg("stack"), nb::arg("bias"),
             "Pack matrices one below the other: of each (format, type as stored, address of its rows [n, k], n, address of\n"
             "their order [n] int64 or 0). Another type than the format's is quantised: to Q8_0, Q4_1 or int8. bias: float32\n"
             "for all rows (address 0: none). Raises ValueError for formats and types there are not.");
}

}  // namespace octavo
