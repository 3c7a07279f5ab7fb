/// Numbers that know how far a computation in the library's precision may be from them: the reference computes in
/// double and carries the bound along, so a test's tolerance follows from the arithmetic and from nothing else.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "fusedsc/common/data_type.h"

namespace fusedsc::reference {

/// What an operator on tensors of one type computes and stores with.
struct Precision {
  double accumulation;  ///< machine epsilon of the type that sums are kept in
  double storage;       ///< relative error of rounding a sum to the tensors' type; 0 where they are the same
  double tiny;          ///< absolute error of storing: half of the smallest positive number

  explicit Precision(DataType dtype);
};

struct Bounded {
  double value = 0;
  double error = 0;

  double magnitude() const { return std::abs(value) + error; }
};

inline Bounded product(const Bounded& a, const Bounded& b) {
  return {a.value * b.value, std::abs(a.value) * b.error + std::abs(b.value) * a.error + a.error * b.error};
}

/// A sum whose terms the library may add in any order. n roundings that are as often up as down drift apart by about
/// sqrt(n) of them; those of equal terms all go the same way. kFew leaves room for the terms' own roundings.
class Sum {
 public:
  static constexpr double kFew = 4;

  void add(const Bounded& term) {
    value_ += term.value;
    error_ += term.error;
    magnitude_ += term.magnitude();
    ++terms_;
    if (term.value == 0) return;
    if (term.value == last_) ++repeats_;
    last_ = term.value;
  }

  Bounded result(const Precision& precision) const {
    const double roundings = kFew + std::sqrt(static_cast<double>(terms_)) + static_cast<double>(repeats_);
    const double drift = roundings * precision.accumulation * magnitude_;
    return {static_cast<double>(value_), error_ + drift};
  }

 private:
  long double value_ = 0;  ///< the reference's own roundings must not matter, in float64 neither
  double error_ = 0, magnitude_ = 0;
  double last_ = 0;  ///< the last term other than 0
  std::int64_t terms_ = 0, repeats_ = 0;
};

/// Any short expression: the sum of its terms, each rounded.
inline Bounded sum_of(const Precision& precision, std::initializer_list<Bounded> terms) {
  Sum sum;
  for (const Bounded& term : terms) sum.add(term);
  return sum.result(precision);
}

inline Bounded negative(const Bounded& a) { return {-a.value, a.error}; }

/// a, after it was rounded to the tensors' type.
inline Bounded stored(const Precision& precision, const Bounded& a) {
  return {a.value, a.error + precision.storage * a.magnitude() + precision.tiny};
}

/// f(a) for a monotonic or smooth f, which the library evaluates to a few roundings: bounded by its values at the ends
/// of a's interval, within which f has no extremum that matters.
template <class Function>
Bounded apply(const Precision& precision, const Function& f, const Bounded& a) {
  const double value = f(a.value);
  const double spread = std::max(std::abs(f(a.value + a.error) - value), std::abs(f(a.value - a.error) - value));
  return {value, spread + 2 * Sum::kFew * precision.accumulation * std::abs(value)};
}

}  // namespace fusedsc::reference
