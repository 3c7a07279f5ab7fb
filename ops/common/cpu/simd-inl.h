/// Vectors of the compute type T (float or double), and their loads and stores from every storage type.
/// Included once per instruction set by Highway's foreach_target.h: hence the guard that toggles.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_COMMON_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_COMMON_CPU_SIMD_INL_H_
#undef FUSEDSC_COMMON_CPU_SIMD_INL_H_
#else
#define FUSEDSC_COMMON_CPU_SIMD_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include <cstdint>
#include <cstring>
#include <iterator>
#include <type_traits>

#include "fusedsc/common/cpu/float16.h"
#include "fusedsc/common/cpu/prefetcher.h"
#include "fusedsc/common/data_type.h"
#include "fusedsc/common/normal_tail.h"
#include "fusedsc/common/problem.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using Tag = hn::ScalableTag<T>;
template <class T>
using Vec = hn::Vec<Tag<T>>;

/// Elements of T in a vector.
template <class T>
inline constexpr std::int64_t kLanes = static_cast<std::int64_t>(hn::MaxLanes(Tag<T>()));

/// Whether there are 32 vector registers to block over (AVX-512, NEON) or 16.
inline constexpr bool kManyRegisters = HWY_TARGET <= HWY_AVX3 || HWY_TARGET == HWY_NEON;

inline constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// x86 before AVX2 has no instruction for float16, and Highway's replacement does not round to nearest.
#define FUSEDSC_SCALAR_FLOAT16 (HWY_ARCH_X86 && HWY_TARGET >= HWY_SSE4)

template <class T>
HWY_INLINE Vec<T> load_as(const T* from) {
  return hn::LoadU(Tag<T>(), from);
}

template <class T>
HWY_INLINE Vec<T> load_as(const BFloat16* from) {
  const Tag<T> d;
  const hn::Rebind<std::uint16_t, Tag<T>> d16;
  const hn::Rebind<std::uint32_t, Tag<T>> d32;
  const auto bits = hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(from)));
  return hn::BitCast(d, hn::ShiftLeft<16>(bits));
}

template <class T>
HWY_INLINE Vec<T> load_as(const Float16* from) {
#if FUSEDSC_SCALAR_FLOAT16
  HWY_ALIGN T buffer[kLanes<T>];
  for (std::int64_t i = 0; i < kLanes<T>; ++i) buffer[i] = to_float(from[i]);
  return hn::Load(Tag<T>(), buffer);
#else
  const hn::Rebind<hwy::float16_t, Tag<T>> d16;
  return hn::PromoteTo(Tag<T>(), hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(from)));
#endif
}

template <class T>
HWY_INLINE void store_as(Vec<T> value, T* to) {
  hn::StoreU(value, Tag<T>(), to);
}

template <class T>
HWY_INLINE void store_as(Vec<T> value, BFloat16* to) {
  const hn::Rebind<std::uint16_t, Tag<T>> d16;
  const hn::Rebind<std::uint32_t, Tag<T>> d32;
  const hn::Rebind<std::int32_t, Tag<T>> di32;
  const auto bits = hn::BitCast(d32, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(hn::Set(d32, 0x7fff), odd)));
  const auto quiet_nan = hn::Or(hn::ShiftRight<16>(bits), hn::Set(d32, 0x40));
  const auto result = hn::IfThenElse(hn::RebindMask(d32, hn::IsNaN(value)), quiet_nan, rounded);
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di32, result)), d16, reinterpret_cast<std::uint16_t*>(to));
}

template <class T>
HWY_INLINE void store_as(Vec<T> value, Float16* to) {
#if FUSEDSC_SCALAR_FLOAT16
  HWY_ALIGN T buffer[kLanes<T>];
  hn::Store(value, Tag<T>(), buffer);
  for (std::int64_t i = 0; i < kLanes<T>; ++i) to[i] = to_float16(buffer[i]);
#else
  const hn::Rebind<hwy::float16_t, Tag<T>> d16;
  hn::StoreU(hn::DemoteTo(d16, value), d16, reinterpret_cast<hwy::float16_t*>(to));
#endif
}

/// A whole cache line around the caches if `streams`, else as it is (streams.h). Other threads see it behind
/// hwy::FlushStream().
template <class T>
HWY_INLINE void store_line(Vec<T> value, T* to, bool streams) {
  if (streams) hn::Stream(value, Tag<T>(), to);
  else store_as<T>(value, to);
}

