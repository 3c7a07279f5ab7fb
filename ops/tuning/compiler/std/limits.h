/// <limits>, as far as device code needs it: compilers at run time have no standard library.
#pragma once

#include "own_std"

namespace std {
template <class T>
struct numeric_limits {
  static constexpr T infinity() { return static_cast<T>(__builtin_bit_cast(float, 0x7f800000)); }
};
}  // namespace std
