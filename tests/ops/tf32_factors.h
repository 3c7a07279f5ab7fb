/// What products of TensorFloat-32 make of their factors and sums.
#pragma once

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

  /// TensorFloat-32 has 11 significant bits: what is known exactly is rounded exactly, of two the one farther from 0.
  Array factor(const Array& values) const {
    if (!allowed) return values;
    return map(values, [](const Bounded& element, std::size_t) -> Bounded {
      if (element.error != 0) return {element.value, element.error + 0x1p-11 * element.magnitude()};
      const auto bits = __builtin_bit_cast(std::uint32_t, static_cast<float>(element.value));
      return {__builtin_bit_cast(float, (bits + 0x1000u) & ~0x1fffu), 0};
    });
  }
};

}  // namespace fusedsc::reference
