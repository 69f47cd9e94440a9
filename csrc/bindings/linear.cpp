#include "linear.h"

#include <nanobind/stl/string_view.h>

#include <stdexcept>
#include <string>
#include <string_view>

#include "bindings/bindings.h"

namespace nb = nanobind;

namespace octavo {
namespace {

NumberType number_type(std::string_view name) {
    if (name == "float32") return NumberType::float32;
    if (name == "bfloat16") return NumberType::bfloat16;
    throw std::invalid_argument("packed linear has no kernels for " + std::string(name));
}

const void* address(std::uintptr_t number) { return reinterpret_cast<const void*>(number); }

void construct(PackedLinear* self, ThreadPool& pool, std::string_view dtype, std::uintptr_t weight, std::uintptr_t bias,
               std::size_t num_columns, std::size_t k, bool gated) {
    const NumberType type = number_type(dtype);
    if (num_columns == 0 || k == 0) throw std::invalid_argument("an empty weight matrix cannot be packed");
    const nb::gil_scoped_release released;
    new (self) PackedLinear(pool, type, address(weight), address(bias), num_columns, k, gated);
}

NumberType number_type(bool is_bfloat16) { return is_bfloat16 ? NumberType::bfloat16 : NumberType::float32; }

void run(const PackedMatrix& self, ThreadPool& pool, std::uintptr_t x, bool x_is_bfloat16, std::size_t num_rows,
         std::uintptr_t out, bool out_is_bfloat16) {
    self.run(pool, address(x), number_type(x_is_bfloat16), num_rows, number_type(out_is_bfloat16),
             reinterpret_cast<void*>(out));
}

void run_gated(const PackedMatrix& self, ThreadPool& pool, std::uintptr_t x, bool is_bfloat16, std::size_t num_rows,
               bool gelu_tanh, std::uintptr_t out) {
    if (self.num_columns() % 2) throw std::invalid_argument("a gated matrix has as many gates as other columns");
    self.run_gated(pool, address(x), number_type(is_bfloat16), num_rows,
                   gelu_tanh ? Activation::gelu_tanh : Activation::silu, reinterpret_cast<void*>(out));
}

void unpack_rows(const PackedMatrix& self, ThreadPool& pool, std::uintptr_t ids, std::size_t num_ids,
                 std::uintptr_t out, bool is_bfloat16) {
    const auto* first = static_cast<const std::int64_t*>(address(ids));
    for (std::size_t i = 0; i < num_ids; ++i) {
        if (first[i] < 0 || static_cast<std::size_t>(first[i]) >= self.num_columns()) {
            throw std::out_of_range("row " + std::to_string(first[i]) + " is not one of " +
                                    std::to_string(self.num_columns()));
        }
    }
    self.unpack_rows(pool, first, num_ids, number_type(is_bfloat16), reinterpret_cast<void*>(out));
}

}  // namespace

void bind_linear(nb::module_& m) {
    using released = nb::call_guard<nb::gil_scoped_release>;
    nb::class_<PackedMatrix>(m, "PackedMatrix", "A weight matrix in the form its kernels read.")
        .def_prop_ro("num_columns", &PackedMatrix::num_columns)
        .def_prop_ro("k", &PackedMatrix::k)
        .def_prop_ro("bytes", &PackedMatrix::bytes, "Memory it holds.")
        .def("run", &run, nb::arg("pool"), nb::arg("x"), nb::arg("x_is_bfloat16"), nb::arg("num_rows"), nb::arg("out"),
             nb::arg("out_is_bfloat16"), released(),
             "x [num_rows, k] -> out [num_rows, num_columns], float32 or bfloat16 each. Raises ValueError for types it\n"
             "does not take.")
        .def("run_gated", &run_gated, nb::arg("pool"), nb::arg("x"), nb::arg("is_bfloat16"), nb::arg("num_rows"),
             nb::arg("gelu_tanh"), nb::arg("out"), released(),
             "x [num_rows, k] -> activation(gate) * up, [num_rows, num_columns / 2] of the same type.")
        .def("unpack_rows", &unpack_rows, nb::arg("pool"), nb::arg("ids"), nb::arg("num_ids"), nb::arg("out"),
             nb::arg("is_bfloat16"), released(),
             "Rows of the weight, by int64 number. Raises IndexError for one it does not have.");
    nb::class_<PackedLinear, PackedMatrix>(m, "PackedLinear", "Float32 or bfloat16 weights.")
        .def("__init__", &construct, nb::arg("pool"), nb::arg("dtype"), nb::arg("weight"), nb::arg("bias"),
             nb::arg("num_columns"), nb::arg("k"), nb::arg("gated") = false,
             "Pack `weight` [num_columns, k] and `bias` [num_columns] (address 0: none), float32 or bfloat16.\n"
             "gated: the first half of the columns are gates, and both halves lie ready for `run_gated`.");
}

}  // namespace octavo
