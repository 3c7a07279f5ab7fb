/// Several neighbouring elements, loaded and stored at once, and the type that they are computed in.
#pragma once

#include "fusedsc/common/gpu/vendor/gpu.h"

namespace fusedsc::gpu {

template <class T>
struct AccumulatorOf {
  using Type = float;
};
template <>
struct AccumulatorOf<double> {
  using Type = double;
};
template <class T>
using Accumulator = typename AccumulatorOf<T>::Type;

FUSEDSC_DEVICE float to_accumulator(float value) { return value; }
FUSEDSC_DEVICE double to_accumulator(double value) { return value; }
FUSEDSC_DEVICE float to_accumulator(Float16 value) { return to_float(value); }
FUSEDSC_DEVICE float to_accumulator(BFloat16 value) { return to_float(value); }

FUSEDSC_DEVICE void from_accumulator(float value, float& to) { to = value; }
FUSEDSC_DEVICE void from_accumulator(double value, double& to) { to = value; }
FUSEDSC_DEVICE void from_accumulator(float value, Float16& to) { to.bits = to_bits(value, Float16()); }
FUSEDSC_DEVICE void from_accumulator(float value, BFloat16& to) { to.bits = to_bits(value, BFloat16()); }

template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Aligned {
  T elements[kCount];
};

/// kCount neighbouring elements as they came from memory. They are kept as 32-bit words, of which the registers are
/// made: compilers split a register to get at 16-bit elements, and put it together again to move them.
template <class T, int kCount>
struct Vector {
  static constexpr int kBytes = static_cast<int>(sizeof(T)) * kCount, kWords = (kBytes + 3) / 4;
  static_assert(kBytes == 2 || kBytes == 4 || kBytes == 8 || kBytes == 16);

  std::uint32_t words[kWords];

  /// Keeps the bits that are set in both masks.
  FUSEDSC_DEVICE void keep(std::uint32_t mask, std::uint32_t other_mask) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = words[i] & mask & other_mask;
  }

  FUSEDSC_DEVICE void widen(Accumulator<T>* to) const {
    if constexpr (sizeof(T) == 2 && kCount % 2 == 0) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) to_floats(words[i], to[2 * i], to[2 * i + 1], T());
    } else if constexpr (sizeof(T) == 2) {
      to[0] = to_float(T{static_cast<std::uint16_t>(words[0])});
    } else if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) to[i] = __builtin_bit_cast(float, words[i]);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        to[i] = __builtin_bit_cast(double, words[2 * i] | static_cast<std::uint64_t>(words[2 * i + 1]) << 32);
      }
    }
  }
};

/// From memory aligned to the size of kCount elements.
template <int kCount, class T>
FUSEDSC_DEVICE Vector<T, kCount> load(const T* from) {
  Vector<T, kCount> vector;
  if constexpr (Vector<T, kCount>::kBytes == 2) {
    vector.words[0] = *reinterpret_cast<const std::uint16_t*>(from);
  } else {
    constexpr int kWords = Vector<T, kCount>::kWords;
    const auto words = *reinterpret_cast<const Aligned<std::uint32_t, kWords>*>(from);
#pragma unroll
    for (int i = 0; i < kWords; ++i) vector.words[i] = words.elements[i];
  }
  return vector;
}

/// To memory aligned to the size of kCount elements.
template <int kCount, class T>
FUSEDSC_DEVICE void store(const Accumulator<T>* from, T* to) {
  if constexpr (sizeof(T) == 2 && kCount % 2 == 0) {
    Aligned<std::uint32_t, kCount / 2> pairs;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) pairs.elements[i] = to_bits(from[2 * i], from[2 * i + 1], T());
    *reinterpret_cast<Aligned<std::uint32_t, kCount / 2>*>(to) = pairs;
  } else {
    Aligned<T, kCount> vector;
#pragma unroll
    for (int i = 0; i < kCount; ++i) from_accumulator(from[i], vector.elements[i]);
    *reinterpret_cast<Aligned<T, kCount>*>(to) = vector;
  }
}

}  // namespace fusedsc::gpu
