#include "cpu_features.h"

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace octavo {
namespace {

#if defined(__x86_64__)

struct Registers {
    std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(std::uint32_t leaf, std::uint32_t subleaf) {
    Registers r;
    __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
    return r;
}

// XCR0 says which register files the operating system saves at a context switch.
std::uint64_t saved_state(bool osxsave) {
    if (!osxsave) return 0;
    std::uint32_t low = 0, high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (static_cast<std::uint64_t>(high) << 32) | low;
}

// Linux hands out the AMX tile state only to processes that ask for it.
bool request_amx() {
#if defined(__linux__)
    constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
    constexpr long kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
    return false;
#endif
}

constexpr std::uint64_t kYmm = 0x6;         // SSE and AVX state
constexpr std::uint64_t kZmm = 0xe0 | kYmm;  // opmask, upper halves, upper registers
constexpr std::uint64_t kTiles = 0x60000;   // tile configuration and data

struct Feature {
    const char* name;
    std::uint32_t word;
    int bit;
    std::uint64_t needs;
};

std::vector<std::string> detect() {
    const Registers basic = cpuid(1, 0), extended = cpuid(7, 0), extended1 = cpuid(7, 1);
    const std::uint64_t saved = saved_state((basic.ecx >> 27) & 1);
    const Feature features[] = {
        {"sse4_1", basic.ecx, 19, 0},
        {"sse4_2", basic.ecx, 20, 0},
        {"popcnt", basic.ecx, 23, 0},
        {"avx", basic.ecx, 28, kYmm},
        {"f16c", basic.ecx, 29, kYmm},
        {"fma", basic.ecx, 12, kYmm},
        {"avx2", extended.ebx, 5, kYmm},
        {"avx_vnni", extended1.eax, 4, kYmm},
        {"avx512f", extended.ebx, 16, kZmm},
        {"avx512dq", extended.ebx, 17, kZmm},
        {"avx512bw", extended.ebx, 30, kZmm},
        {"avx512vl", extended.ebx, 31, kZmm},
        {"avx512_vnni", extended.ecx, 11, kZmm},
        {"avx512_bf16", extended1.eax, 5, kZmm},
        {"avx512_fp16", extended.edx, 23, kZmm},
        {"amx_tile", extended.edx, 24, kTiles},
        {"amx_bf16", extended.edx, 22, kTiles},
        {"amx_int8", extended.edx, 25, kTiles},
    };
    const bool amx = ((extended.edx >> 24) & 1) && (saved & kTiles) == kTiles && request_amx();
    std::vector<std::string> found;
    for (const Feature& f : features) {
        const bool usable = (saved & f.needs) == f.needs && (f.needs != kTiles || amx);
        if (((f.word >> f.bit) & 1) && usable) found.emplace_back(f.name);
    }
    return found;
}

#elif defined(__aarch64__) && defined(__linux__)

struct Feature {
    const char* name;
    unsigned long type;
    int bit;
};

// Bits of the kernel's hardware capability words, by number: older headers lack the names.
std::vector<std::string> detect() {
    constexpr Feature features[] = {
        {"asimd", AT_HWCAP, 1},    {"asimdhp", AT_HWCAP, 10}, {"asimddp", AT_HWCAP, 20},
        {"sve", AT_HWCAP, 22},     {"sve2", AT_HWCAP2, 1},    {"svebf16", AT_HWCAP2, 12},
        {"i8mm", AT_HWCAP2, 13},   {"bf16", AT_HWCAP2, 14},
    };
    std::vector<std::string> found;
    for (const Feature& f : features) {
        if ((getauxval(f.type) >> f.bit) & 1) found.emplace_back(f.name);
    }
    return found;
}

#else

std::vector<std::string> detect() { return {}; }

#endif

}  // namespace

std::vector<std::string> cpu_features() { return detect(); }

const char* compiled_architecture() {
#if defined(__x86_64__)
    return "x86_64";
#elif defined(__aarch64__)
    return "aarch64";
#else
    return "other";
#endif
}

}  // namespace octavo
