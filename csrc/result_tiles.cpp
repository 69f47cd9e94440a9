#include "result_tiles.h"

#include <atomic>
#include <vector>

namespace octavo {

Stretches::Stretches(std::size_t num_rows, std::size_t num_stretches) : num_stretches_(num_stretches) {
    thread_local std::vector<std::uint32_t> counts;  // kept: zeros between products
    if (counts.size() < num_rows * num_stretches) counts.resize(num_rows * num_stretches);
    counts_ = counts.data();
}

bool Stretches::completes(std::size_t row, std::size_t stretch, std::size_t count, std::size_t size) const {
    std::atomic_ref<std::uint32_t> done(counts_[row * num_stretches_ + stretch]);
    if (done.fetch_add(static_cast<std::uint32_t>(count), std::memory_order_acq_rel) + count < size) return false;
    done.store(0, std::memory_order_relaxed);
    return true;
}

}  // namespace octavo