// AVX2 has masked loads and stores of the compute types; Highway means all types when it says that they might fault.
#define FUSEDSC_MASKED_MEMORY (!HWY_MEM_OPS_MIGHT_FAULT || HWY_TARGET == HWY_AVX2)

/// The first `count` < kLanes elements, zeros behind them.
template <class T, class Storage>
HWY_INLINE Vec<T> load_partial(const Storage* from, std::int64_t count) {
#if FUSEDSC_MASKED_MEMORY
  if constexpr (std::is_same_v<T, Storage>) {
    return hn::MaskedLoad(hn::FirstN(Tag<T>(), static_cast<std::size_t>(count)), Tag<T>(), from);
  }
#endif
  Storage buffer[kLanes<T>] = {};
  std::memcpy(buffer, from, static_cast<std::size_t>(count) * sizeof(Storage));
  return load_as<T>(buffer);
}

/// Stores the first `count` < kLanes elements and touches nothing behind them.
template <class T, class Storage>
HWY_INLINE void store_partial(Vec<T> value, Storage* to, std::int64_t count) {
#if FUSEDSC_MASKED_MEMORY
  if constexpr (std::is_same_v<T, Storage>) {
    return hn::BlendedStore(value, hn::FirstN(Tag<T>(), static_cast<std::size_t>(count)), Tag<T>(), to);
  }
#endif
  Storage buffer[kLanes<T>];
  store_as<T>(value, buffer);
  std::memcpy(to, buffer, static_cast<std::size_t>(count) * sizeof(Storage));
}

/// Fetches `bytes` from `from` on into the second-level cache.
HWY_INLINE void prefetch(const void* from, std::int64_t bytes) {
  HWY_UNROLL(16) for (std::int64_t i = 0; i < bytes; i += kCacheLine) {
    __builtin_prefetch(static_cast<const char*>(from) + i, 0, 2);
  }
}

/// 1 + exp(-z): the denominator of the logistic function. Highway's Exp is infinite where its result overflows, as it
/// must be for z / it to be 0 however large z is; but far beyond that it wraps.
template <class T>
HWY_INLINE Vec<T> logistic_denominator(Vec<T> z) {
  const Tag<T> d;
  constexpr T kLargestExponent = std::is_same_v<T, double> ? T(800) : T(100);
  return hn::Add(hn::Set(d, T(1)), hn::Exp(d, hn::Min(hn::Neg(z), hn::Set(d, kLargestExponent))));
}

/// The normal distribution up to z; `exponential` becomes exp(-z^2/2).
template <class T>
HWY_INLINE Vec<T> normal_distribution(Vec<T> z, Vec<T>& exponential) {
  constexpr NormalTail<T> kTail{};
  const Tag<T> d;
  const hn::RebindToUnsigned<Tag<T>> bits;
  const auto one = hn::Set(d, T(1));
  const auto t = hn::Min(hn::Abs(z), hn::Set(d, kTail.most));
  const auto w = hn::Div(one, hn::MulAdd(t, hn::Set(d, kTail.rate), one));
  const auto v = hn::Sub(w, hn::Set(d, kTail.centre));
  auto polynomial = hn::Set(d, kTail.polynomial[0]);
  for (std::size_t i = 1; i < std::size(kTail.polynomial); ++i) {
    polynomial = hn::MulAdd(polynomial, v, hn::Set(d, kTail.polynomial[i]));
  }
  // exp amplifies the rounding of t^2: what that takes away is worked out of the upper half of t's bits and the rest.
  constexpr int kHalf = std::is_same_v<T, double> ? 27 : 12;
  const auto square = hn::Mul(t, t);
  const auto upper = hn::BitCast(d, hn::ShiftLeft<kHalf>(hn::ShiftRight<kHalf>(hn::BitCast(bits, t))));
  const auto rest = hn::MulAdd(hn::Sub(t, upper), hn::Add(t, upper), hn::MulSub(upper, upper, square));
  const auto minus_half = hn::Set(d, T(-0.5));
  const auto rounded = hn::Exp(d, hn::Mul(minus_half, square));
  exponential = hn::MulAdd(rounded, hn::Mul(minus_half, rest), rounded);
  const auto tail = hn::Mul(hn::Mul(exponential, w), polynomial);
  return hn::IfThenElse(hn::Lt(z, hn::Zero(d)), tail, hn::Sub(one, tail));
}

