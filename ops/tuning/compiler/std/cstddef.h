/// <cstddef>, as far as device code needs it: compilers at run time have no standard library.
#pragma once

#include "own_std"

namespace std {
using size_t = decltype(sizeof(0));
using ptrdiff_t = long;
}  // namespace std
