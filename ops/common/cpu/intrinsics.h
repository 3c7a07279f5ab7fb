/// <immintrin.h>, without false warnings: GCC 12 takes its own "undefined" vectors for a mistake.
#pragma once

#include <cstdint>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif

namespace fusedsc {

/// A mask of the first `count` of sixteen lanes: none of them for less than one, all for more than fifteen.
inline __mmask16 first_lanes(std::int64_t count) {
  if (count <= 0) return 0;
  return count >= 16 ? __mmask16(0xffff) : __mmask16((1U << count) - 1);
}

}  // namespace fusedsc
