/// Single elements of any type, and what is computed with in their place: for plain loops, of which few instances are
/// made.
#pragma once

#include "fusedsc/common/cpu/float16.h"

namespace fusedsc {

inline float widened(float value) { return value; }
inline double widened(double value) { return value; }
inline float widened(Float16 value) { return to_float(value); }
inline float widened(BFloat16 value) { return to_float(value); }

inline void narrow(float value, float& to) { to = value; }
inline void narrow(double value, double& to) { to = value; }
inline void narrow(float value, Float16& to) { to = to_float16(value); }
inline void narrow(float value, BFloat16& to) { to = to_bfloat16(value); }

template <class T>
using Wide = decltype(widened(T()));

/// Calls body with a value of the type.
template <class Body>
void with_type(DataType dtype, const Body& body) {
  switch (dtype) {
    case DataType::float32: return body(float());
    case DataType::float64: return body(double());
    case DataType::float16: return body(Float16());
    case DataType::bfloat16: return body(BFloat16());
  }
}

}  // namespace fusedsc
