#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
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

std::vector<int> threads_of_tasks(ThreadPool& pool, std::size_t num_tasks, bool in_parts, std::size_t slow,
                                  double patience) {
    using Clock = std::chrono::steady_clock;
    const auto end = Clock::now() + std::chrono::duration<double>(patience);
    std::vector<int> threads(num_tasks, -1);
    std::atomic<std::size_t> done{0};
    const auto note = [&](std::size_t task, int thread) {
        while (task == slow && done < num_tasks - 1 && Clock::now() < end) std::this_thread::yield();
        if (task == slow && done < num_tasks - 1) return;
        threads[task] += 1 + thread;
        ++done;
    };
    in_parts ? pool.run_in_parts(num_tasks, note) : pool.run(num_tasks, note);
    if (done < num_tasks) throw std::runtime_error("tasks waited for the thread that a slow one kept");
    return threads;
}

nb::list counts_of_threads(const ThreadPool& pool) {
    nb::list result;
    for (int thread = 0; thread < pool.num_threads(); ++thread) {
        const ThreadPool::Counts counts = pool.counts(thread);
        nb::dict named;
        named["waits_spun"] = counts.waits_spun;
        named["waits_slept"] = counts.waits_slept;
        named["own_tasks"] = counts.own_tasks;
        named["helped_tasks"] = counts.helped_tasks;
        result.append(named);
    }
    return result;
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
        .def("counts", &counts_of_threads,
             "By thread: waits that ended while it looked (waits_spun) and that it slept through (waits_slept), and tasks\n"
             "that read weights, of its own part (own_tasks) and of others' (helped_tasks).")
        .def("threads_of_tasks", &threads_of_tasks, nb::arg("num_tasks"), nb::arg("in_parts") = false,
             nb::arg("slow") = SIZE_MAX, nb::arg("patience") = 10.0, nb::call_guard<nb::gil_scoped_release>(),
             "Run `num_tasks` tasks that do nothing, and return which thread ran each. in_parts: as those that read weights\n"
             "are, each thread a part of its own first. The task `slow` ends after all others have; RuntimeError if they\n"
             "have not within `patience` seconds.");
}

}  // namespace octavo
