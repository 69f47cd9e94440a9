#include "attention.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "isa.h"

namespace octavo {
namespace {

constexpr IsaTable<AttentionKernels> kKernels OCTAVO_ISA_TABLE_WITH_AMX(attention_kernels);

KernelCounter attention_counter{"paged_attention"};
KernelCounter tiles_counter{"paged_attention_tiles"};
KernelCounter split_counter{"paged_attention_split"};
KernelCounter shared_counter{"paged_attention_shared"};

std::atomic<bool> splits_by_batch{false};

int keys_per_split(const AttentionStep& step) {
    if (!splits_by_batch.load(std::memory_order_relaxed)) return kKeysPerSplit;
    return kKeysPerTile * static_cast<int>(1 + step.num_requests % 8);
}

// Fewer tasks than this per thread are divided further, by the keys they read.
constexpr std::size_t kTasksPerThread = 4;
// Partial sums cost memory traffic, which pays where few rows share a read of the keys.
constexpr int kRowsPerSplitTask = 16;

// Scratch memory of this thread, from a cache line's start. It grows, and is then first touched by the thread that uses it.
float* thread_scratch(int head_size) {
    constexpr std::size_t kLine = 64 / sizeof(float);
    thread_local std::vector<float> memory;
    const std::size_t floats = scratch_floats(head_size) + kLine;
    if (memory.size() < floats) memory.resize(floats);
    void* start = memory.data();
    std::size_t room = memory.size() * sizeof(float);
    return static_cast<float*>(std::align(kLine * sizeof(float), (floats - kLine) * sizeof(float), start, room));
}

// The rows of one run under some heads, over all splits that they see.
struct Unit {
    AttentionTask task;  // but its runs, which is `run` alone
    RowRun run;

    int num_rows() const { return run.num_tokens * task.num_heads; }
    int num_splits() const { return task.last_split - task.first_split; }
    bool may_split() const { return num_splits() > 1 && num_rows() <= kRowsPerSplitTask; }
};

std::int64_t cost(const AttentionCall& call, const AttentionTask& task) {
    std::int64_t rows = kRowsPerSplitTask;  // reading keys costs as much as some rows
    for (int i = 0; i < task.num_runs; ++i) rows += task.runs[i].num_tokens * task.num_heads;
    const std::int64_t first = first_visible(call, task.runs[0].position);
    const std::int64_t end = std::min<std::int64_t>(task.runs[0].position + task.runs[0].num_tokens,
                                                    std::int64_t{task.last_split} * call.keys_per_split);
    return rows * (end - std::max(first, std::int64_t{task.first_split} * call.keys_per_split));
}

// Units by heads, so that requests that share a prefix read a head's keys one after the other.
std::vector<Unit> make_units(const AttentionCall& call, const AttentionStep& step) {
    std::vector<Unit> units;
    const int group = call.num_heads / call.num_kv_heads;
    const int heads = std::min(group, kRowsPerTask), tokens = kRowsPerTask / heads;
    for (std::int32_t head = 0, num_heads; head < call.num_heads; head += num_heads) {
        const std::int32_t kv_head = head / group;
        num_heads = std::min(heads, (kv_head + 1) * group - head);
        for (std::int32_t request = 0; request < step.num_requests; ++request) {
            std::int64_t row = step.query_start_loc[request];
            const std::int64_t end = step.query_start_loc[request + 1];
            std::int64_t position = step.seq_lens[request] - (end - row);
            for (; row < end; row += tokens, position += tokens) {
                const auto num_tokens = static_cast<std::int32_t>(std::min<std::int64_t>(tokens, end - row));
                const auto first = static_cast<std::int32_t>(first_visible(call, position) / call.keys_per_split);
                const auto last = static_cast<std::int32_t>((position + num_tokens - 1) / call.keys_per_split) + 1;
                units.push_back({{kv_head, head, num_heads, 1, nullptr, first, last},
                                 {request, num_tokens, row, position, nullptr}});
            }
        }
    }
    return units;
}

// Work that is divided into splits: which units' sums are put together afterwards, and the tasks.
struct SplitWork {
    std::vector<Unit*> units;
    std::vector<RowRun> runs;  // of the tasks, which point here
    std::vector<AttentionTask> tasks;
};

// One split of a unit. Those with equal blocks and heads come together where they are sorted.
struct Piece {
    const Unit* unit;
    std::int32_t split;
    const std::int32_t* blocks;  // of the split, or null where the unit does not see all of it
};

class Splitter {
public:
    Splitter(const AttentionCall& call, std::vector<float>& partials) : call_(call), partials_(partials) {}

