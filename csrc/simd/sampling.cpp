#include "simd/sampling.h"

#include <math.h>

#include "simd/lanes.h"
#include "simd/math.h"

namespace octavo::OCTAVO_ISA {
namespace {

// ---- What comparisons give as bits, and sums in double precision ----

#if defined(__AVX2__)

OCTAVO_INLINE unsigned equal_bits(Lanes a, Lanes b) {
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ)));
}
OCTAVO_INLINE unsigned less_bits(Lanes a, Lanes b) {
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)));
}

// Lanes whose bit is not set become -infinity.
OCTAVO_INLINE Lanes only_bits(Lanes a, unsigned bits) {
    const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i set = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), each), each);
    return {_mm256_blendv_ps(broadcast(-__builtin_inff()).v, a.v, _mm256_castsi256_ps(set))};
}

struct WideSums {
    __m256d low = _mm256_setzero_pd(), high = _mm256_setzero_pd();

    OCTAVO_INLINE void add(Lanes a) {
        low = _mm256_add_pd(low, _mm256_cvtps_pd(_mm256_castps256_ps128(a.v)));
        high = _mm256_add_pd(high, _mm256_cvtps_pd(_mm256_extractf128_ps(a.v, 1)));
    }
    OCTAVO_INLINE void store(double* sums) const {
        _mm256_storeu_pd(sums, low);
        _mm256_storeu_pd(sums + 4, high);
    }
};

#else

template <class Predicate>
OCTAVO_INLINE unsigned bits_where(Predicate predicate) {
    unsigned bits = 0;
    for (int i = 0; i < kLanes; ++i) bits |= static_cast<unsigned>(predicate(i)) << i;
    return bits;
}
OCTAVO_INLINE unsigned equal_bits(Lanes a, Lanes b) {
    return bits_where([&](int i) { return a.v[i] == b.v[i]; });
}
OCTAVO_INLINE unsigned less_bits(Lanes a, Lanes b) {
    return bits_where([&](int i) { return a.v[i] < b.v[i]; });
}

OCTAVO_INLINE Lanes only_bits(Lanes a, unsigned bits) {
    for (int i = 0; i < kLanes; ++i) {
        if (!(bits >> i & 1)) a.v[i] = -__builtin_inff();
    }
    return a;
}

struct WideSums {
    double sums[kLanes] = {};

    OCTAVO_INLINE void add(Lanes a) {
        for (int i = 0; i < kLanes; ++i) sums[i] += static_cast<double>(a.v[i]);
    }
    OCTAVO_INLINE void store(double* out) const {
        for (int i = 0; i < kLanes; ++i) out[i] = sums[i];
    }
};

#endif

OCTAVO_INLINE std::size_t ones(unsigned bits) { return static_cast<std::size_t>(__builtin_popcount(bits)); }

// ---- The best, and candidates by value ----

float largest(const float* x, std::size_t size) {
    if (size == 0) return -__builtin_inff();
    constexpr std::size_t kChains = 4;
    const Lanes first = broadcast(x[0]);
    Lanes best[kChains] = {first, first, first, first};
    unsigned numbers = x[0] == x[0] ? 0xff : 0;
    std::size_t i = 0;
    for (; i + kChains * kLanes <= size; i += kChains * kLanes) {
        for (std::size_t chain = 0; chain < kChains; ++chain) {
            const Lanes value = load(x + i + chain * kLanes);
            numbers &= equal_bits(value, value);
            best[chain] = larger(value, best[chain]);
        }
    }
    float result = largest_lane(larger(larger(best[0], best[1]), larger(best[2], best[3])));
    for (; i < size; ++i) {
        if (x[i] != x[i]) numbers = 0;
        if (x[i] > result) result = x[i];
    }
    return numbers == 0xff ? result : __builtin_nanf("");
}

std::size_t find(const float* x, std::size_t size, float value) {
    const Lanes wanted = broadcast(value);
    std::size_t i = 0;
    for (; i + kLanes <= size; i += kLanes) {
        const unsigned bits = equal_bits(load(x + i), wanted);
        if (bits) return i + static_cast<std::size_t>(__builtin_ctz(bits));
    }
    while (i < size && x[i] != value) ++i;
    return i;
}

std::size_t count_at_least(const float* x, std::size_t size, float value) {
    const Lanes bound = broadcast(value);
    std::size_t below = 0, i = 0;
    for (; i + kLanes <= size; i += kLanes) below += ones(less_bits(load(x + i), bound));
    for (; i < size; ++i) below += x[i] < value;
    return size - below;
}

