#include "elementwise.h"

#include <stdexcept>

#include "bindings/bindings.h"
#include "graph.h"
#include "qkv_rope_write.h"
#include "quantized_rows.h"

namespace nb = nanobind;

namespace octavo {
namespace {

Launch launch_rms_norm(Address x, Address residual, Address weight, Address total, Address out, std::size_t width,
                       float eps, float weight_offset, bool is_bfloat16, bool residual_is_bfloat16) {
    const NormCall call{address(x), address(residual), address(weight), address<float>(total),
                        address(out), width, eps, weight_offset};
    return {"rms_norm", [=](ThreadPool& pool, StepSizes sizes) {
                rms_norm(pool, call, sizes.num_rows, is_bfloat16, residual_is_bfloat16);
            }};
}

Launch launch_rms_norm_quantize(Address x, Address residual, Address weight, Address total, Address out,
                                std::size_t width, float eps, float weight_offset, bool is_bfloat16,
                                bool residual_is_bfloat16) {
    const NormCall call{address(x), address(residual), address(weight), address<float>(total),
                        nullptr, width, eps, weight_offset};
    return {"rms_norm_quantize", [=](ThreadPool& pool, StepSizes sizes) {
                rms_norm_quantize(pool, call, number_type(is_bfloat16), number_type(residual_is_bfloat16),
                                  {address<ActivationGroup>(out), sizes.num_rows, width});
            }};
}

Launch launch_gated_activation(Address projected, Address out, std::size_t width, bool is_gelu_tanh, bool is_bfloat16) {
    const Activation activation = is_gelu_tanh ? Activation::gelu_tanh : Activation::silu;
    const ActivationCall call{address(projected), address(out), width, width, activation};
    return {"gated_activation",
            [=](ThreadPool& pool, StepSizes sizes) { gated_activation(pool, call, sizes.num_rows, is_bfloat16); }};
}

Launch launch_embedding(Address token_ids, Address table, Address out, std::size_t width, std::int64_t vocab_size,
                        float scale, bool is_bfloat16) {
    const EmbeddingCall call{address<const std::int64_t>(token_ids), address(table), address(out), width, scale};
    return {"embedding", [=](ThreadPool& pool, StepSizes sizes) {
                embedding(pool, call, sizes.num_rows, vocab_size, is_bfloat16);
            }};
}

Launch launch_scale(Address numbers, std::size_t width, float factor, bool is_bfloat16) {
    return {"scale", [=](ThreadPool& pool, StepSizes sizes) {
                scale(pool, address(numbers), sizes.num_rows, width, factor, is_bfloat16);
            }};
}

Launch launch_softcap(Address numbers, std::size_t width, float cap) {
    return {"softcap", [=](ThreadPool& pool, StepSizes sizes) {
                softcap(pool, address<float>(numbers), sizes.num_rows * width, cap);
            }};
}

// How a layer's heads are normed and rotated, and where they are stored; calls add a step's rows.
struct RopeWriteLayer {
    RopeWriteLayer(int num_heads, int num_kv_heads, int head_size, int rotary_dim, bool interleaved) {
        if (head_size > kMaxHeadSize || rotary_dim > head_size || rotary_dim % 2) {
            throw std::invalid_argument("heads must have at most 1024 entries, and an even number to rotate of these");
        }
        call.num_heads = num_heads;
        call.num_kv_heads = num_kv_heads;
        call.head_size = head_size;
        call.rotary_dim = rotary_dim;
        call.interleaved = interleaved;
    }

    void set_norm(Address q_weight, Address k_weight, float eps, float weight_offset) {
        call.q_norm = address(q_weight);
        call.k_norm = address(k_weight);
        call.eps = eps;
        call.weight_offset = weight_offset;
    }

    void set_table(Address cos_sin, std::int64_t num_positions) {
        call.cos_sin = address<const float>(cos_sin);
        call.num_positions = num_positions;
    }

    void set_cache(const KvCache& cache) { call.cache = cache; }

    void set_key_offset(Address key_offset) { call.key_offset = address<const float>(key_offset); }

    void set_rows(Address projected, Address positions, Address slots, Address query) {
        call.projected = address<float>(projected);
        call.positions = address<const std::int64_t>(positions);
        call.slots = address<const std::int64_t>(slots);
        call.query = address(query);
    }

    Launch launch(bool is_bfloat16) const {
        return {"rope_write", [call = call, is_bfloat16](ThreadPool& pool, StepSizes sizes) {
                    rope_write(pool, call, sizes.num_rows, is_bfloat16);
                }};
    }

