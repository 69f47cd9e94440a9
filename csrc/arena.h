// Memory that is read as a stream.
#pragma once

#include <cstddef>
#include <memory>

namespace octavo {

// Zeroed memory, in whole huge pages where the system gives them: streaming through small pages is slower. Small arenas
// share pages, as a layer's matrix is less than one. Who writes a page first has it near.
class Arena {
public:
    explicit Arena(std::size_t bytes);
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;

    char* data() const { return data_; }
    std::size_t bytes() const { return bytes_; }

private:
    const std::size_t bytes_;
    std::shared_ptr<const void> pages_;  // given back with the last arena in them
    char* data_;
};

}  // namespace octavo
