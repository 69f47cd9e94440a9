#include "threads/thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace octavo {
namespace {

// Long enough to bridge the time between two kernels of a step, short enough that an idle engine costs nothing.
constexpr std::chrono::microseconds kSpin{100};
constexpr int kPausesPerLook = 32;
constexpr int kMostCpus = 1024;  // that a cpu_set_t knows
constexpr std::size_t kCacheLine = 64;
constexpr std::size_t kFetchedPerThread = 256 << 10;  // bytes: of a second-level cache, half
constexpr std::size_t kFetchedPerLook = 512;          // bytes: with a pause after them the CPU drops none

void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

int usable_cpus() {
#if defined(__linux__)
    cpu_set_t cpus;
    if (sched_getaffinity(0, sizeof cpus, &cpus) == 0) return CPU_COUNT(&cpus);
#endif
    return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

// Keeps this thread on one CPU, if the system lets it.
void stay_on([[maybe_unused]] int cpu) {
#if defined(__linux__)
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(cpu, &cpus);
    pthread_setaffinity_np(pthread_self(), sizeof cpus, &cpus);
#endif
}

// Bytes to be read soon, and how much of its part of them a thread has fetched. Start and size are not read together: those
// of different bytes make it fetch what nobody reads, which does no harm.
class BytesAhead {
public:
    explicit BytesAhead(int num_threads) : fetched_(static_cast<std::size_t>(num_threads)) {}

    void set(std::span<const char> bytes) {
        const std::size_t part = bytes.size() / fetched_.size();
        start_.store(reinterpret_cast<std::uintptr_t>(bytes.data()), std::memory_order_relaxed);
        part_.store(part, std::memory_order_relaxed);
        for (Fetched& each : fetched_) each.bytes.store(0, std::memory_order_relaxed);
    }

    void fetch_some(int thread) {
        Fetched& mine = fetched_[static_cast<std::size_t>(thread)];
        const std::size_t part = part_.load(std::memory_order_relaxed), done = mine.bytes.load(std::memory_order_relaxed);
        if (done >= std::min(part, kFetchedPerThread)) return;
        mine.bytes.store(done + kFetchedPerLook, std::memory_order_relaxed);
        const std::uintptr_t from = start_.load(std::memory_order_relaxed) + static_cast<std::size_t>(thread) * part + done;
        for (std::size_t i = 0; i < kFetchedPerLook; i += kCacheLine) {
            __builtin_prefetch(reinterpret_cast<const void*>(from + i), 0, 2);
        }
    }

private:
    struct alignas(kCacheLine) Fetched {
        std::atomic<std::size_t> bytes{0};
    };

    std::atomic<std::uintptr_t> start_{0};
    std::atomic<std::size_t> part_{0};
    std::vector<Fetched> fetched_;
};

std::atomic<unsigned> forks{0};

void count_forks() {
    static const int registered = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });
    (void)registered;
}

}  // namespace

// The threads of one process. `waiting_` is the number of tasks nobody has taken: who lowers it by one owns a task,
// and the job cannot change before that task is finished, so a thread that comes late finds the next job or none.
class ThreadPool::Team {
public:
    Team(int num_threads, const std::vector<int>& cpus, std::vector<Counters>& counters)
        : generation(forks.load()), counters_(counters), ahead_(num_threads), spin_(num_threads <= usable_cpus()) {
        try {
            for (int thread = 1; thread < num_threads; ++thread) start(thread, cpus);
        } catch (...) {  // the system has no more threads to give
            stop();
            throw;
        }
    }

    ~Team() { stop(); }

    void fetch_next(std::span<const char> bytes) { ahead_.set(bytes); }

    void run(std::uint32_t num_tasks, Invoke invoke, void* context) {
        const std::lock_guard lock(one_job_);
        invoke_ = invoke;
        context_ = context;
        num_tasks_ = num_tasks;
        unfinished_.store(num_tasks, std::memory_order_relaxed);
        waiting_.store(num_tasks, std::memory_order_release);
        waiting_.notify_all();
        work(0);
        std::uint32_t left;
        while ((left = unfinished_.load(std::memory_order_acquire)) != 0) wait_while(unfinished_, left, 0);
    }

    const unsigned generation;

private:
    static constexpr std::uint32_t kStop = UINT32_MAX;
    static constexpr int kAnyCpu = -1;

    void start(int thread, const std::vector<int>& cpus) {
        const int cpu = cpus.empty() ? kAnyCpu : cpus[static_cast<std::size_t>(thread) % cpus.size()];
        threads_.emplace_back([this, thread, cpu] {
            if (cpu != kAnyCpu) stay_on(cpu);
            serve(thread);
        });
    }

    void stop() {
        waiting_.store(kStop, std::memory_order_release);
        waiting_.notify_all();
        for (std::thread& thread : threads_) thread.join();
    }