// Functions of their own, as they are long: loops over five other activations would be no shorter for it.
template <class T>
HWY_NOINLINE Vec<T> gelu(hn::VecArg<Vec<T>> z) {
  Vec<T> exponential;
  return hn::Mul(z, normal_distribution<T>(z, exponential));
}

template <class T>
HWY_NOINLINE Vec<T> gelu_slope(hn::VecArg<Vec<T>> z) {
  Vec<T> exponential;
  const auto distribution = normal_distribution<T>(z, exponential);
  return hn::MulAdd(z, hn::Mul(exponential, hn::Set(Tag<T>(), T(kNormalPeak))), distribution);
}

/// activation(z)
template <Activation kActivation, class T>
HWY_INLINE Vec<T> activate(Vec<T> z) {
  const Tag<T> d;
  if constexpr (kActivation == Activation::relu) return hn::Max(hn::Zero(d), z);  // in this order NaN stays NaN
  if constexpr (kActivation == Activation::relu6) return hn::Min(hn::Set(d, T(6)), hn::Max(hn::Zero(d), z));
  if constexpr (kActivation == Activation::silu) return hn::Div(z, logistic_denominator<T>(z));
  if constexpr (kActivation == Activation::hardswish) {
    const auto gate = hn::Min(hn::Max(hn::Add(z, hn::Set(d, T(3))), hn::Zero(d)), hn::Set(d, T(6)));
    return hn::Mul(hn::Mul(z, gate), hn::Set(d, T(1) / T(6)));
  }
  if constexpr (kActivation == Activation::gelu) return gelu<T>(z);
  return z;
}

/// grad * activation'(z); at the kinks as PyTorch defines them.
template <Activation kActivation, class T>
HWY_INLINE Vec<T> activate_backward(Vec<T> grad, Vec<T> z) {
  const Tag<T> d;
  if constexpr (kActivation == Activation::relu) return hn::IfThenElseZero(hn::Gt(z, hn::Zero(d)), grad);
  if constexpr (kActivation == Activation::relu6) {
    const auto inside = hn::And(hn::Gt(z, hn::Zero(d)), hn::Lt(z, hn::Set(d, T(6))));
    return hn::IfThenElseZero(inside, grad);
  }
  if constexpr (kActivation == Activation::silu) {
    const auto one = hn::Set(d, T(1));
    const auto sigmoid = hn::Div(one, logistic_denominator<T>(z));
    return hn::Mul(grad, hn::Mul(sigmoid, hn::MulAdd(z, hn::Sub(one, sigmoid), one)));
  }
  if constexpr (kActivation == Activation::hardswish) {
    const auto slope = hn::MulAdd(z, hn::Set(d, T(1) / T(3)), hn::Set(d, T(0.5)));
    const auto above = hn::IfThenElse(hn::Ge(z, hn::Set(d, T(3))), grad, hn::Mul(grad, slope));
    return hn::IfThenZeroElse(hn::Le(z, hn::Set(d, T(-3))), above);
  }
  if constexpr (kActivation == Activation::gelu) return hn::Mul(grad, gelu_slope<T>(z));
  return grad;
}

/// Calls body.template operator()<A>() with A the activation as a compile-time constant.
template <class Body>
HWY_INLINE void with_activation(Activation activation, const Body& body) {
  switch (activation) {
    case Activation::identity: return body.template operator()<Activation::identity>();
    case Activation::relu: return body.template operator()<Activation::relu>();
    case Activation::relu6: return body.template operator()<Activation::relu6>();
    case Activation::silu: return body.template operator()<Activation::silu>();
    case Activation::hardswish: return body.template operator()<Activation::hardswish>();
    case Activation::gelu: return body.template operator()<Activation::gelu>();
  }
}

/// Calls body.template operator()<Storage>() with the storage type that `dtype` names. T double stores double only.
template <class T, class Body>
HWY_INLINE void with_storage(DataType dtype, const Body& body) {
  if constexpr (std::is_same_v<T, double>) {
    body.template operator()<double>();
  } else {
    switch (dtype) {
      case DataType::float32: return body.template operator()<float>();
      case DataType::float16: return body.template operator()<Float16>();
      case DataType::bfloat16: return body.template operator()<BFloat16>();
      case DataType::float64: return;  // computed in double, never in float
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
