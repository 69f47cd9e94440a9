#include "encoder.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "bindings/bindings.h"
#include "graph.h"

namespace nb = nanobind;

namespace octavo {
namespace {

using Source = std::tuple<Address, Address, std::int64_t>;  // numbers, ids or 0, rows

Launch launch_layer_norm(const std::vector<Source>& sources, Address weight, Address bias, Address out, std::size_t width,
                         float eps, bool is_bfloat16) {
    if (sources.empty() || sources.size() > LayerNormCall::kMaxSources) {
        throw std::invalid_argument("a layer norm adds up one, two or three sources");
    }
    LayerNormCall call{{}, static_cast<int>(sources.size()), address(weight), address(bias), address(out), width, eps};
    std::array<std::int64_t, LayerNormCall::kMaxSources> num_ids{};
    for (std::size_t s = 0; s < sources.size(); ++s) {
        const auto& [numbers, ids, rows] = sources[s];
        call.sources[s] = {address(numbers), address<const std::int64_t>(ids)};
        num_ids[s] = rows;
    }
    return {"layer_norm",
            [=](ThreadPool& pool, StepSizes sizes) { layer_norm(pool, call, num_ids, sizes.num_rows, is_bfloat16); }};
}

Launch launch_activation(Address x, Address out, std::size_t width, int kind, bool is_bfloat16) {
    const ElementActivationCall call{address(x), address(out), width, static_cast<Activation>(kind)};
    return {"activation",
            [=](ThreadPool& pool, StepSizes sizes) { activation(pool, call, sizes.num_rows, is_bfloat16); }};
}

Launch launch_encoder_attention(Address qkv, Address bounds, Address out, int num_heads, int head_size, float scale,
                                bool is_bfloat16) {
    const EncoderAttentionCall call{address(qkv), address(out), num_heads, head_size, scale};
    return {"encoder_attention", [=](ThreadPool& pool, StepSizes sizes) {
                encoder_attention(pool, call, address<const std::int32_t>(bounds), sizes.num_requests, sizes.num_rows,
                                  is_bfloat16);
            }};
}

}  // namespace

void bind_encoder(nb::module_& m) {
    m.attr("ACTIVATION_GELU") = static_cast<int>(Activation::gelu);
    m.attr("ACTIVATION_GELU_TANH") = static_cast<int>(Activation::gelu_tanh);
    m.attr("ACTIVATION_RELU") = static_cast<int>(Activation::relu);
    m.attr("ACTIVATION_TANH") = static_cast<int>(Activation::tanh);
    m.def("layer_norm", &launch_layer_norm, nb::arg("sources"), nb::arg("weight"), nb::arg("bias"), nb::arg("out"),
          nb::arg("width"), nb::arg("eps"), nb::arg("is_bfloat16"),
          "Norm of the sum of a row of each source: (numbers, int64 ids of its rows or 0, how many rows it has).\n"
          "Raises IndexError when it runs.");
    m.def("activation", &launch_activation, nb::arg("x"), nb::arg("out"), nb::arg("width"), nb::arg("kind"),
          nb::arg("is_bfloat16"), "One of ACTIVATION_* of each number; out may be x.");
    m.def("encoder_attention", &launch_encoder_attention, nb::arg("qkv"), nb::arg("bounds"), nb::arg("out"),
          nb::arg("num_heads"), nb::arg("head_size"), nb::arg("scale"), nb::arg("is_bfloat16"),
          "Each row of qkv [num_rows, 3, num_heads, head_size] attends to all of its text; text r owns rows\n"
          "bounds[r] : bounds[r + 1], int32.");
}

}  // namespace octavo
