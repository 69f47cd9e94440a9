// Memory that is read as a stream.
#pragma once

#include <cstddef>

namespace octavo {

// Zeroed memory, in whole huge pages where the system gives them: streaming through small pages is slower. Who writes a
// page first has it near.
class Arena {
public:
    explicit Arena(std::size_t bytes);
    ~Arena();
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;

    char* data() const { return data_; }
    std::size_t bytes() const { return bytes_; }

private:
    std::size_t bytes_;
    char* data_;
};

}  // namespace octavo
