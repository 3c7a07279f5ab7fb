/// What products of TensorFloat-32 make of their factors and sums.
#pragma once

#include <cmath>

#include "reference/array.h"

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

  /// TensorFloat-32 has 11 significant bits. Factors are rounded to them (of two numbers as near to the one farther
  /// from 0) or, where tensor cores read them as they lie in memory, cut off; or taken as they are, where nothing is
  /// for tensor cores: which of the three is not said.
  Array factor(const Array& values) const {
    if (!allowed) return values;
    return map(values, [](const Bounded& element, std::size_t) -> Bounded {
      if (element.error != 0) return {element.value, element.error + 0x1p-10 * element.magnitude()};
      const auto bits = __builtin_bit_cast(std::uint32_t, static_cast<float>(element.value));
      const double cut_off = __builtin_bit_cast(float, bits & ~0x1fffu),
                   rounded = __builtin_bit_cast(float, (bits + 0x1000u) & ~0x1fffu),
                   farthest = std::abs(rounded) > std::abs(element.value) ? rounded : element.value;
      return {(cut_off + farthest) / 2, std::abs(farthest - cut_off) / 2};
    });
  }
};

}  // namespace fusedsc::reference
