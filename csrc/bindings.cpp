// The Python face of the native library; every function here is a thin call into a file of its own.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <string_view>

#include "bindings/bindings.h"
#include "cpu_features.h"
#include "dequantize.h"

namespace nb = nanobind;

namespace {

using Blocks = nb::ndarray<const std::uint8_t, nb::c_contig, nb::device::cpu>;
using Numbers = nb::ndarray<nb::c_contig, nb::device::cpu>;

constexpr nb::dlpack::dtype kBFloat16{static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bfloat), 16, 1};

// Runs without the interpreter's lock.
void dequantize(std::string_view format_name, const Blocks& blocks, const Numbers& out) {
    const octavo::BlockFormat* format = octavo::find_block_format(format_name);
    if (!format) throw std::invalid_argument("no block format " + std::string(format_name));
    const std::size_t num_blocks = blocks.size() / format->block_bytes;
    if (blocks.size() != num_blocks * format->block_bytes || out.size() != num_blocks * format->block_size) {
        throw std::invalid_argument(std::to_string(blocks.size()) + " bytes of " + std::string(format_name) +
                                    " are not " + std::to_string(out.size()) + " numbers");
    }
    if (out.dtype() == nb::dtype<float>()) {
        format->to_float32(blocks.data(), num_blocks, static_cast<float*>(out.data()));
    } else if (out.dtype() == kBFloat16) {
        format->to_bfloat16(blocks.data(), num_blocks, static_cast<std::uint16_t*>(out.data()));
    } else {
        throw std::invalid_argument("dequantize writes float32 and bfloat16");
    }
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "Octavo's native library.";
    m.def("cpu_features", &octavo::cpu_features, "Instruction sets this process may use, spelled as Linux spells them.");
    m.def("compiled_architecture", &octavo::compiled_architecture, "x86_64, aarch64 or other.");
    m.def("dequantize", &dequantize, nb::arg("format"), nb::arg("blocks").noconvert(), nb::arg("out").noconvert(),
          nb::call_guard<nb::gil_scoped_release>(),
          "Write the numbers of `blocks` (GGUF format by name, uint8) into `out` (float32 or bfloat16, any framework's).\n"
          "Both are contiguous. Raises ValueError where they do not fit.");
    octavo::bind_runtime(m);
    octavo::bind_kv_cache(m);
    octavo::bind_encoder(m);
    octavo::bind_graph(m);
    octavo::bind_attention(m);
    octavo::bind_elementwise(m);
    octavo::bind_linear(m);
    octavo::bind_lora(m);
    octavo::bind_quantized(m);
    octavo::bind_roofline(m);
    octavo::bind_sampling(m);
    octavo::bind_step_layout(m);
    octavo::bind_decode_loop(m);
}