    void serve(int thread) {
        for (;;) {
            wait_while(waiting_, 0, thread);
            if (waiting_.load(std::memory_order_acquire) == kStop) return;
            work(thread);
        }
    }

    // Looks some times whether `number` still equals `value`.
    bool changes_soon(const std::atomic<std::uint32_t>& number, std::uint32_t value, int thread) {
        for (int i = 0; i < kPausesPerLook; ++i) {
            if (number.load(std::memory_order_acquire) != value) return true;
            ahead_.fetch_some(thread);
            relax();
        }
        return false;
    }

    // Spins while `number` equals `value`, then sleeps until it does not.
    void wait_while(const std::atomic<std::uint32_t>& number, std::uint32_t value, int thread) {
        Counters& counters = counters_[static_cast<std::size_t>(thread)];
        if (spin_ && changes_within_spin(number, value, thread)) return counters.waits_spun.add(1);
        counters.waits_slept.add(1);
        number.wait(value, std::memory_order_acquire);
    }

    bool changes_within_spin(const std::atomic<std::uint32_t>& number, std::uint32_t value, int thread) {
        if (changes_soon(number, value, thread)) return true;  // most waits end before the clock would have been read
        const auto end = std::chrono::steady_clock::now() + kSpin;
        do {
            if (changes_soon(number, value, thread)) return true;
        } while (std::chrono::steady_clock::now() < end);
        return false;
    }

    void work(int thread) {
        std::uint32_t left = waiting_.load(std::memory_order_acquire);
        while (left != 0 && left != kStop) {
            if (!waiting_.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel)) continue;
            invoke_(context_, num_tasks_ - left, thread);
            if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished_.notify_all();
            left = waiting_.load(std::memory_order_acquire);
        }
    }

    std::vector<Counters>& counters_;
    std::mutex one_job_;
    Invoke invoke_ = nullptr;
    void* context_ = nullptr;
    std::uint32_t num_tasks_ = 0;
    // Apart, for one is written when a task is taken and the other when it is done.
    alignas(kCacheLine) std::atomic<std::uint32_t> waiting_{0};
    alignas(kCacheLine) std::atomic<std::uint32_t> unfinished_{0};
    alignas(kCacheLine) BytesAhead ahead_;
    const bool spin_;
    std::vector<std::thread> threads_;
};

ThreadPool::ThreadPool(int num_threads, std::vector<int> cpus)
    : num_threads_(num_threads), cpus_(std::move(cpus)), counters_(static_cast<std::size_t>(std::max(num_threads, 0))),
      team_(nullptr) {
    if (num_threads < 1) throw std::invalid_argument("a thread pool needs at least one thread");
    if (std::ranges::any_of(cpus_, [](int cpu) { return cpu < 0 || cpu >= kMostCpus; })) {
        throw std::invalid_argument("a CPU has a number from 0 to 1023");
    }
    count_forks();
    team_ = new Team(num_threads, cpus_, counters_);
}

ThreadPool::~ThreadPool() {
    Team* team = team_.load();
    // Threads of the parent process cannot be joined here, nor their locks trusted: that team is left as it is.
    if (team->generation == forks.load()) delete team;
}

ThreadPool::Team& ThreadPool::team() {
    Team* team = team_.load();
    if (team->generation == forks.load()) return *team;
    Team* fresh = new Team(num_threads_, cpus_, counters_);
    if (team_.compare_exchange_strong(team, fresh)) return *fresh;
    delete fresh;
    return *team;
}

ThreadPool::Counts ThreadPool::counts(int thread) const {
    const Counters& counters = counters_[static_cast<std::size_t>(thread)];
    return {counters.waits_spun.value(), counters.waits_slept.value(), counters.own_tasks.value(),
            counters.helped_tasks.value()};
}

void ThreadPool::fetch_next(std::span<const char> bytes) {
    if (num_threads_ > 1) team().fetch_next(bytes);
}

void ThreadPool::run_erased(std::size_t num_tasks, Invoke invoke, void* context) {
    const auto start = std::chrono::steady_clock::now();
    run_tasks(num_tasks, invoke, context);
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    seconds_in_run_.fetch_add(spent.count(), std::memory_order_relaxed);
}

void ThreadPool::run_tasks(std::size_t num_tasks, Invoke invoke, void* context) {
    if (num_threads_ == 1 || num_tasks <= 1) {
        for (std::size_t index = 0; index < num_tasks; ++index) invoke(context, index, 0);
        return;
    }
    // A job's number of tasks has 32 bits, less the mark that stops the team.
    constexpr std::size_t kMostTasks = UINT32_MAX - 1;
    if (num_tasks > kMostTasks) throw std::length_error("too many tasks for one job");
    team().run(static_cast<std::uint32_t>(num_tasks), invoke, context);
}

}  // namespace octavo
