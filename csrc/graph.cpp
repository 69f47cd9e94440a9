#include "graph.h"

#include <chrono>
#include <utility>

namespace octavo {
namespace {

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void Graph::append(Launch launch, std::size_t rows_per_token, std::string where) {
    nodes_.push_back({std::move(launch), rows_per_token, std::move(where)});
}

void Graph::replay(ThreadPool& pool, std::size_t num_tokens, std::size_t num_requests) {
    for (Node& node : nodes_) {
        if (is_timed_) node.timing.start = now();
        node.launch.run(pool, {num_tokens * node.rows_per_token, num_requests});
        if (is_timed_) node.timing.end = now();
    }
}

}  // namespace octavo
