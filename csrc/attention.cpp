#include "attention.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "isa.h"

namespace octavo {
namespace {

constexpr IsaTable<AttentionKernels> kKernels OCTAVO_ISA_TABLE(attention_kernels);

KernelCounter attention_counter{"paged_attention"};
KernelCounter split_counter{"paged_attention_split"};

// Fewer tasks than this per thread are divided further, by the keys they read.
constexpr std::size_t kTasksPerThread = 4;
// Partial sums cost memory traffic, which pays where few rows share a read of the keys.
constexpr int kRowsPerSplitTask = 16;

// Scratch memory of this thread. It grows, and is then first touched by the thread that uses it.
float* thread_scratch(int head_size) {
    thread_local std::vector<float> memory;
    const std::size_t floats = scratch_floats(head_size);
    if (memory.size() < floats) memory.resize(floats);
    return memory.data();
}

std::int64_t first_visible(const AttentionCall& call, std::int64_t position) {
    if (call.window) return std::max<std::int64_t>(0, position - call.window + 1);
    if (call.chunk) return position / call.chunk * call.chunk;
    return 0;
}

std::int64_t cost(const AttentionCall& call, const AttentionTask& task) {
    const std::int64_t keys = task.position + task.num_tokens - first_visible(call, task.position);
    return keys * (task.num_tokens * task.num_heads + kRowsPerSplitTask);  // reading keys costs as much as some rows
}

class TaskList {
public:
    TaskList(const AttentionCall& call, const AttentionStep& step) : call_(call) {
        for (std::int64_t request = 0; request < step.num_requests; ++request) {
            const std::int64_t start = step.query_start_loc[request], end = step.query_start_loc[request + 1];
            add_request(static_cast<std::int32_t>(request), start, end, step.seq_lens[request] - (end - start));
        }
        // The longest first, so that no thread begins one when the others are done.
        std::ranges::stable_sort(tasks, [&](const auto& a, const auto& b) { return cost(call, a) > cost(call, b); });
    }

    std::vector<AttentionTask> tasks;

private:
    void add_request(std::int32_t request, std::int64_t row, std::int64_t end, std::int64_t position) {
        const int group = call_.num_heads / call_.num_kv_heads;
        const int heads = std::min(group, kRowsPerTask), tokens = kRowsPerTask / heads;
        for (; row < end; row += tokens, position += tokens) {
            const auto num_tokens = static_cast<std::int32_t>(std::min<std::int64_t>(tokens, end - row));
            for (std::int32_t head = 0, num_heads; head < call_.num_heads; head += num_heads) {
                const std::int32_t kv_head = head / group;
                num_heads = std::min(heads, (kv_head + 1) * group - head);
                add_task({request, kv_head, head, num_heads, row, position, num_tokens, 0, 0, nullptr});
            }
        }
    }

    void add_task(AttentionTask task) {
        task.first_split = static_cast<std::int32_t>(first_visible(call_, task.position) / kKeysPerSplit);
        task.last_split = static_cast<std::int32_t>((task.position + task.num_tokens - 1) / kKeysPerSplit) + 1;
        tasks.push_back(task);
    }

    const AttentionCall& call_;
};

bool may_split(const AttentionTask& task) {
    return task.last_split - task.first_split > 1 && task.num_tokens * task.num_heads <= kRowsPerSplitTask;
}

std::size_t partials_size(const AttentionCall& call, const AttentionTask& task) {
    const std::size_t rows = static_cast<std::size_t>(task.num_tokens) * task.num_heads;
    return rows * partial_floats(call.head_size);
}

// One task per split of those that may be split; `partials` gets their sums, in order.
std::vector<AttentionTask> split_tasks(const AttentionCall& call, const std::vector<AttentionTask>& whole,
                                       std::vector<float>& partials) {
    std::size_t size = 0;
    for (const AttentionTask& task : whole) {
        if (may_split(task)) size += partials_size(call, task) * (task.last_split - task.first_split);
    }
    partials.resize(size);
    float* next = partials.data();
    std::vector<AttentionTask> pieces;
    for (AttentionTask task : whole) {
        if (!may_split(task)) {
            pieces.push_back(task);
            continue;
        }
        for (const std::int32_t end = task.last_split; task.first_split < end; ++task.first_split) {
            task.last_split = task.first_split + 1;
            task.partial = next;
            next += partials_size(call, task);
            pieces.push_back(task);
        }
    }
    return pieces;
}

void clear_padding(const AttentionCall& call, const AttentionStep& step, bool is_bfloat16) {
    const std::size_t row_bytes = static_cast<std::size_t>(call.num_heads) * call.head_size * (is_bfloat16 ? 2 : 4);
    const std::int64_t used = step.query_start_loc[step.num_requests];
    if (used == step.num_rows) return;  // a step without rows has no memory either
    std::memset(static_cast<char*>(call.out) + used * row_bytes, 0, (step.num_rows - used) * row_bytes);
}

void attend_in_splits(ThreadPool& pool, const AttentionCall& call, const std::vector<AttentionTask>& whole,
                      AttentionKernel attend, AttentionMerge merge) {
    split_counter.add();
    thread_local std::vector<float> memory;
    std::vector<float>& partials = memory;  // of the calling thread, in the tasks too
    const std::vector<AttentionTask> pieces = split_tasks(call, whole, partials);
    pool.run(pieces.size(), [&](std::size_t i, int) { attend(call, pieces[i], thread_scratch(call.head_size)); });
    const float* sums = partials.data();
    for (const AttentionTask& task : whole) {
        if (!may_split(task)) continue;
        merge(call, task, sums, thread_scratch(call.head_size));
        sums += partials_size(call, task) * (task.last_split - task.first_split);
    }
}

}  // namespace

void paged_attention(ThreadPool& pool, const AttentionCall& call, const AttentionStep& step, bool query_is_bfloat16,
                     bool cache_is_bfloat16) {
    const AttentionKernels& kernels = kKernels.active();
    const AttentionKernel attend = kernels.attend[query_is_bfloat16][cache_is_bfloat16];
    clear_padding(call, step, query_is_bfloat16);
    const std::vector<AttentionTask> tasks = TaskList(call, step).tasks;
    if (tasks.empty()) return;
    attention_counter.add();
    const std::size_t enough = kTasksPerThread * pool.num_threads();
    if (pool.num_threads() > 1 && tasks.size() < enough && std::ranges::any_of(tasks, may_split)) {
        return attend_in_splits(pool, call, tasks, attend, kernels.merge[query_is_bfloat16]);
    }
    pool.run(tasks.size(), [&](std::size_t i, int) { attend(call, tasks[i], thread_scratch(call.head_size)); });
}

}  // namespace octavo
