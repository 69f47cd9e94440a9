// The results of a product as its tasks compute them: some rows by some columns at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace octavo {

// Results that one task computes: rows by columns of all, `part` counting the tasks of a row in the order of their columns.
// Rows are split in the same way for all columns.
struct ResultTile {
    std::size_t part, row, num_rows, column, num_columns;
};

// Told of each tile when its results are stored, by the thread that computed it; any threads at once.
using TileStored = std::function<void(const ResultTile&)>;

// Tells when all of a stretch of columns is there, which may be of several tiles by several threads.
class Stretches {
public:
    // Of one product; every stretch must be completed before the calling thread makes another.
    Stretches(std::size_t num_rows, std::size_t num_stretches);

    // Takes note of `count` more columns for rows from `row` on. Whether they are the last of the stretch's `size`: what the
    // others stored is then visible.
    bool completes(std::size_t row, std::size_t stretch, std::size_t count, std::size_t size) const;

private:
    std::uint32_t* counts_;  // [rows, stretches]
    std::size_t num_stretches_;
};

}  // namespace octavo
