#include "linear.h"

#include <nanobind/stl/string_view.h>

#include <stdexcept>
#include <string>
#include <string_view>

#include "bindings/bindings.h"
#include "graph.h"

namespace nb = nanobind;

namespace octavo {
namespace {

NumberType named_number_type(std::string_view name) {
    if (name == "float32") return NumberType::float32;
    if (name == "bfloat16") return NumberType::bfloat16;
    throw std::invalid_argument("packed linear has no kernels for " + std::string(name));
}

void construct(PackedLinear* self, ThreadPool& pool, std::string_view dtype, std::uintptr_t weight, std::uintptr_t bias,
               std::size_t num_columns, std::size_t k, bool gated) {
    const NumberType type = named_number_type(dtype);
    if (num_columns == 0 || k == 0) throw std::invalid_argument("an empty weight matrix cannot be packed");
    const nb::gil_scoped_release released;
    new (self) PackedLinear(pool, type, address(weight), address(bias), num_columns, k, gated);
}

Launch project(const PackedMatrix& self, Address x, bool x_is_bfloat16, bool x_is_quantized, Address out,
               bool out_is_bfloat16) {
    return {"linear", [=, &self](ThreadPool& pool, StepSizes sizes) {
                self.run(pool, {address(x), number_type(x_is_bfloat16), x_is_quantized}, sizes.num_rows,
                         number_type(out_is_bfloat16), address(out));
            },
            self.weights()};
}

Launch best(const PackedMatrix& self, std::uintptr_t x, bool x_is_bfloat16, float softcap, std::uintptr_t out) {
    return {"linear_best", [=, &self](ThreadPool& pool, StepSizes sizes) {
                self.run_best(pool, {address(x), number_type(x_is_bfloat16)}, sizes.num_rows, softcap,
                              static_cast<double*>(address(out)));
            },
            self.weights()};
}

Launch gate(const PackedMatrix& self, Address x, bool is_bfloat16, bool x_is_quantized, bool is_gelu_tanh, Address out,
            bool out_is_quantized) {
    if (self.num_columns() % 2) throw std::invalid_argument("a gated matrix has as many gates as other columns");
    const Activation activation = is_gelu_tanh ? Activation::gelu_tanh : Activation::silu;
    return {"linear_gated", [=, &self](ThreadPool& pool, StepSizes sizes) {
                const NumberType type = number_type(is_bfloat16);
                self.run_gated(pool, {address(x), type, x_is_quantized}, sizes.num_rows, activation,
                               {address(out), type, out_is_quantized});
            },
            self.weights()};
}

void check_rows(const std::int64_t* ids, std::size_t num_ids, std::size_t num_rows) {
    for (std::size_t i = 0; i < num_ids; ++i) {
        if (ids[i] >= 0 && static_cast<std::size_t>(ids[i]) < num_rows) continue;
        throw std::out_of_range("row " + std::to_string(ids[i]) + " is not one of " + std::to_string(num_rows));
    }
}

Launch unpack_rows(const PackedMatrix& self, std::uintptr_t ids, std::uintptr_t out, bool is_bfloat16) {
    return {"unpack_rows", [=, &self](ThreadPool& pool, StepSizes sizes) {
                const auto* first = static_cast<const std::int64_t*>(address(ids));
                check_rows(first, sizes.num_rows, self.num_columns());
                self.unpack_rows(pool, first, sizes.num_rows, number_type(is_bfloat16), address(out));
            }};
}

}  // namespace

void bind_linear(nb::module_& m) {
    m.attr("LEAST_ROWS_OF_BEST") = kLeastRowsOfBest;
    nb::class_<PackedMatrix>(m, "PackedMatrix", "A weight matrix in the form its kernels read.")
        .def_prop_ro("num_columns", &PackedMatrix::num_columns)
        .def_prop_ro("k", &PackedMatrix::k)
        .def_prop_ro("bytes", &PackedMatrix::bytes, "Memory it holds.")
        .def_prop_ro("quantized_row_bytes", &PackedMatrix::quantized_row_bytes,
                     "Of a row as rms_norm_quantize or `gate` quantise it for this one; 0: it takes numbers only.")
        .def("project", &project, nb::arg("x"), nb::arg("x_is_bfloat16"), nb::arg("x_is_quantized"),
             nb::arg("out"), nb::arg("out_is_bfloat16"),
             nb::keep_alive<0, 1>(),
             "Launch of x [num_rows, k] -> out [num_rows, num_columns], float32 or bfloat16 each. It raises ValueError\n"
             "for types the format does not take.")
        .def("best", &best, nb::arg("x"), nb::arg("x_is_bfloat16"), nb::arg("softcap"), nb::arg("out"),
             nb::keep_alive<0, 1>(),
             "Launch of x [num_rows, k] -> float64 [num_rows, 2]: a row's largest result as float32, NaN where any is, and\n"
             "the lowest column that has it. softcap c: of c * tanh(z / c); 0: as they are.")
        .def("gate", &gate, nb::arg("x"), nb::arg("is_bfloat16"), nb::arg("x_is_quantized"),
             nb::arg("is_gelu_tanh"), nb::arg("out"), nb::arg("out_is_quantized"), nb::keep_alive<0, 1>(),
             "Launch of x [num_rows, k] -> activation(gate) * up, [num_rows, num_columns / 2] of the same type, or\n"
             "quantised for who multiplies them next.")
        .def("unpack_rows", &unpack_rows, nb::arg("ids"), nb::arg("out"), nb::arg("is_bfloat16"), nb::keep_alive<0, 1>(),
             "Launch of rows of the weight, by int64 number. It raises IndexError for one there is not.");
    nb::class_<PackedLinear, PackedMatrix>(m, "PackedLinear", "Float32 or bfloat16 weights.")
        .def("__init__", &construct, nb::arg("pool"), nb::arg("dtype"), nb::arg("weight"), nb::arg("bias"),
             nb::arg("num_columns"), nb::arg("k"), nb::arg("gated") = false,
             "Pack `weight` [num_columns, k] and `bias` [num_columns] (address 0: none), float32 or bfloat16.\n"
             "gated: the first half of the columns are gates, and both halves lie ready for `gate`.");
}

}  // namespace octavo
