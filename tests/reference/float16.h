/// Conversions of 16-bit types by their definition, independent of the library's.
#pragma once

#include <cmath>
#include <cstdint>

namespace fusedsc::reference {

/// A binary format of 1 sign bit, `exponent_bits` and `fraction_bits`, 16 in all.
struct Format16 {
  int exponent_bits, fraction_bits;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }

  double decode(std::uint16_t bits) const {
    const int fraction = bits & ((1 << fraction_bits) - 1);
    const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
    const double sign = bits >> 15 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) return fraction ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias() - fraction_bits);
    return sign * std::ldexp(fraction + (1 << fraction_bits), exponent - bias() - fraction_bits);
  }

  /// Rounds to nearest, ties to even.
  std::uint16_t encode(double value) const {
    const int sign = std::signbit(value) ? 0x8000 : 0;
    const int infinity = ((1 << exponent_bits) - 1) << fraction_bits;
    if (std::isnan(value)) return static_cast<std::uint16_t>(infinity | 1 << (fraction_bits - 1));
    const double magnitude = std::abs(value);
    const int exponent = magnitude == 0 ? 1 - bias() : std::max(std::ilogb(magnitude), 1 - bias());
    if (exponent > bias()) return static_cast<std::uint16_t>(sign | infinity);
    // Units of the last place at this exponent; one more than a full fraction carries into the exponent by itself.
    const int units = static_cast<int>(std::nearbyint(std::ldexp(magnitude, fraction_bits - exponent)));
    return static_cast<std::uint16_t>(sign | (((exponent + bias() - 1) << fraction_bits) + units));
  }
};

inline constexpr Format16 kFloat16{5, 10};
inline constexpr Format16 kBFloat16{8, 7};

}  // namespace fusedsc::reference