std::size_t gather(const float* x, std::size_t size, float low, float high, std::uint32_t* ids) {
    const Lanes lowest = broadcast(low), end = broadcast(high);
    std::size_t count = 0, i = 0;
    for (; i + kLanes <= size; i += kLanes) {
        const Lanes value = load(x + i);
        unsigned bits = less_bits(value, end) & ~less_bits(value, lowest);
        for (; bits; bits &= bits - 1) {
            ids[count++] = static_cast<std::uint32_t>(i) + static_cast<std::uint32_t>(__builtin_ctz(bits));
        }
    }
    for (; i < size; ++i) {
        if (x[i] >= low && x[i] < high) ids[count++] = static_cast<std::uint32_t>(i);
    }
    return count;
}

// ---- Weights ----

void divide(const float* x, std::size_t size, float divisor, float* out) {
    const Lanes by = broadcast(divisor);
    std::size_t i = 0;
    for (; i + kLanes <= size; i += kLanes) store(out + i, load(x + i) / by);
    for (; i < size; ++i) out[i] = x[i] / divisor;
}

void weigh(const float* x, std::size_t size, float best, float* weights) {
    const Lanes top = broadcast(best);
    std::size_t i = 0;
    for (; i + kLanes <= size; i += kLanes) store(weights + i, exponential(load(x + i) - top));
    if (i < size) {
        const int count = static_cast<int>(size - i);
        store_first(weights + i, exponential(load_first(x + i, count) - top), count);
    }
}

// Eight ids from `start` on, and what the cut keeps of their weights.
struct Kept {
    Lanes weights;
    unsigned bits;
};

__attribute__((noinline)) Kept with_ties(Kept kept, const float* weights, std::size_t start, Cut cut, unsigned ties) {
    float values[kLanes];
    store(values, kept.weights);
    for (; ties; ties &= ties - 1) {
        const int lane = __builtin_ctz(ties);
        if (start + static_cast<std::size_t>(lane) > cut.last_id) break;
        values[lane] = weights[lane];
        kept.bits |= 1u << lane;
    }
    return {load(values), kept.bits};
}

OCTAVO_INLINE Kept kept_of(const float* x, const float* weights, std::size_t start, Cut cut) {
    const Lanes value = load(x), bound = broadcast(cut.value);
    const Kept above{select_less(bound, value, load(weights), zero_lanes()), less_bits(bound, value)};
    const unsigned ties = equal_bits(value, bound);
    return ties ? with_ties(above, weights, start, cut, ties) : above;
}

// The row's last ids, fewer than eight: padded with what no cut keeps.
struct Tail {
    float x[kLanes], weights[kLanes];

    OCTAVO_INLINE Tail(const float* from_x, const float* from_weights, std::size_t count) {
        for (std::size_t i = 0; i < kLanes; ++i) {
            x[i] = i < count ? from_x[i] : -__builtin_inff();
            weights[i] = i < count ? from_weights[i] : 0.0f;
        }
    }
};

// Calls step(x, weights, start) for eight ids at a time.
template <class Step>
OCTAVO_INLINE void for_eights(const float* x, const float* weights, std::size_t size, Step step) {
    std::size_t i = 0;
    for (; i + kLanes <= size; i += kLanes) step(x + i, weights + i, i);
    if (i < size) {
        const Tail tail(x + i, weights + i, size - i);
        step(tail.x, tail.weights, i);
    }
}

Share share(const float* x, const float* weights, std::size_t size, Cut cut) {
    WideSums sums;
    std::size_t count = 0;
    for_eights(x, weights, size, [&](const float* values, const float* of_these, std::size_t start) {
        const Kept kept = kept_of(values, of_these, start, cut);
        sums.add(kept.weights);
        count += ones(kept.bits);
    });
    double s[kLanes];
    sums.store(s);
    return {count, ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))};
}

// ---- The race: random numbers as in device/sample/random_numbers.py ----

constexpr std::uint64_t kGamma = 0x9E3779B97F4A7C15u, kFirst = 0xBF58476D1CE4E5B9u, kSecond = 0x94D049BB133111EBu;

OCTAVO_INLINE std::uint64_t splitmix64(std::uint64_t key, std::size_t id) {
    std::uint64_t z = key + (static_cast<std::uint64_t>(id) + 1) * kGamma;
    z = (z ^ (z >> 30)) * kFirst;
    z = (z ^ (z >> 27)) * kSecond;
    return z ^ (z >> 31);
}

OCTAVO_INLINE double arrival(std::uint64_t key, std::size_t id, float weight) {
    const double uniform = (static_cast<double>(splitmix64(key, id) >> 11) + 0.5) * 0x1p-53;
    return -::log1p(-uniform) / static_cast<double>(weight);
}

// The first 31 bits of eight consecutive numbers of a stream, as float32.
#if defined(__AVX2__)

OCTAVO_INLINE __m256i times(__m256i a, std::uint64_t factor) {
    const __m256i f = _mm256_set1_epi64x(static_cast<long long>(factor));
    const __m256i crossed = _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(a, 32), f),
                                             _mm256_mul_epu32(a, _mm256_srli_epi64(f, 32)));
    return _mm256_add_epi64(_mm256_mul_epu32(a, f), _mm256_slli_epi64(crossed, 32));
}

