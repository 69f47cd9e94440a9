#include "graph.h"

#include <chrono>
#include <utility>

namespace octavo {
namespace {

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Counts what ops do beside the tasks they share out, as laying out their work and quantising a row, as time of kernels.
class OpTime {
public:
    explicit OpTime(ThreadPool& pool) : pool_(pool), in_run_(pool.seconds_in_run()), start_(now()) {}
    ~OpTime() { pool_.count_seconds(now() - start_ - (pool_.seconds_in_run() - in_run_)); }

private:
    ThreadPool& pool_;
    const double in_run_, start_;
};

}  // namespace

void Graph::append(Launch launch, std::size_t rows_per_token, std::string where) {
    nodes_.push_back({std::move(launch), rows_per_token, std::move(where)});
}

void Graph::replay(ThreadPool& pool, std::size_t num_tokens, std::size_t num_requests) {
    const OpTime op_time(pool);
    for (Node& node : nodes_) {
        if (is_timed_) node.timing.start = now();
        node.launch.run(pool, {num_tokens * node.rows_per_token, num_requests});
        if (is_timed_) node.timing.end = now();
    }
}

}  // namespace octavo
