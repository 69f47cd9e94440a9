// The largest result of each row of a product that is never stored as a whole: a task's part of it is looked through while
// it lies in a cache.
#pragma once

#include <cstddef>
#include <vector>

#include "result_tiles.h"

namespace octavo {

// Logits of fewer rows had better be stored: they stay in a cache, while looking through them between tasks holds up the
// weights, which come from memory.
inline constexpr std::size_t kLeastRowsOfBest = 8;

// For any threads, each with tiles of its own.
class BestColumns {
public:
    // softcap c: results are c * tanh(z / c); 0: as they are.
    BestColumns(std::size_t num_rows, std::size_t num_parts, float softcap);

    // Where this thread puts the results of a tile, [num_rows, num_columns]; until its next tile.
    static float* room(const ResultTile& tile);

    // Look through what lies there, which is overwritten.
    void take(const ResultTile& tile, float* results);

    // best [num_rows, 2]: each row's largest result, NaN where any is, and the lowest column that has it.
    void write(double* best) const;

private:
    struct Found {
        float value;
        std::size_t column;
    };

    const std::size_t num_rows_;
    const float softcap_;
    std::vector<Found> found_;  // [parts, rows]
};

}  // namespace octavo
