#include "reference/activation.h"

#include <numbers>

namespace fusedsc::reference {

double activate(Activation activation, double z) {
  switch (activation) {
    case Activation::identity: return z;
    case Activation::relu: return std::max(z, 0.0);
    case Activation::relu6: return std::clamp(z, 0.0, 6.0);
    case Activation::silu: return z / (1 + std::exp(-z));
    case Activation::hardswish: return z * std::clamp(z + 3, 0.0, 6.0) / 6;
    case Activation::gelu: return z * std::erfc(-z * std::sqrt(0.5)) / 2;
  }
  return NAN;
}

double derivative(Activation activation, double z) {
  switch (activation) {
    case Activation::identity: return 1;
    case Activation::relu: return z > 0 ? 1 : 0;
    case Activation::relu6: return z > 0 && z < 6 ? 1 : 0;
    case Activation::silu: {
      const double sigmoid = 1 / (1 + std::exp(-z));
      return sigmoid * (1 + z * (1 - sigmoid));
    }
    case Activation::hardswish: return z <= -3 ? 0 : z >= 3 ? 1 : z / 3 + 0.5;
    case Activation::gelu:
      return std::erfc(-z * std::sqrt(0.5)) / 2 + z * std::exp(-z * z / 2) / std::sqrt(2 * std::numbers::pi);
  }
  return NAN;
}

Bounded activate(const Precision& precision, Activation activation, const Bounded& z) {
  if (activation == Activation::identity) return z;
  const Bounded result = apply(
      precision, [&](double at) { return activate(activation, at); }, z);
  if (only_clamps(activation)) return result;
  // Near their minima the ends of the interval say too little, and exp amplifies a rounding of its argument: their
  // slopes stay below 1.5, their values below |z|.
  return {result.value, 1.5 * z.error + 8 * precision.accumulation * z.magnitude()};
}

Bounded derivative(const Precision& precision, Activation activation, const Bounded& z) {
  if (activation == Activation::identity) return {1, 0};
  const Bounded result = apply(
      precision, [&](double at) { return derivative(activation, at); }, z);
  if (only_clamps(activation)) return {result.value, result.error};
  // The slopes' slopes stay below 0.8.
  return {result.value, result.error + 0.8 * z.error + 8 * precision.accumulation * (1 + z.magnitude())};
}

}  // namespace fusedsc::reference