    SplitWork divide(std::vector<Unit*> units) {
        place_partials(units);
        std::vector<Piece> pieces;
        for (Unit* unit : units) {
            for (std::int32_t split = unit->task.first_split; split < unit->task.last_split; ++split) {
                pieces.push_back({unit, split, whole_blocks(*unit, split)});
            }
        }
        std::ranges::stable_sort(pieces, [&](const Piece& a, const Piece& b) { return compare(a, b) < 0; });
        SplitWork work{std::move(units), {}, {}};
        work.runs.reserve(pieces.size());  // pointers into it stay
        for (std::size_t i = 0; i < pieces.size(); ++i) {
            const bool joins = i && compare(pieces[i - 1], pieces[i]) == 0 && pieces[i].blocks;
            add(work, pieces[i], joins);
        }
        return work;
    }

private:
    // A unit's sums lie split by split, from its run's `partial` on.
    void place_partials(const std::vector<Unit*>& units) {
        std::size_t size = 0;
        for (const Unit* unit : units) size += unit_floats(*unit) * unit->num_splits();
        if (partials_.size() < size) partials_.resize(size);
        float* next = partials_.data();
        for (Unit* unit : units) {
            unit->run.partial = next;
            next += unit_floats(*unit) * unit->num_splits();
        }
    }

    std::size_t unit_floats(const Unit& unit) const { return unit.num_rows() * partial_floats(call_.head_size); }

    int num_blocks() const { return call_.keys_per_split / call_.cache.block_size; }

    const std::int32_t* whole_blocks(const Unit& unit, std::int32_t split) const {
        const bool sees_all = unit.run.position >= std::int64_t{split + 1} * call_.keys_per_split - 1;
        if (!sees_all || call_.keys_per_split % call_.cache.block_size) return nullptr;
        return call_.block_table + unit.run.request * call_.table_stride + std::ptrdiff_t{split} * num_blocks();
    }

    int compare(const Piece& a, const Piece& b) const {
        if (a.unit->task.first_head != b.unit->task.first_head) return a.unit->task.first_head - b.unit->task.first_head;
        if (a.split != b.split) return a.split - b.split;
        if (!a.blocks || !b.blocks) return (a.blocks ? 1 : 0) - (b.blocks ? 1 : 0);
        return a.blocks == b.blocks ? 0 : std::memcmp(a.blocks, b.blocks, num_blocks() * sizeof(std::int32_t));
    }

    void add(SplitWork& work, const Piece& piece, bool joins) const {
        RowRun run = piece.unit->run;
        run.partial += unit_floats(*piece.unit) * (piece.split - piece.unit->task.first_split);
        work.runs.push_back(run);
        if (joins && fits(work.tasks.back(), run)) {
            ++work.tasks.back().num_runs;
            return;
        }
        AttentionTask task = piece.unit->task;
        task.runs = &work.runs.back();
        task.first_split = piece.split;
        task.last_split = piece.split + 1;
        work.tasks.push_back(task);
    }

    bool fits(const AttentionTask& task, const RowRun& run) const {
        int tokens = run.num_tokens;
        for (int i = 0; i < task.num_runs; ++i) tokens += task.runs[i].num_tokens;
        return tokens * task.num_heads <= kRowsPerTask;
    }

