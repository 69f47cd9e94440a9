// Each file of this folder adds its part to the Python module; kernels take addresses as integers, for an array protocol
// costs more than a small kernel. Their callers in octavo/device/ops/native check types, shapes and contiguity.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

namespace octavo {

using Address = std::uintptr_t;

template <class T = void>
T* address(Address number) {
    return reinterpret_cast<T*>(number);
}

void bind_runtime(nanobind::module_& m);
void bind_attention(nanobind::module_& m);
void bind_kv_cache(nanobind::module_& m);
void bind_decode_loop(nanobind::module_& m);
void bind_elementwise(nanobind::module_& m);
void bind_encoder(nanobind::module_& m);
void bind_graph(nanobind::module_& m);
void bind_linear(nanobind::module_& m);
void bind_lora(nanobind::module_& m);
void bind_quantized(nanobind::module_& m);
void bind_roofline(nanobind::module_& m);
void bind_sampling(nanobind::module_& m);
void bind_step_layout(nanobind::module_& m);

}  // namespace octavo
