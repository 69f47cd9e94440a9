// GGUF's block formats as numbers: what octavo/device/loader/gguf_dequant.py states in numpy, to the same bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace octavo {

// A way to store numbers: `block_size` of them in `block_bytes` bytes. Each function reads `num_blocks` blocks and writes
// all their numbers, as float32 or as the bits of the nearest bfloat16 (ties to even). Blocks need no alignment.
struct BlockFormat {
    std::string_view name;  // as GGUF headers have it: Q4_1, BF16 ...
    std::size_t block_bytes, block_size;
    void (*to_float32)(const std::uint8_t* blocks, std::size_t num_blocks, float* out);
    void (*to_bfloat16)(const std::uint8_t* blocks, std::size_t num_blocks, std::uint16_t* out);
};

// The bits of the nearest bfloat16 of each number, ties to even.
void to_bfloat16(const float* numbers, std::size_t count, std::uint16_t* out);

// The format of that name, or null where it is not known.
const BlockFormat* find_block_format(std::string_view name);

}  // namespace octavo
