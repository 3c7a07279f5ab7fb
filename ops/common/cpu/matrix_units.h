/// Products of float matrices on the CPU's matrix units (Intel AMX), which multiply bfloat16 only. A float is the exact
/// sum of three bfloat16 parts; of the nine products of parts the six that reach into a float's precision are taken,
/// and added in float: as accurate as multiplying floats, at up to twice the speed of the vector units.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fusedsc/common/cpu/matrix_parts.h"
#include "fusedsc/common/cpu/prefetcher.h"

namespace fusedsc {

/// Whether this machine has the units, and the system lets us use them.
bool machine_has_matrix_units();

/// For tests and comparisons: whether they may be used, in the whole process. They may at first.
void use_matrix_units(bool allowed);

/// C(r, v) = sum over k of A(r, k) * B(k, v), plus C if `accumulate`.
struct MatrixUnitProduct {
  std::int64_t rows = 0, columns = 0, depth = 0;
  const float* a = nullptr;  ///< A(r, k) = a[r*a_row + k]
  std::int64_t a_row = 0;
  const float* b = nullptr;  ///< B(k, v) = b[k*b_depth + v]
  std::int64_t b_depth = 0;
  const std::byte* b_parts = nullptr;  ///< instead of b: its parts (split_columns), [column block][depth block]
  float* c = nullptr;                  ///< C(r, v) = c[r*c_row + v]
  std::int64_t c_row = 0;
  bool accumulate = false;
};

/// Whether the product takes less time than on vector units of sixteen floats.
bool matrix_units_pay(const MatrixUnitProduct& product);

/// Steps that multiply_on_matrix_units gives the prefetcher.
std::int64_t matrix_unit_steps(const MatrixUnitProduct& product);

void multiply_on_matrix_units(const MatrixUnitProduct& product, Prefetcher& prefetcher);

}  // namespace fusedsc
