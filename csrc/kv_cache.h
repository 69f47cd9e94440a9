// How keys and values lie in the cache: in strips of 16 tokens of one head, so that one vector holds an entry of several
// keys, and a kernel reads a strip from its first byte to its last.
//
// A block is [num_kv_heads, block_size / 16] strips; a strip is a part of keys and one of values. With entries of n bytes
// and p = 4 / n of them to a word, keys are [head_size / p, 16 tokens, p] and values [16 / p, head_size, p tokens].
// Parts of int8 end in 16 float32 scales, one per token, and its keys are Hadamard transforms (simd/hadamard.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

inline constexpr int kKeysPerStrip = 16;

enum class CacheType { float32, bfloat16, int8 };
inline constexpr std::size_t kNumCacheTypes = 3;

// One layer's cache.
// Most entries of a head.
inline constexpr int kMaxHeadSize = 1024;

struct KvCache {
    char* data;
    std::ptrdiff_t block_bytes;  // from block to block
    std::int64_t num_blocks;
    int block_size, num_kv_heads, head_size;
    CacheType type;
};

}  // namespace octavo
