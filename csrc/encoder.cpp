#include "encoder.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "isa.h"
#include "over_rows.h"

namespace octavo {
namespace {

constexpr IsaTable<EncoderKernels> kKernels OCTAVO_ISA_TABLE(encoder_kernels);

KernelCounter norm_counter{"layer_norm"};
KernelCounter activation_counter{"activation"};
KernelCounter attention_counter{"encoder_attention"};

// Keys are laid out once per task, which that many rows make up for.
constexpr std::int64_t kRowsPerTask = 96;
// Scores of a task, at least: some microseconds of work.
constexpr std::int64_t kScoresPerTask = 8192;

// Scratch memory of this thread. It grows, and is then first touched by the thread that uses it.
float* thread_scratch(std::size_t floats) {
    thread_local std::vector<float> memory;
    if (memory.size() < floats) memory.resize(floats);
    return memory.data();
}

std::int64_t cost(const EncoderAttentionTask& task) {
    return (task.end - task.begin) * (task.last_row - task.first_row) * (task.last_head - task.first_head);
}

void add_text(std::vector<EncoderAttentionTask>& tasks, std::int64_t begin, std::int64_t end, int num_heads) {
    for (std::int64_t row = begin; row < end; row += kRowsPerTask) {
        const std::int64_t last_row = std::min(row + kRowsPerTask, end);
        const std::int64_t scores = (end - begin) * (last_row - row);
        const int heads = static_cast<int>(std::clamp<std::int64_t>(kScoresPerTask / scores, 1, num_heads));
        for (int head = 0; head < num_heads; head += heads) {
            tasks.push_back({begin, end, row, last_row, head, std::min(head + heads, num_heads)});
        }
    }
}

// The costliest first, so that no thread begins one when the others are done.
std::vector<EncoderAttentionTask> make_tasks(const std::int32_t* bounds, std::size_t num_texts, int num_heads) {
    std::vector<EncoderAttentionTask> tasks;
    for (std::size_t text = 0; text < num_texts; ++text) add_text(tasks, bounds[text], bounds[text + 1], num_heads);
    std::ranges::stable_sort(tasks, [](const auto& a, const auto& b) { return cost(a) > cost(b); });
    return tasks;
}

}  // namespace

void layer_norm(ThreadPool& pool, const LayerNormCall& call, std::array<std::int64_t, LayerNormCall::kMaxSources> num_ids,
                std::size_t num_rows, bool is_bfloat16) {
    for (int s = 0; s < call.num_sources; ++s) {
        if (call.sources[s].ids) check_below("id", call.sources[s].ids, num_rows, 0, num_ids[s]);
    }
    norm_counter.add(kKernels.chosen());
    const auto kernel = kKernels.active().layer_norm[is_bfloat16];
    over_rows(pool, num_rows, call.width, [&](Rows rows) { kernel(call, rows); });
}

void activation(ThreadPool& pool, const ElementActivationCall& call, std::size_t num_rows, bool is_bfloat16) {
    activation_counter.add(kKernels.chosen());
    const auto kernel = kKernels.active().activation[is_bfloat16];
    over_rows(pool, num_rows, 4 * call.width, [&](Rows rows) { kernel(call, rows); });
}

void encoder_attention(ThreadPool& pool, const EncoderAttentionCall& call, const std::int32_t* bounds,
                       std::size_t num_texts, std::size_t num_rows, bool is_bfloat16) {
    attention_counter.add(kKernels.chosen());
    const auto kernel = kKernels.active().attention[is_bfloat16];
    const std::size_t used = bounds[num_texts], head_size = call.head_size;
    const std::size_t row_bytes = call.num_heads * head_size * (is_bfloat16 ? 2 : 4);
    if (used < num_rows) std::memset(static_cast<char*>(call.out) + used * row_bytes, 0, (num_rows - used) * row_bytes);
    const std::vector<EncoderAttentionTask> tasks = make_tasks(bounds, num_texts, call.num_heads);
    pool.run(tasks.size(), [&](std::size_t i, int) {
        const auto num_keys = static_cast<std::size_t>(tasks[i].end - tasks[i].begin);
        kernel(call, tasks[i], thread_scratch(encoder_scratch_floats(num_keys, head_size)));
    });
}

}  // namespace octavo
