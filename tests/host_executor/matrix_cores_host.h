/// The instructions of AMD's matrix cores on the host executor, lane by lane as the manuals of CDNA2, RDNA3 and RDNA4
/// lay matrices out, and how often each kind was executed.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

#include "fusedsc/common/gpu/tensors/vector.h"
#include "host_executor/executor.h"

namespace fusedsc::gpu {

/// Instructions that waves have executed since the program's begin.
struct MatrixCoreCounts {
  long mfma = 0, wmma_gfx11 = 0, wmma_gfx12 = 0;
};
inline MatrixCoreCounts matrix_core_counts;

/// use(what each lane of the wave brings, in the order of lanes).
template <std::size_t kLanes, class Value, class Use>
void with_whole_wave(const Value& own, const Use& use) {
  Value* const place = executor::place_of_thread<Value>();
  *place = own;
  executor::wave_barrier();
  use(std::span<const Value, kLanes>(place - static_cast<std::size_t>(thread_index()) % kLanes, kLanes));
}

inline bool any_of_wave(bool condition) {
  bool any = false;
  with_whole_wave<64>(condition, [&](const auto& lanes) {
    for (const bool of_lane : lanes) any = any || of_lane;
  });
  return any;
}

inline bool asked_again(bool condition) { return condition; }

/// What a lane brings of a row of A, and of a row of B.
template <class A, std::size_t kFactors>
struct MatrixCoreLane {
  std::array<A, kFactors> a, b;
};

/// Of instructions whose lanes bring the values of k from kFactors * (lane / 16) on of row lane % 16: D[row(lane, i)]
/// [lane % 16] is element i of a lane. Lanes past the 16th value of k bring the same as others.
template <std::size_t kLanes, std::size_t kDepth, class A, std::size_t kFactors, std::size_t kSums, class Row>
void multiply_by_wave(std::array<A, kSums>& d, const MatrixCoreLane<A, kFactors>& own, long& count, const Row& row) {
  const std::size_t lane = static_cast<std::size_t>(thread_index()) % kLanes;
  if (lane == 0) ++count;
  with_whole_wave<kLanes>(own, [&](const auto& lanes) {
    for (std::size_t i = 0; i < kSums; ++i) {
      for (std::size_t k = 0; k < kDepth; ++k) {
        const std::size_t first = k / kFactors * 16;
        d[i] += lanes[first + row(lane, i)].a[k % kFactors] * lanes[first + lane % 16].b[k % kFactors];
      }
    }
  });
}

template <class Half, std::size_t kWords>
std::array<float, 2 * kWords> widened(const std::uint32_t (&words)[kWords]) {
  std::array<float, 2 * kWords> values;
  for (std::size_t i = 0; i < kWords; ++i) to_floats(words[i], values[2 * i], values[2 * i + 1], Half());
  return values;
}

template <class A>
using MfmaSums = std::array<A, 4>;

/// v_mfma_f32_16x16x16f16 and v_mfma_f32_16x16x16bf16_1k of gfx90a, which take subnormal numbers for 0.
template <class Half>
void mfma(MfmaSums<float>& d, const std::uint32_t (&a)[2], const std::uint32_t (&b)[2], Half) {
  const auto flushed = [](std::array<float, 4> values) {
    const float least = std::is_same_v<Half, Float16> ? 0x1p-14f : 0x1p-126f;
    for (float& value : values) value = std::abs(value) < least ? 0.0f : value;
    return values;
  };
  multiply_by_wave<64, 16, float, 4>(d, {flushed(widened<Half>(a)), flushed(widened<Half>(b))}, matrix_core_counts.mfma,
                                     [](std::size_t lane, std::size_t i) { return lane / 16 * 4 + i; });
}
/// v_mfma_f32_16x16x4f32
inline void mfma(MfmaSums<float>& d, float a, float b) {
  multiply_by_wave<64, 4, float, 1>(d, {{a}, {b}}, matrix_core_counts.mfma,
                                    [](std::size_t lane, std::size_t i) { return lane / 16 * 4 + i; });
}
/// v_mfma_f64_16x16x4f64
inline void mfma(MfmaSums<double>& d, double a, double b) {
  multiply_by_wave<64, 4, double, 1>(d, {{a}, {b}}, matrix_core_counts.mfma,
                                     [](std::size_t lane, std::size_t i) { return lane / 16 + 4 * i; });
}

using WmmaSums = std::array<float, 8>;

/// v_wmma_f32_16x16x16_f16 and v_wmma_f32_16x16x16_bf16 of gfx11. Lanes 16 apart have to bring the same: where they do
/// not, what comes out is NaN.
template <class Half>
void wmma(WmmaSums& d, const std::uint32_t (&a)[8], const std::uint32_t (&b)[8], Half) {
  const MatrixCoreLane<float, 16> own{widened<Half>(a), widened<Half>(b)};
  bool is_twice = true;
  with_whole_wave<32>(std::bit_cast<std::array<std::uint32_t, 16>>(std::array{std::to_array(a), std::to_array(b)}),
                      [&](const auto& lanes) {
                        for (std::size_t lane = 0; lane < 16; ++lane) is_twice &= lanes[lane] == lanes[lane + 16];
                      });
  multiply_by_wave<32, 16, float, 16>(d, own, matrix_core_counts.wmma_gfx11,
                                      [](std::size_t lane, std::size_t i) { return 2 * i + lane / 16; });
  if (!is_twice) d.fill(std::numeric_limits<float>::quiet_NaN());
}
/// Those of gfx12.
template <class Half>
void wmma(WmmaSums& d, const std::uint32_t (&a)[4], const std::uint32_t (&b)[4], Half) {
  multiply_by_wave<32, 16, float, 8>(d, {widened<Half>(a), widened<Half>(b)}, matrix_core_counts.wmma_gfx12,
                                     [](std::size_t lane, std::size_t i) { return lane / 16 * 8 + i; });
}

}  // namespace fusedsc::gpu
