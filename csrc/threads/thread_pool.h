// The engine's own threads: a fixed team that shares numbered tasks, and sleeps when there are none.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
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

    // What a thread has done so far. Waits for a job, or for the last tasks of one, end while it looks for that, or after it
    // slept; tasks of `run_in_parts` are of its own part, or of another's that it helps with.
    struct Counts {
        std::uint64_t waits_spun, waits_slept, own_tasks, helped_tasks;
    };
    Counts counts(int thread) const;

    // What a later job reads by `run_in_parts`, task by task. Threads without a task bring what their part begins with into
    // their caches while they spin: the memory rests less while a small job runs, or the last task of a large one. No more
    // than a hint.
    void fetch_next(std::span<const char> bytes);

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

    // As `run`, but each thread begins with a part of the indices of its own, and helps with the others' when it is done.
    template <class Task>
    void run_in_parts(std::size_t num_tasks, Task&& task) {
        if (num_threads_ == 1 || num_tasks <= 1) return run(num_tasks, task);
        const std::size_t num_parts = static_cast<std::size_t>(num_threads_);
        std::vector<Part> parts(num_parts);
        for (std::size_t i = 0; i < num_parts; ++i) {
            parts[i].next.store(i * num_tasks / num_parts, std::memory_order_relaxed);
            parts[i].end = (i + 1) * num_tasks / num_parts;
        }
        run(num_parts, [&](std::size_t, int thread) {
            Counters& counters = counters_[static_cast<std::size_t>(thread)];
            for (std::size_t i = 0; i < num_parts; ++i) {
                Part& part = parts[(static_cast<std::size_t>(thread) + i) % num_parts];
                std::size_t index, taken = 0;
                for (; (index = part.next.fetch_add(1, std::memory_order_relaxed)) < part.end; ++taken) task(index, thread);
                (i == 0 ? counters.own_tasks : counters.helped_tasks).add(taken);
            }
        });
    }

private:
    struct alignas(64) Part {
        std::atomic<std::size_t> next{0};
        std::size_t end = 0;
    };

    // Written by one thread at a time, so that an addition needs no lock of the memory.
    class Counter {
    public:
        void add(std::uint64_t number) { value_.store(value() + number, std::memory_order_relaxed); }
        std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

    private:
        std::atomic<std::uint64_t> value_{0};
    };

    struct alignas(64) Counters {
        Counter waits_spun, waits_slept, own_tasks, helped_tasks;
    };

    using Invoke = void (*)(void* context, std::size_t index, int thread) noexcept;
    class Team;

    void run_erased(std::size_t num_tasks, Invoke invoke, void* context);
    void run_tasks(std::size_t num_tasks, Invoke invoke, void* context);
    Team& team();

    const int num_threads_;
    const std::vector<int> cpus_;
    std::vector<Counters> counters_;  // thread by thread
    std::atomic<Team*> team_;
    std::atomic<double> seconds_in_run_{0};
};

}  // namespace octavo
