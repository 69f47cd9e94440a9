// The engine's own threads: a fixed team that shares numbered tasks, and sleeps when there are none.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

namespace octavo {

class ThreadPool {
public:
    // The caller of `run` is thread 0; num_threads - 1 more are started here, thread t on the CPU cpus[t] alone where there
    // are any. More threads than CPUs are allowed.
    explicit ThreadPool(int num_threads, std::vector<int> cpus = {});
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int num_threads() const { return num_threads_; }

    // Seconds that callers have spent inside `run` so far, or counted: what a step takes beyond them is not the kernels'.
    void count_seconds(double seconds) { seconds_in_run_.fetch_add(seconds, std::memory_order_relaxed); }
    double seconds_in_run() const { return seconds_in_run_.load(std::memory_order_relaxed); }

    // Calls task(index, thread) once for each index below num_tasks, and returns when all have returned; what they wrote
    // is then visible. Indices are taken in ascending order, so a task may wait for those before it. Tasks must not throw
    // and must not call `run` of the same pool. Several callers take turns. In a forked child the team is started anew at
    // the first call.
    template <class Task>
    void run(std::size_t num_tasks, Task&& task) {
        using Callable = std::remove_reference_t<Task>;
        static_assert(std::is_invocable_v<Callable&, std::size_t, int>);
        const Invoke invoke = [](void* context, std::size_t index, int thread) noexcept {
            (*static_cast<Callable*>(context))(index, thread);
        };
        run_erased(num_tasks, invoke, const_cast<void*>(static_cast<const void*>(std::addressof(task))));
    }

private:
    using Invoke = void (*)(void* context, std::size_t index, int thread) noexcept;
    class Team;

    void run_erased(std::size_t num_tasks, Invoke invoke, void* context);
    void run_tasks(std::size_t num_tasks, Invoke invoke, void* context);
    Team& team();

    const int num_threads_;
    const std::vector<int> cpus_;
    std::atomic<Team*> team_;
    std::atomic<double> seconds_in_run_{0};
};

}  // namespace octavo
