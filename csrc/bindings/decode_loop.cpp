#include "decode_loop.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <utility>
#include <vector>

#include "bindings/bindings.h"

namespace nb = nanobind;

namespace octavo {
namespace {

void construct(DecodeLoop* self, Graph& forward, Graph& logits_graph, Graph& best_graph, const StepLayout& layout,
               Address logit_rows, Address logits, std::size_t vocab_size, Address best) {
    const CapturedStep step{.forward = &forward,
                            .logits_graph = &logits_graph,
                            .best_graph = &best_graph,
                            .logit_rows = address<std::int64_t>(logit_rows),
                            .logits = address<float>(logits),
                            .vocab_size = vocab_size,
                            .best = address<double>(best)};
    new (self) DecodeLoop(step, layout);
}

auto run(const DecodeLoop& loop, ThreadPool& pool, Address token_ids, std::size_t columns, Address num_tokens,
         Address num_computed, const std::vector<std::pair<Address, std::size_t>>& blocks, Address choices,
         Address num_text_tokens, Address end_ids, std::size_t num_end_ids, const std::vector<std::int64_t>& slots,
         std::vector<bool> going, std::size_t num_steps) {
    const nb::gil_scoped_release released;
    DecodingRequests requests{.token_ids = address<std::int32_t>(token_ids),
                              .columns = columns,
                              .num_tokens = address<std::int64_t>(num_tokens),
                              .num_computed = address<std::int64_t>(num_computed),
                              .blocks = {},
                              .choices = address<const RowChoice>(choices),
                              .num_text_tokens = address<const std::int64_t>(num_text_tokens),
                              .end_ids = address<const std::int32_t>(end_ids),
                              .num_end_ids = num_end_ids};
    for (const auto& [ids, width] : blocks) requests.blocks.push_back({address<const std::int32_t>(ids), width});
    return loop.run(pool, requests, slots, std::move(going), num_steps);
}

}  // namespace

void bind_decode_loop(nb::module_& m) {
    nb::class_<DecodeLoop>(m, "DecodeLoop", "Decode steps after each other in one call.")
        .def("__init__", &construct, nb::arg("forward"), nb::arg("logits_graph"), nb::arg("best_graph"),
             nb::arg("layout"), nb::arg("logit_rows"), nb::arg("logits"), nb::arg("vocab_size"), nb::arg("best"),
             nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>(),
             "Captured graphs, of which the second computes float32 logits [rows, vocab_size] of the int64 rows of\n"
             "hidden states in logit_rows, and the third their best [rows, 2] alone. Addresses must outlive it.")
        .def("run", &run, nb::arg("pool"), nb::arg("token_ids"), nb::arg("columns"), nb::arg("num_tokens"),
             nb::arg("num_computed"), nb::arg("blocks"), nb::arg("choices"), nb::arg("num_text_tokens"),
             nb::arg("end_ids"), nb::arg("num_end_ids"), nb::arg("slots"), nb::arg("going"), nb::arg("num_steps"),
             "Take at most num_steps steps of the requests in slots, whose newest token is not computed: tables as for\n"
             "StepLayout.write, of which tokens and numbers are kept up to date; by slot the RowChoice, int64\n"
             "num_text_tokens (ids from there on are left out) and int32 end_ids [slots, num_end_ids]. It stops when all\n"
             "requests that are going have met an end, or one has logits that nothing can be chosen by: its token is -1.\n"
             "Returns tokens [steps, requests], flat.");
}

}  // namespace octavo
