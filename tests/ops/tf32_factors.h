/// What products of TensorFloat-32 make of their factors and sums.
#pragma once

#include <cmath>

#include "reference/array.h"
#include "reference/tensor.h"

namespace fusedsc::reference {

/// Whether a problem allows TF32, and with what the reference then computes.
struct Tf32 {
  bool allowed = false;

  /// Tensor cores cut off what they add, where others round.
  Precision sums(Precision precision) const {
    if (allowed) precision.accumulation *= 2;
    return precision;
  }

  /// What TensorFloat-32 has, of numbers as near as that.
  Array exact(const Array& values) const {
    if (!allowed) return values;
    return map(values, [](const Bounded& element, std::size_t) -> Bounded {
      const auto bits = __builtin_bit_cast(std::uint32_t, static_cast<float>(element.value));
      return {__builtin_bit_cast(float, bits & ~0x1fffu), 0};
    });
  }

  /// TensorFloat-32 has 11 significant bits, to which factors are rounded, not cut off (of two numbers as near to
  /// either); or they are taken as they are, where nothing is for tensor cores: which is not said.
  Array factor(const Array& values) const {
    if (!allowed) return values;
    return map(values, [](const Bounded& element, std::size_t) -> Bounded {
      if (element.error != 0) return {element.value, element.error + 0x1p-11 * element.magnitude()};
      const auto bits = __builtin_bit_cast(std::uint32_t, static_cast<float>(element.value));
      const double nearest = __builtin_bit_cast(float, (bits + 0x1000u) & ~0x1fffu),
                   distance = std::abs(nearest - element.value);
      if ((bits & 0x1fffu) == 0x1000u) return {element.value, distance};
      return {(nearest + element.value) / 2, distance / 2};
    });
  }
};

/// Positive factors that rounding to TensorFloat-32 makes larger by less than 2^-15 of them, and cutting off smaller by
/// more than 2^-11: a sum of products with one factor cut off is not near a rounded one.
inline Array nearly_tf32(Random& random, const Sizes& sizes) {
  return map(Array(sizes), [&](const Bounded&, std::size_t) -> Bounded {
    const auto of = [&](std::uint32_t low, std::uint32_t high) {
      return low + static_cast<std::uint32_t>(random() % (high - low + 1));
    };
    return {__builtin_bit_cast(float, 0x3f800000u | of(0, 0xff) << 13 | of(0x1f00, 0x1fff)), 0};
  });
}

}  // namespace fusedsc::reference
