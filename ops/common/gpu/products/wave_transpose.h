/// 8 x 8 matrices of 16-bit elements transposed by 32 neighbouring threads, where wave_product.h has its
/// instruction: what goes into one product comes out of another the other way round. T is the elements' type.
#pragma once

#include "fusedsc/common/gpu/products/wave_product.h"

#if defined(FUSEDSC_HOST_EXECUTOR)
#include <cstring>
#elif defined(__CUDACC__)
#include "fusedsc/common/gpu/products/matrix.h"
#endif

namespace fusedsc::gpu {

#if defined(FUSEDSC_HOST_EXECUTOR)
/// Four matrices of 8 rows of four words from shared memory; `row`: row lane % 8 of matrix lane / 8. Of each, lane l
/// gets word l % 4 of row l / 4.
inline void load_matrices_of_words(const void* row, std::uint32_t (&to)[4]) {
  const int lane = thread_index() % 32;
  auto* const place = executor::place_of_thread<const void*>();
  const void* const* wave = place - lane;
  *place = row;
  executor::wave_barrier();
  for (int m = 0; m < 4; ++m) to[m] = static_cast<const std::uint32_t*>(wave[8 * m + lane / 4])[lane % 4];
}

/// Four matrices from shared memory; `row`, 16 bytes: row lane % 8 of matrix lane / 8. Of each, lane l gets elements 2
/// * (l % 4) and the next of column l / 4.
template <class T>
void load_transposed(const void* row, std::uint32_t (&to)[4], T) {
  const int lane = thread_index() % 32;
  for (int mask = 0; mask < 32; ++mask) {
    const auto* from = reinterpret_cast<const std::uint16_t*>(shuffle_xor(row, mask));
    const int other = lane ^ mask, element = other % 8 - lane % 4 * 2;
    if (element != 0 && element != 1) continue;
    std::uint16_t halves[2];
    std::memcpy(halves, &to[other / 8], 4);
    halves[element] = from[lane / 4];
    std::memcpy(&to[other / 8], halves, 4);
  }
}

/// Of a matrix of which lane l holds elements 2 * (l % 4) and the next of row l / 4: those of column l / 4.
template <class T>
std::uint32_t transposed(std::uint32_t word, T) {
  const int lane = thread_index() % 32;
  std::uint16_t halves[2] = {};
  for (int mask = 0; mask < 32; ++mask) {
    const std::uint32_t other_word = shuffle_xor(word, mask);
    const int other = lane ^ mask, element = other / 4 - lane % 4 * 2, column = lane / 4 - other % 4 * 2;
    if ((element == 0 || element == 1) && (column == 0 || column == 1)) {
      halves[element] = static_cast<std::uint16_t>(other_word >> (16 * column));
    }
  }
  return halves[0] | static_cast<std::uint32_t>(halves[1]) << 16;
}
#elif defined(__CUDACC__)
FUSEDSC_DEVICE void load_matrices_of_words(const void* row, std::uint32_t (&to)[4]) { load_matrices<false>(row, to); }

template <class T>
FUSEDSC_DEVICE void load_transposed(const void* row, std::uint32_t (&to)[4], T) {
  load_matrices<true>(row, to);
}

template <class T>
FUSEDSC_DEVICE std::uint32_t transposed(std::uint32_t word, T) {
  std::uint32_t result;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(word));
  return result;
}
#else
FUSEDSC_DEVICE void load_matrices_of_words(const void* row, std::uint32_t (&to)[4]);

template <class T>
FUSEDSC_DEVICE void load_transposed(const void* row, std::uint32_t (&to)[4], T) = delete;
template <class T>
FUSEDSC_DEVICE std::uint32_t transposed(std::uint32_t word, T) = delete;
#endif

}  // namespace fusedsc::gpu
