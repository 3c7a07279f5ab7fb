/// The instructions of AMD's matrix cores on the host executor, lane by lane as the CDNA2 manual lays matrices out:
/// of instructions whose lanes bring r values of k, lane l brings those from r * (l / 16) on of row l % 16 of A, and of
/// column l % 16 of B.
#pragma once

#include <array>
#include <cmath>
#include <span>
#include <type_traits>

#include "fusedsc/common/gpu/tensors/vector.h"
#include "host_executor/executor.h"

namespace fusedsc::gpu {

/// A lane's elements of D.
template <class A>
using MatrixCoreSums = std::array<A, 4>;

/// use(what each lane of the wave of 64 brings, in the order of lanes).
template <class Value, class Use>
void with_whole_wave(const Value& own, const Use& use) {
  Value* const place = executor::place_of_thread<Value>();
  *place = own;
  executor::wave_barrier();
  use(std::span<const Value, 64>(place - thread_index() % 64, 64));
}

inline bool any_of_wave(bool condition) {
  bool any = false;
  with_whole_wave(condition, [&](const auto& lanes) {
    for (const bool of_lane : lanes) any = any || of_lane;
  });
  return any;
}

/// The values of k that a lane brings.
template <class A, std::size_t kDepth>
struct MatrixCoreLane {
  std::array<A, kDepth> a, b;
};

/// D[row(lane, i)][lane % 16] is element i of a lane.
template <class A, std::size_t kDepth, class Row>
void multiply_by_wave(MatrixCoreSums<A>& d, const MatrixCoreLane<A, kDepth>& own, const Row& row) {
  const std::size_t lane = static_cast<std::size_t>(thread_index()) % 64, column = lane % 16;
  with_whole_wave(own, [&](const auto& lanes) {
    for (std::size_t i = 0; i < 4; ++i) {
      for (std::size_t k = 0; k < 4 * kDepth; ++k) {
        const std::size_t first = k / kDepth * 16;
        d[i] += lanes[first + row(lane, i)].a[k % kDepth] * lanes[first + column].b[k % kDepth];
      }
    }
  });
}

/// v_mfma_f32_16x16x16f16 and v_mfma_f32_16x16x16bf16_1k, which take subnormal numbers for 0.
template <class Half>
void matrix_core_step(MatrixCoreSums<float>& d, const std::uint32_t (&a)[2], const std::uint32_t (&b)[2], Half) {
  const float least = std::is_same_v<Half, Float16> ? 0x1p-14f : 0x1p-126f;
  const auto widened = [&](const std::uint32_t(&words)[2]) {
    std::array<float, 4> values;
    for (std::size_t i = 0; i < 2; ++i) to_floats(words[i], values[2 * i], values[2 * i + 1], Half());
    for (float& value : values) value = std::abs(value) < least ? 0.0f : value;
    return values;
  };
  multiply_by_wave<float, 4>(d, {widened(a), widened(b)},
                             [](std::size_t lane, std::size_t i) { return lane / 16 * 4 + i; });
}

/// v_mfma_f32_16x16x4f32
inline void matrix_core_step(MatrixCoreSums<float>& d, float a, float b) {
  multiply_by_wave<float, 1>(d, {{a}, {b}}, [](std::size_t lane, std::size_t i) { return lane / 16 * 4 + i; });
}
/// v_mfma_f64_16x16x4f64
inline void matrix_core_step(MatrixCoreSums<double>& d, double a, double b) {
  multiply_by_wave<double, 1>(d, {{a}, {b}}, [](std::size_t lane, std::size_t i) { return lane / 16 + 4 * i; });
}

}  // namespace fusedsc::gpu
