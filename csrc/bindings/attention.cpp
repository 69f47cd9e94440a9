#include "attention.h"

#include "bindings/bindings.h"
#include "graph.h"

namespace nb = nanobind;

namespace octavo {
namespace {

// A layer's fixed numbers; calls add the addresses of a step.
struct AttentionLayer {
    int num_heads, num_kv_heads, head_size;
    float scale, softcap;
    std::int64_t window, chunk;
};

struct StepView {
    std::uintptr_t query_start_loc, seq_lens, block_table;
    std::ptrdiff_t table_stride;
};

Launch attend(const AttentionLayer& layer, const StepView& step, const KvCache& cache, std::uintptr_t query,
              std::uintptr_t out, bool is_bfloat16, std::uintptr_t sinks) {
    const AttentionCall call{.query = address<const void>(query),
                             .out = address<void>(out),
                             .cache = cache,
                             .block_table = address<const std::int32_t>(step.block_table),
                             .table_stride = step.table_stride,
                             .sinks = address<const float>(sinks),
                             .num_heads = layer.num_heads,
                             .num_kv_heads = layer.num_kv_heads,
                             .head_size = layer.head_size,
                             .scale = layer.scale,
                             .softcap = layer.softcap,
                             .window = layer.window,
                             .chunk = layer.chunk,
                             .keys_per_split = 0};
    return {"paged_attention", [=](ThreadPool& pool, StepSizes sizes) {
                const AttentionStep rows{.query_start_loc = address<const std::int32_t>(step.query_start_loc),
                                         .seq_lens = address<const std::int32_t>(step.seq_lens),
                                         .num_requests = static_cast<std::int64_t>(sizes.num_requests),
                                         .num_rows = static_cast<std::int64_t>(sizes.num_rows)};
                paged_attention(pool, call, rows, is_bfloat16);
            }};
}

}  // namespace

void bind_attention(nb::module_& m) {
    m.def("testing_split_by_batch", &testing_split_by_batch, nb::arg("wrong"),
          "For tests only: makes sums of attention depend on the batch, which tests of batch invariance must notice.");
    nb::class_<StepView>(m, "StepView", "Who a step's rows are: int32 arrays, which must outlive it.")
        .def(nb::init<std::uintptr_t, std::uintptr_t, std::uintptr_t, std::ptrdiff_t>(), nb::arg("query_start_loc"),
             nb::arg("seq_lens"), nb::arg("block_table"), nb::arg("table_stride"));
    nb::class_<AttentionLayer>(m, "AttentionLayer", "A layer's fixed numbers; 0 is no softcap, window or chunk.")
        .def(nb::init<int, int, int, float, float, std::int64_t, std::int64_t>(), nb::arg("num_heads"),
             nb::arg("num_kv_heads"), nb::arg("head_size"), nb::arg("scale"), nb::arg("softcap"), nb::arg("window"),
             nb::arg("chunk"))
        .def("attend", &attend, nb::arg("step"), nb::arg("cache"), nb::arg("query"), nb::arg("out"),
             nb::arg("is_bfloat16"), nb::arg("sinks"),
             "query, out: addresses of [num_rows, num_heads, head_size], float32 or bfloat16; sinks: of float32\n"
             "[num_heads], or 0.");
}

}  // namespace octavo
