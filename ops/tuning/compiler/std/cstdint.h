/// <cstdint>, as far as device code needs it: compilers at run time have no standard library.
#pragma once

#include "own_std"

namespace std {
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long;
using uint64_t = unsigned long;
using uintptr_t = unsigned long;
}  // namespace std