    Launch launch_from(const PackedMatrix& weight, Address x, bool is_bfloat16, bool x_is_quantized) const {
        const int num_columns = (call.num_heads + 2 * call.num_kv_heads) * call.head_size;
        if (weight.num_columns() != static_cast<std::size_t>(num_columns)) {
            throw std::invalid_argument("a projection to heads has as many columns as they have entries");
        }
        return {"qkv_rope_write", [=, call = call, &weight](ThreadPool& pool, StepSizes sizes) {
                    const Activations rows{address(x), number_type(is_bfloat16), x_is_quantized};
                    qkv_rope_write(pool, weight, rows, sizes.num_rows, call);
                }, weight.weights()};
    }

    RopeWriteCall call{};
};

}  // namespace

void bind_elementwise(nb::module_& m) {
    // Each returns a Launch over rows of the width it is told.
    m.def("rms_norm", &launch_rms_norm, nb::arg("x"), nb::arg("residual"), nb::arg("weight"), nb::arg("total"),
          nb::arg("out"), nb::arg("width"), nb::arg("eps"), nb::arg("weight_offset"), nb::arg("is_bfloat16"),
          nb::arg("residual_is_bfloat16"),
          "Norm of x, or of total = residual + x where residual is not 0; all [num_rows, width], weight [width]. The\n"
          "total is float32.");
    m.def("rms_norm_quantize", &launch_rms_norm_quantize, nb::arg("x"), nb::arg("residual"), nb::arg("weight"),
          nb::arg("total"), nb::arg("out"), nb::arg("width"), nb::arg("eps"), nb::arg("weight_offset"),
          nb::arg("is_bfloat16"), nb::arg("residual_is_bfloat16"),
          "As rms_norm, and its results as a PackedMatrix of quantised weights takes them.");
    m.def("gated_activation", &launch_gated_activation, nb::arg("projected"), nb::arg("out"), nb::arg("width"),
          nb::arg("is_gelu_tanh"), nb::arg("is_bfloat16"),
          "activation(gate) * up of projected [num_rows, 2 * width]; silu or the tanh form of gelu.");
    m.def("embedding", &launch_embedding, nb::arg("token_ids"), nb::arg("table"), nb::arg("out"), nb::arg("width"),
          nb::arg("vocab_size"), nb::arg("scale"), nb::arg("is_bfloat16"),
          "Rows of table [vocab_size, width] by int64 id, times scale. Raises IndexError when it runs.");
    m.def("scale", &launch_scale, nb::arg("numbers"), nb::arg("width"), nb::arg("factor"), nb::arg("is_bfloat16"),
          "Multiply each number by factor, in place.");
    m.def("softcap", &launch_softcap, nb::arg("numbers"), nb::arg("width"), nb::arg("cap"),
          "Map each float32 z to cap * tanh(z / cap), in place.");
    nb::class_<RopeWriteLayer>(m, "RopeWriteLayer", "Norms and rotates projected heads and stores keys and values.")
        .def(nb::init<int, int, int, int, bool>(), nb::arg("num_heads"), nb::arg("num_kv_heads"), nb::arg("head_size"),
             nb::arg("rotary_dim"), nb::arg("interleaved"))
        .def("set_norm", &RopeWriteLayer::set_norm, nb::arg("q_weight"), nb::arg("k_weight"), nb::arg("eps"),
             nb::arg("weight_offset"))
        .def("set_table", &RopeWriteLayer::set_table, nb::arg("cos_sin"), nb::arg("num_positions"))
        .def("set_cache", &RopeWriteLayer::set_cache, nb::arg("cache"))
        .def("set_key_offset", &RopeWriteLayer::set_key_offset, nb::arg("key_offset"))
        .def("set_rows", &RopeWriteLayer::set_rows, nb::arg("projected"), nb::arg("positions"), nb::arg("slots"),
             nb::arg("query"), "Float32 [num_rows, heads * head_size], int64 [num_rows] each, and where queries go.")
        .def("launch", &RopeWriteLayer::launch, nb::arg("is_bfloat16"), "Launch over rows that are projected.")
        .def("launch_from", &RopeWriteLayer::launch_from, nb::arg("weight"), nb::arg("x"), nb::arg("is_bfloat16"),
             nb::arg("x_is_quantized"), nb::keep_alive<0, 2>(),
             "Launch that makes `projected` of x [num_rows, k], and goes on with each head in a cache.");
}

}  // namespace octavo
