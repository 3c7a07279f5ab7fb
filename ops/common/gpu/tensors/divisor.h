/// Division by a number known at launch, as a multiplication: GPUs have no integer division.
#pragma once

#include "fusedsc/common/gpu/vendor/gpu.h"

namespace fusedsc::gpu {

/// Divides numbers below 2^31 by a divisor below 2^31 (Granlund and Montgomery 1994: one multiplication by
/// 2^(32+shift)/divisor rounded up is exact there).
class Divisor {
 public:
  Divisor() = default;
  explicit Divisor(std::uint32_t divisor) : divisor_(divisor) {
    while ((std::uint64_t{1} << shift_) < divisor) ++shift_;
    multiplier_ = static_cast<std::uint32_t>((((std::uint64_t{1} << shift_) - divisor) << 32) / divisor + 1);
  }

  FUSEDSC_HOST_DEVICE std::uint32_t quotient(std::uint32_t number) const {
    return (multiply_high(number, multiplier_) + number) >> shift_;
  }
  /// number = quotient * divisor + what remains in `number`.
  FUSEDSC_HOST_DEVICE std::uint32_t divide(std::uint32_t& number) const {
    const std::uint32_t result = quotient(number);
    number -= result * divisor_;
    return result;
  }

 private:
  std::uint32_t divisor_ = 1, multiplier_ = 1;
  int shift_ = 0;
};

}  // namespace fusedsc::gpu