class Stream {
public:
    explicit Stream(std::uint64_t key) {
        std::uint64_t states[kLanes];
        for (std::size_t i = 0; i < kLanes; ++i) states[i] = key + (i + 1) * kGamma;
        low_ = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(states));
        high_ = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(states + 4));
    }

    OCTAVO_INLINE Lanes next() {
        const __m256 low = _mm256_castsi256_ps(mixed(low_)), high = _mm256_castsi256_ps(mixed(high_));
        const __m256i step = _mm256_set1_epi64x(static_cast<long long>(kLanes * kGamma));
        low_ = _mm256_add_epi64(low_, step);
        high_ = _mm256_add_epi64(high_, step);
        // The upper half of each number: 0 1 4 5 2 3 6 7, then in order.
        const __m256i halves = _mm256_castps_si256(_mm256_shuffle_ps(low, high, 0xdd));
        const __m256i ordered = _mm256_permute4x64_epi64(halves, 0xd8);
        return {_mm256_cvtepi32_ps(_mm256_srli_epi32(ordered, 1))};
    }

private:
    static OCTAVO_INLINE __m256i mixed(__m256i z) {
        z = times(_mm256_xor_si256(z, _mm256_srli_epi64(z, 30)), kFirst);
        z = times(_mm256_xor_si256(z, _mm256_srli_epi64(z, 27)), kSecond);
        return _mm256_xor_si256(z, _mm256_srli_epi64(z, 31));
    }

    __m256i low_, high_;
};

#else

class Stream {
public:
    explicit Stream(std::uint64_t key) : key_(key) {}

    OCTAVO_INLINE Lanes next() {
        Lanes numbers;
        for (int i = 0; i < kLanes; ++i) numbers.v[i] = static_cast<float>(splitmix64(key_, id_++) >> 33);
        return numbers;
    }

private:
    std::uint64_t key_;
    std::size_t id_ = 0;
};

#endif

// An exponential number -log(1 - u) is at least u, so whoever has u above (best arrival) * weight cannot win. Almost all
// are passed over by that, with the first bits of u and some slack for rounding; arrivals of the others are exact.
std::size_t race(const float* x, const float* weights, std::size_t size, Cut cut, std::uint64_t key,
                 std::size_t runner) {
    constexpr float kSlack = 0x1p31f * (1.0f + 0x1p-16f);
    std::size_t winner = runner;
    double best = arrival(key, runner, weights[runner]);
    Lanes limit = broadcast(static_cast<float>(best) * kSlack);
    Stream stream(key);
    for_eights(x, weights, size, [&](const float* values, const float* of_these, std::size_t start) {
        const Kept kept = kept_of(values, of_these, start, cut);
        unsigned bits = less_bits(stream.next(), kept.weights * limit) & kept.bits;
        for (; bits; bits &= bits - 1) {
            const std::size_t lane = static_cast<std::size_t>(__builtin_ctz(bits));
            const double time = arrival(key, start + lane, of_these[lane]);
            if (time < best) {
                best = time;
                winner = start + lane;
                limit = broadcast(static_cast<float>(best) * kSlack);
            }
        }
    });
    return winner;
}

std::size_t race_among(const std::uint32_t* ids, const float* x, const float* weights, std::size_t size, Cut cut,
                       std::uint64_t key, std::size_t runner) {
    std::size_t winner = runner;
    double best = arrival(key, ids[runner], weights[runner]);
    for (std::size_t i = 0; i < size; ++i) {
        if (!cut.keeps(x[i], i) || weights[i] == 0.0f) continue;
        const double time = arrival(key, ids[i], weights[i]);
        if (time < best) {
            best = time;
            winner = i;
        }
    }
    return winner;
}

// ---- Masks ----

float mask(float* x, std::size_t size, const std::uint32_t* bits) {
    const Lanes gone = broadcast(-__builtin_inff());
    Lanes best = gone;
    std::size_t i = 0;
    for (; i + 32 <= size; i += 32) {
        const std::uint32_t word = bits[i / 32];
        for (std::size_t lane = 0; lane < 32; lane += kLanes) {
            const Lanes left = word ? only_bits(load(x + i + lane), word >> lane & 0xff) : gone;
            store(x + i + lane, left);
            best = larger(left, best);
        }
    }
    float result = largest_lane(best);
    for (; i < size; ++i) {
        if (!(bits[i / 32] >> i % 32 & 1)) x[i] = -__builtin_inff();
        if (x[i] > result) result = x[i];
    }
    return result;
}

}  // namespace

extern const SamplingKernels sampling_kernels{largest, find,  count_at_least, gather, divide,
                                              weigh,   share, race,           race_among, mask};

}  // namespace octavo::OCTAVO_ISA
