#include "step_layout.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bindings.h"

namespace nb = nanobind;

namespace octavo {
namespace {

using Numbers = std::vector<std::int64_t>;

// block size, kernel blocks of a block, block table, its columns, slot mapping
using Group = std::tuple<std::int64_t, std::int64_t, Address, std::size_t, Address>;

GroupArrays group_of(const Group& group) {
    const auto& [block_size, split, block_table, columns, slot_mapping] = group;
    return {block_size, split, address<std::int32_t>(block_table), columns, address<std::int64_t>(slot_mapping)};
}

void construct(StepLayout* self, const std::vector<Address>& tokens, const std::vector<Address>& requests,
               const std::vector<Address>& logit_rows, const std::vector<Group>& groups) {
    const auto numbers = [](Address number) { return address<std::int64_t>(number); };
    const StepArrays arrays{numbers(tokens.at(0)),     numbers(tokens.at(1)),     address<std::int32_t>(requests.at(0)),
                            address<std::int32_t>(requests.at(1)), numbers(requests.at(2)), numbers(requests.at(3)),
                            numbers(requests.at(4)),   numbers(requests.at(5)),   numbers(logit_rows.at(0)),
                            numbers(logit_rows.at(1)), numbers(logit_rows.at(2)), numbers(logit_rows.at(3))};
    std::vector<GroupArrays> parts;
    for (const Group& group : groups) parts.push_back(group_of(group));
    new (self) StepLayout(arrays, std::move(parts));
}

auto write(const StepLayout& layout, Address token_ids, std::size_t columns, Address num_tokens, Address num_computed,
           const std::vector<std::pair<Address, std::size_t>>& blocks, const Numbers& slots, const Numbers& counts) {
    std::vector<GroupBlocks> of_groups;
    for (const auto& [ids, width] : blocks) of_groups.push_back({address<const std::int32_t>(ids), width});
    const KnownRequests known{address<const std::int32_t>(token_ids), columns, address<const std::int64_t>(num_tokens),
                              address<const std::int64_t>(num_computed)};
    const StepCounts done = layout.write(known, of_groups, slots, counts);
    return std::tuple(done.num_tokens, done.max_seq_len, done.num_sampled, done.num_logit_rows);
}

}  // namespace

void bind_step_layout(nb::module_& m) {
    nb::class_<StepLayout>(m, "StepLayout", "Arrays that each step is laid out in; they must outlive it.")
        .def("__init__", &construct, nb::arg("tokens"), nb::arg("requests"), nb::arg("logit_rows"), nb::arg("groups"),
             "Addresses. tokens: int64 ids and positions. requests: int32 query_start_loc and seq_lens, int64 slots,\n"
             "num_computed, sampled and num_drafts. logit_rows: int64 rows, slots, positions and drafts. groups: of each\n"
             "the block size, kernel blocks of a block, int32 block table, its columns and the int64 slot mapping.")
        .def("write", &write, nb::arg("token_ids"), nb::arg("columns"), nb::arg("num_tokens"), nb::arg("num_computed"),
             nb::arg("blocks"), nb::arg("slots"), nb::arg("counts"),
             "Lay out counts[r] tokens of the request in slots[r], by the tables of all requests: int32 token ids\n"
             "[slots, columns], int64 numbers of tokens and of computed ones, and of each group int32 block ids with\n"
             "their columns. Returns the numbers of tokens, of the longest request, of sampled requests and logit rows.");
}

}  // namespace octavo
