/// <type_traits>, as far as device code needs it: compilers at run time have no standard library.
#pragma once

#include "own_std"

namespace std {
template <bool kCondition, class Then, class Else>
struct conditional {
  using type = Then;
};
template <class Then, class Else>
struct conditional<false, Then, Else> {
  using type = Else;
};
template <bool kCondition, class Then, class Else>
using conditional_t = typename conditional<kCondition, Then, Else>::type;

template <class T, T kValue>
struct integral_constant {
  static constexpr T value = kValue;
  constexpr operator T() const { return kValue; }
};
using true_type = integral_constant<bool, true>;
using false_type = integral_constant<bool, false>;

template <class A, class B>
inline constexpr bool is_same_v = false;
template <class A>
inline constexpr bool is_same_v<A, A> = true;
}  // namespace std