    const AttentionCall& call_;
    std::vector<float>& partials_;
};

// Whether requests of few rows begin with the same block, as those with a common prefix do.
bool share_a_prefix(const AttentionCall& call, const std::vector<Unit>& units) {
    std::vector<std::int32_t> first_blocks;
    for (const Unit& unit : units) {
        if (unit.task.first_head) break;
        if (unit.may_split()) first_blocks.push_back(call.block_table[unit.run.request * call.table_stride]);
    }
    std::ranges::sort(first_blocks);
    return std::ranges::adjacent_find(first_blocks) != first_blocks.end();
}

void clear_padding(const AttentionCall& call, const AttentionStep& step, bool is_bfloat16) {
    const std::size_t row_bytes = static_cast<std::size_t>(call.num_heads) * call.head_size * (is_bfloat16 ? 2 : 4);
    const std::int64_t used = step.query_start_loc[step.num_requests];
    if (used == step.num_rows) return;  // a step without rows has no memory either
    std::memset(static_cast<char*>(call.out) + used * row_bytes, 0, (step.num_rows - used) * row_bytes);
}

// The longest first, so that no thread begins one when the others are done. Threads then take turns, as long as tasks are
// alike.
void put_in_order(const AttentionCall& call, std::size_t num_threads, std::vector<AttentionTask>& tasks) {
    std::ranges::stable_sort(tasks, [&](const auto& a, const auto& b) { return cost(call, a) > cost(call, b); });
    for (std::size_t i = 0; i + num_threads < tasks.size(); ++i) tasks[i].next = &tasks[i + num_threads];
}

bool fits_into_tiles(const AttentionCall& call, bool query_is_bfloat16) {
    return query_is_bfloat16 && call.cache.type == CacheType::bfloat16 && call.head_size % kEntriesByTiles == 0;
}

AttentionKernel choose_kernel(const AttentionKernels& kernels, const AttentionCall& call, bool query_is_bfloat16) {
    if (!kernels.attend_by_tiles || !fits_into_tiles(call, query_is_bfloat16)) {
        return kernels.attend[query_is_bfloat16][static_cast<std::size_t>(call.cache.type)];
    }
    tiles_counter.add(kKernels.chosen());
    return kernels.attend_by_tiles;
}

void attend_in_splits(ThreadPool& pool, const AttentionCall& call, std::vector<Unit>& units, AttentionKernel attend,
                      AttentionMerge merge) {
    split_counter.add(kKernels.chosen());
    thread_local std::vector<float> partials;
    std::vector<Unit*> divided;
    std::vector<AttentionTask> whole;
    for (Unit& unit : units) {
        if (unit.may_split()) {
            divided.push_back(&unit);
        } else {
            whole.push_back(unit.task);
        }
    }
    SplitWork work = Splitter(call, partials).divide(std::move(divided));
    if (work.tasks.size() < work.runs.size()) shared_counter.add(kKernels.chosen());
    work.tasks.insert(work.tasks.end(), whole.begin(), whole.end());
    put_in_order(call, pool.num_threads(), work.tasks);
    pool.run(work.tasks.size(), [&](std::size_t i, int) { attend(call, work.tasks[i], thread_scratch(call.head_size)); });
    pool.run(work.units.size(), [&](std::size_t i, int) {
        merge(call, work.units[i]->task, thread_scratch(call.head_size));
    });
}

}  // namespace

void testing_split_by_batch(bool wrong) { splits_by_batch = wrong; }

void paged_attention(ThreadPool& pool, AttentionCall call, const AttentionStep& step, bool query_is_bfloat16) {
    call.keys_per_split = keys_per_split(step);
    const AttentionKernels& kernels = kKernels.active();
    clear_padding(call, step, query_is_bfloat16);
    std::vector<Unit> units = make_units(call, step);
    if (units.empty()) return;
    attention_counter.add(kKernels.chosen());
    const AttentionKernel attend = choose_kernel(kernels, call, query_is_bfloat16);
    for (Unit& unit : units) unit.task.runs = &unit.run;
    const bool has_few = pool.num_threads() > 1 && units.size() < kTasksPerThread * pool.num_threads();
    if ((has_few && std::ranges::any_of(units, &Unit::may_split)) || share_a_prefix(call, units)) {
        return attend_in_splits(pool, call, units, attend, kernels.merge[query_is_bfloat16]);
    }
    std::vector<AttentionTask> tasks;
    for (const Unit& unit : units) tasks.push_back(unit.task);
    put_in_order(call, pool.num_threads(), tasks);
    pool.run(tasks.size(), [&](std::size_t i, int) { attend(call, tasks[i], thread_scratch(call.head_size)); });
}

}  // namespace octavo
