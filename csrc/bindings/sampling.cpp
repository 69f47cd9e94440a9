#include "sampling.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"

namespace nb = nanobind;

namespace octavo {
namespace {

auto bound_unusable_rows(ThreadPool& pool, Address logits, std::size_t num_rows, std::size_t vocab_size) {
    const nb::gil_scoped_release released;
    return unusable_rows(pool, address<const float>(logits), num_rows, vocab_size);
}

bool bound_mask_tokens(ThreadPool& pool, Address logits, std::size_t vocab_size, Address rows, std::size_t num_rows,
                       Address bits, std::size_t num_words) {
    return mask_tokens(pool, address<float>(logits), vocab_size, address<const std::int64_t>(rows), num_rows,
                       address<const std::uint32_t>(bits), num_words);
}

auto bound_choose_tokens(ThreadPool& pool, Address logits, std::size_t vocab_size, Address choices,
                         const std::vector<std::int64_t>& slots, const std::vector<std::int64_t>& positions, bool keep) {
    const nb::gil_scoped_release released;
    return choose_tokens(pool, address<float>(logits), vocab_size, address<const RowChoice>(choices), slots, positions,
                         keep);
}

void bound_log_probabilities(ThreadPool& pool, Address logits, std::size_t num_rows, std::size_t vocab_size,
                             std::size_t width, Address tokens, Address num_best, Address token_logprobs, Address ranks,
                             Address counts, Address ids, Address values) {
    log_probabilities(pool, {.logits = address<const float>(logits),
                             .num_rows = num_rows,
                             .vocab_size = vocab_size,
                             .width = width,
                             .tokens = address<const std::int64_t>(tokens),
                             .num_best = address<const std::int64_t>(num_best),
                             .token_logprobs = address<float>(token_logprobs),
                             .ranks = address<std::int64_t>(ranks),
                             .counts = address<std::int64_t>(counts),
                             .ids = address<std::int64_t>(ids),
                             .values = address<float>(values)});
}

}  // namespace

void bind_sampling(nb::module_& m) {
    using released = nb::call_guard<nb::gil_scoped_release>;
    m.attr("ROW_CHOICE_BYTES") = sizeof(RowChoice);
    m.def("mask_tokens", &bound_mask_tokens, nb::arg("pool"), nb::arg("logits"), nb::arg("vocab_size"), nb::arg("rows"),
          nb::arg("num_rows"), nb::arg("bits"), nb::arg("num_words"), released(),
          "Ids whose bit is not set become -infinity: row i of bits [num_rows, num_words] is for rows[i], int64, of logits.\n"
          "Returns whether each of the rows has a candidate left.");
    m.def("unusable_rows", &bound_unusable_rows, nb::arg("pool"), nb::arg("logits"), nb::arg("num_rows"),
          nb::arg("vocab_size"), "(row, largest number) of the rows of float32 [num_rows, vocab_size] where that is none\n"
          "to choose by: NaN if any is, infinity, or -infinity if all are.");
    m.def("choose_tokens", &bound_choose_tokens, nb::arg("pool"), nb::arg("logits"), nb::arg("vocab_size"),
          nb::arg("choices"), nb::arg("slots"), nb::arg("positions"), nb::arg("keep"),
          "One token per row of usable float32 logits, by the RowChoice of its slot; `keep` leaves what it was chosen from.");
    m.def("log_probabilities", &bound_log_probabilities, nb::arg("pool"), nb::arg("logits"), nb::arg("num_rows"),
          nb::arg("vocab_size"), nb::arg("width"), nb::arg("tokens"), nb::arg("num_best"), nb::arg("token_logprobs"),
          nb::arg("ranks"), nb::arg("counts"), nb::arg("ids"), nb::arg("values"), released(),
          "Log-probability and rank of a token per row, and num_best (at most width) candidates in ids and values\n"
          "[num_rows, width], of which counts are there. Integers are int64.");
}

}  // namespace octavo
