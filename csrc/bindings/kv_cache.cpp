#include "kv_cache.h"

#include <nanobind/stl/string_view.h>

#include <array>
#include <stdexcept>
#include <string>
#include <string_view>

#include "bindings/bindings.h"

namespace nb = nanobind;

namespace octavo {
namespace {

constexpr std::array<std::string_view, kNumCacheTypes> kTypeNames{"float32", "bfloat16", "int8"};

KvCache make_cache(std::uintptr_t data, std::ptrdiff_t block_bytes, std::int64_t num_blocks, int block_size,
                   int num_kv_heads, int head_size, std::string_view dtype) {
    if (block_size % kKeysPerStrip) throw std::invalid_argument("blocks must have a multiple of 16 tokens");
    for (std::size_t type = 0; type < kNumCacheTypes; ++type) {
        if (kTypeNames[type] != dtype) continue;
        return {reinterpret_cast<char*>(data), block_bytes, num_blocks, block_size, num_kv_heads, head_size,
                static_cast<CacheType>(type)};
    }
    throw std::invalid_argument("no cache of " + std::string(dtype));
}

}  // namespace

void bind_kv_cache(nb::module_& m) {
    nb::class_<KvCache>(m, "KVCache", "Where one layer's keys and values lie; the memory must outlive it.")
        .def(nb::new_(&make_cache), nb::arg("data"), nb::arg("block_bytes"), nb::arg("num_blocks"), nb::arg("block_size"),
             nb::arg("num_kv_heads"), nb::arg("head_size"), nb::arg("dtype"));
}

}  // namespace octavo
