#include "fusedsc/common/cpu/matrix_parts.h"

#if defined(__x86_64__) && defined(__linux__)

#include "fusedsc/common/cpu/intrinsics.h"
#include "hwy/base.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw")
namespace fusedsc {
namespace {

constexpr std::int64_t kLanes = 16;  // floats of a vector

/// The parts of 16 pairs of floats, the `low` ones in the lower halves. Truncation leaves the rest exact.
[[gnu::always_inline]] inline void split(__m512i low, __m512i high, __m512i (&parts)[kMatrixParts]) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000U));
  for (int part = 0; part < kMatrixParts; ++part) {
    parts[part] = _mm512_mask_blend_epi16(0xaaaaaaaaU, _mm512_srli_epi32(low, 16), high);
    low =
        _mm512_castps_si512(_mm512_sub_ps(_mm512_castsi512_ps(low), _mm512_castsi512_ps(_mm512_and_si512(low, upper))));
    high = _mm512_castps_si512(
        _mm512_sub_ps(_mm512_castsi512_ps(high), _mm512_castsi512_ps(_mm512_and_si512(high, upper))));
  }
}

[[gnu::always_inline]] inline __m512i load(const float* from, __mmask16 lanes) {
  return _mm512_castps_si512(_mm512_maskz_loadu_ps(lanes, from));
}

/// A tile's row of each part: `tile` counts the block's tiles of 16 lines.
[[gnu::always_inline]] inline void store(const __m512i (&parts)[kMatrixParts], std::int64_t tile, std::int64_t row,
                                         std::byte* block) {
  for (int part = 0; part < kMatrixParts; ++part) {
    _mm512_store_si512(block + part * kMatrixPartBytes + tile * kMatrixTileBytes + row * 64, parts[part]);
  }
}

}  // namespace

void split_rows(const float* from, std::int64_t pitch, std::int64_t lines, std::int64_t depth, std::byte* block) {
  const __mmask16 low = first_lanes(depth), high = first_lanes(depth - kLanes);
  for (std::int64_t line = 0; line < kMatrixBlock; ++line, from += pitch) {
    __m512i parts[kMatrixParts] = {};
    if (line < lines) split(load(from, low), load(from + kLanes, high), parts);
    store(parts, line / kLanes, line % kLanes, block);
  }
}

void split_columns(const float* from, std::int64_t pitch, std::int64_t lines, std::int64_t depth, std::byte* block) {
  for (std::int64_t tile = 0; tile < 2; ++tile) {
    const __mmask16 lanes = first_lanes(lines - tile * kLanes);
    for (std::int64_t k = 0; k < kLanes; ++k) {
      const float* low = from + k * pitch + tile * kLanes;
      __m512i parts[kMatrixParts];
      split(load(low, k < depth ? lanes : 0), load(low + kLanes * pitch, k + kLanes < depth ? lanes : 0), parts);
      store(parts, tile, k, block);
    }
  }
}

}  // namespace fusedsc
HWY_POP_ATTRIBUTES

#else  // no AVX-512 here

namespace fusedsc {

void split_rows(const float*, std::int64_t, std::int64_t, std::int64_t, std::byte*) {}
void split_columns(const float*, std::int64_t, std::int64_t, std::int64_t, std::byte*) {}

}  // namespace fusedsc

#endif
