/// Products of matrices on the host executor: with waves of 64 as the GPUs that have matrix cores, else by fused
/// multiply-adds.
#pragma once

#include "fusedsc/common/gpu/products/matrix.h"
#include "fusedsc/common/gpu/products/matrix_amd.h"

namespace fusedsc::gpu {

template <class T, class Tile>
class ProductOnHost {
 public:
  using A = Accumulator<T>;
  static constexpr bool kKeepsSums = false;

  static int parts() { return has_matrix_cores() ? Cores::parts() : Fma::parts(); }

  void clear() {
    fma_.clear();
    cores_.clear();
  }

  template <class Rows, class Cols>
  void multiply(const Rows& rows, const Cols& cols, int depth) {
    if (has_matrix_cores()) cores_.multiply(rows, cols, depth);
    else fma_.multiply(rows, cols, depth);
  }

  template <class RowsTile, class ColsTile>
  void leave(A* sums) const {
    if (has_matrix_cores()) cores_.template leave<RowsTile, ColsTile>(sums);
    else fma_.template leave<RowsTile, ColsTile>(sums);
  }

 private:
  using Fma = FmaProduct<T, Tile>;
  using Cores = MatrixCoreProduct<T, Tile>;

  static bool has_matrix_cores() { return wave_size() == kMatrixCoreLanes; }

  Fma fma_;
  Cores cores_;
};

}  // namespace fusedsc::gpu
