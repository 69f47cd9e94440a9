// Which instruction sets this process may use: the CPU has them and the operating system saves their registers.
#pragma once

#include <string>
#include <vector>

namespace octavo {

// Names as Linux spells them in /proc/cpuinfo (avx2, avx512_bf16, amx_tile ...), in a fixed order.
std::vector<std::string> cpu_features();

// Architecture the module was compiled for: x86_64, aarch64 or other.
const char* compiled_architecture();

}  // namespace octavo
