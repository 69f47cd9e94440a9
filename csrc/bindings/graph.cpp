#include "graph.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include "bindings/bindings.h"

namespace nb = nanobind;

namespace octavo {
namespace {

void run(const Launch& launch, ThreadPool& pool, std::size_t num_rows, std::size_t num_requests) {
    launch.run(pool, {num_rows, num_requests});
}

nb::list timings(const Graph& graph) {
    nb::list all;
    for (const Graph::Node& node : graph.nodes()) {
        all.append(nb::make_tuple(node.launch.name, node.where, node.timing.start, node.timing.end));
    }
    return all;
}

}  // namespace

void bind_graph(nb::module_& m) {
    using released = nb::call_guard<nb::gil_scoped_release>;
    nb::class_<Launch>(m, "Launch", "An op with its addresses and constants bound, to run now or in a Graph.")
        .def_ro("name", &Launch::name)
        .def("run", &run, nb::arg("pool"), nb::arg("num_rows"), nb::arg("num_requests"), released(),
             "Run it at once, on what lies at its addresses now.");
    nb::class_<Graph>(m, "Graph", "Launches in order, run again in one call at any number of tokens and requests.")
        .def(nb::init<>())
        .def("__len__", [](const Graph& graph) { return graph.nodes().size(); })
        .def("append", &Graph::append, nb::arg("launch"), nb::arg("rows_per_token"), nb::arg("where"),
             "Note an op. What it has addresses of must outlive the graph.")
        .def("truncate", &Graph::truncate, nb::arg("num_nodes"), "Forget the nodes from this one on.")
        .def("replay", &Graph::replay, nb::arg("pool"), nb::arg("num_tokens"), nb::arg("num_requests"), released(),
             "Run all of it. Raises what an op raises.")
        .def_prop_rw("timed", &Graph::is_timed, &Graph::set_timed, "Whether replays note when each node began and ended.")
        .def("timings", &timings, "(op, where, start, end) of each node in the last timed replay, in seconds of\n"
             "time.perf_counter.");
}

}  // namespace octavo
