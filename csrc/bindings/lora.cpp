#include "lora.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "graph.h"

namespace nb = nanobind;

namespace octavo {
namespace {

std::shared_ptr<LowRankUpdate> pack(std::uintptr_t a, std::uintptr_t b, std::size_t rank, std::size_t k,
                                    std::size_t num_columns, float scale, bool is_bfloat16) {
    const nb::gil_scoped_release released;
    return std::make_shared<LowRankUpdate>(number_type(is_bfloat16), address<const void>(a),
                                           address<const void>(b), rank, k, num_columns, scale);
}

void construct(LoraSlots* self, std::size_t num_slots, std::size_t k, std::vector<std::size_t> columns_of_parts,
               bool is_bfloat16) {
    new (self) LoraSlots(number_type(is_bfloat16), num_slots, k, std::move(columns_of_parts));
}

void put(LoraSlots& self, std::size_t slot, std::size_t part, std::shared_ptr<LowRankUpdate> update) {
    self.put(slot, part, std::move(update));
}

Launch add(const LoraSlots& self, std::uintptr_t x, std::uintptr_t row_slots, std::uintptr_t y, bool y_is_bfloat16) {
    return {"lora", [=, &self](ThreadPool& pool, StepSizes sizes) {
                self.run(pool, address<const void>(x), address<const std::int32_t>(row_slots),
                         sizes.num_rows, {address(y), number_type(y_is_bfloat16)});
            }};
}

}  // namespace

void bind_lora(nb::module_& m) {
    nb::class_<LowRankUpdate>(m, "LowRankUpdate", "An adapter's update of one projection, packed.")
        .def_prop_ro("nbytes", &LowRankUpdate::bytes, "Memory it holds.");
    m.def("pack_low_rank", &pack, nb::arg("a"), nb::arg("b"), nb::arg("rank"), nb::arg("k"), nb::arg("num_columns"),
          nb::arg("scale"), nb::arg("is_bfloat16"),
          "Copy a [rank, k] and b [num_columns, rank], float32 or bfloat16, into the kernels' layout.");
    nb::class_<LoraSlots>(m, "LoraSlots", "The adapters that a layer of one or several projections has at hand.")
        .def("__init__", &construct, nb::arg("num_slots"), nb::arg("k"), nb::arg("columns_of_parts"),
             nb::arg("is_bfloat16"))
        .def("put", &put, nb::arg("slot"), nb::arg("part"), nb::arg("update").none(),
             "Set an adapter's update of a projection; None: it has none.")
        .def("add", &add, nb::arg("x"), nb::arg("row_slots"), nb::arg("y"), nb::arg("y_is_bfloat16"),
             nb::keep_alive<0, 1>(),
             "Launch of y += scale * (x A^T) B^T, row by row with the adapter in the row's slot (int32, -1 = none).\n"
             "It raises IndexError for a slot there is not.");
}

}  // namespace octavo
