/// <cstddef>, as far as device code needs it: compilers at run time have no standard library.
#pragma once

namespace std {
using size_t = decltype(sizeof(0));
using ptrdiff_t = long;
}  // namespace std
