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

/// Transposes a tile of 16 by 16 dwords in place.
void transpose(std::byte* tile) {
  __m512i r[16], t[16];
  for (std::int64_t i = 0; i < 16; ++i) r[i] = _mm512_load_si512(tile + i * 64);
  for (std::int64_t i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (std::int64_t i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  // r[4 * i + j] has, in its four quarters q, rows 4 * i ... 4 * i + 3 of column 4 * q + j.
  for (std::int64_t j = 0; j < 4; ++j) {
    const __m512i even_low = _mm512_shuffle_i32x4(r[j], r[4 + j], 0x88);
    const __m512i even_high = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0x88);
    const __m512i odd_low = _mm512_shuffle_i32x4(r[j], r[4 + j], 0xdd);
    const __m512i odd_high = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0xdd);
    _mm512_store_si512(tile + (0 + j) * 64, _mm512_shuffle_i32x4(even_low, even_high, 0x88));
    _mm512_store_si512(tile + (4 + j) * 64, _mm512_shuffle_i32x4(odd_low, odd_high, 0x88));
    _mm512_store_si512(tile + (8 + j) * 64, _mm512_shuffle_i32x4(even_low, even_high, 0xdd));
    _mm512_store_si512(tile + (12 + j) * 64, _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd));
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

void split_rows_transposed(const float* from, std::int64_t pitch, std::int64_t lines, std::int64_t depth,
                           std::byte* block) {
  split_columns(from, pitch, lines, depth, block);
  for (std::int64_t tile = 0; tile < 2 * kMatrixParts; ++tile) transpose(block + tile * kMatrixTileBytes);
}

}  // namespace fusedsc
HWY_POP_ATTRIBUTES

#else  // no AVX-512 here

namespace fusedsc {

void split_rows(const float*, std::int64_t, std::int64_t, std::int64_t, std::byte*) {}
void split_rows_transposed(const float*, std::int64_t, std::int64_t, std::int64_t, std::byte*) {}
void split_columns(const float*, std::int64_t, std::int64_t, std::int64_t, std::byte*) {}

}  // namespace fusedsc

#endif
