// Captured steps: ops noted once with their addresses and constants, and run again at any size in one call.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "threads/thread_pool.h"

namespace octavo {

// What an op is told at each step, beside what lies at its addresses.
struct StepSizes {
    std::size_t num_rows;  // of this op: the step's tokens, times the rows it has for each
    std::size_t num_requests;
};

// An op with its addresses and constants bound. Run at once it is the op; noted in a Graph it is the op of every step. So
// an op is added in one place: a function that returns its Launch.
struct Launch {
    std::string_view name;  // of static lifetime
    std::function<void(ThreadPool&, StepSizes)> run;
    std::span<const char> weights{};  // where it reads many bytes in their order
};

class Graph {
public:
    // An op's last run; seconds of the steady clock.
    struct Timing {
        double start, end;
    };
    struct Node {
        Launch launch;
        std::size_t rows_per_token;
        std::string where;  // the part of the model that asked for it
        Timing timing{};
    };

    void append(Launch launch, std::size_t rows_per_token, std::string where);

    // Forget the nodes from this one on.
    void truncate(std::size_t num_nodes) { nodes_.resize(num_nodes, Node{}); }

    // Runs all nodes in order. Throws what an op throws; the nodes behind it have not run then.
    void replay(ThreadPool& pool, std::size_t num_tokens, std::size_t num_requests);

    // Whether replays note each node's start and end: two readings of the clock a node.
    void set_timed(bool timed) { is_timed_ = timed; }
    bool is_timed() const { return is_timed_; }

    const std::vector<Node>& nodes() const { return nodes_; }

private:
    // Those of the first node behind this one that has any.
    std::span<const char> weights_after(std::size_t node) const;

    std::vector<Node> nodes_;
    bool is_timed_ = false;
};

}  // namespace octavo
