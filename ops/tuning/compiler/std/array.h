/// <array>, as far as device code needs it: members of arguments that only the host reads.
#pragma once

#include "own_std"

namespace std {
template <class T, decltype(sizeof(0)) kSize>
struct array {
  T elements[kSize];
  constexpr const T& operator[](decltype(sizeof(0)) index) const { return elements[index]; }
};
}  // namespace std
