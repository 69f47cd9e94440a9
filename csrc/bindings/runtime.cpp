#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

#include "bindings/bindings.h"
#include "isa.h"
#include "threads/thread_pool.h"

namespace nb = nanobind;

namespace octavo {
namespace {

nb::dict counts() {
    nb::dict result;
    for (const auto& [name, calls] : kernel_counts()) result[name.c_str()] = calls;
    return result;
}

std::vector<int> cpus_of_threads(ThreadPool& pool) {
    std::vector<int> cpus(static_cast<std::size_t>(pool.num_threads()), -1);
#if defined(__linux__)
    std::atomic<int> arrived{0};
    // As many tasks as threads, each of which waits for the others: so every thread gets one.
    pool.run(cpus.size(), [&](std::size_t, int thread) {
        for (++arrived; arrived < pool.num_threads();) std::this_thread::yield();
        cpus[static_cast<std::size_t>(thread)] = sched_getcpu();
    });
#endif
    return cpus;
}

std::vector<int> threads_of_tasks(ThreadPool& pool, std::size_t num_tasks, bool in_parts) {
    std::vector<int> threads(num_tasks, -1);
    const auto note = [&](std::size_t task, int thread) { threads[task] += 1 + thread; };
    in_parts ? pool.run_in_parts(num_tasks, note) : pool.run(num_tasks, note);
    return threads;
}

}  // namespace

void bind_runtime(nb::module_& m) {
    m.def("available_isas", &available_isas, "Instruction sets kernels can use here, lowest first.");
    m.def("emulated_isas", &emulated_isas, "Those of them that are emulated, in a build for tests.");
    m.def("active_isa", [] { return std::string(isa_name(active_isa())); }, "The one they use.");
    m.def("set_isa", &set_isa, nb::arg("name"),
          "Use `name` (or auto: the highest) from now on in this process. Raises ValueError where it is not available.");
    m.def("kernel_counts", &counts, "Calls so far of each kernel that ran, by \"kernel.isa\".");
    nb::class_<ThreadPool>(m, "ThreadPool", "A fixed team of compute threads; the calling thread is one of them.")
        .def(nb::init<int, std::vector<int>>(), nb::arg("num_threads"), nb::arg("cpus") = std::vector<int>(),
             "Thread t stays on cpus[t], where there are any; the calling thread, 0, is left where it is.")
        .def_prop_ro("num_threads", &ThreadPool::num_threads)
        .def_prop_ro("seconds_in_run", &ThreadPool::seconds_in_run, "Seconds its kernels took so far, in all.")
        .def("cpus_of_threads", &cpus_of_threads, nb::call_guard<nb::gil_scoped_release>(),
             "Run a task on every thread, and return the CPU that each was on (-1: not known here).")
        .def("threads_of_tasks", &threads_of_tasks, nb::arg("num_tasks"), nb::arg("in_parts") = false,
             nb::call_guard<nb::gil_scoped_release>(),
             "Run `num_tasks` tasks that do nothing, and return which thread ran each. in_parts: as those that read weights\n"
             "are, each thread a part of its own first.");
}

}  // namespace octavo
