/// How gpu_lists cuts a problem up.
#pragma once

#include "fusedsc/forward/sparse.h"
#include "fusedsc/forward/sparse/lists/sparse_lists_parameters.h"
#include "fusedsc/tuning/config.h"

namespace fusedsc::gpu {

/// What there is to choose.
struct SparseTiling {
  int outputs = 32;           ///< of a block: 32, 64 or 128
  int rows = 1, columns = 1;  ///< of y, of a block; where blocks share the channels out, of the convolution's result
  int splits = 1;             ///< blocks that share the channels out
  int warps = 8;              ///< of 32 threads

  bool operator==(const SparseTiling&) const = default;
};

/// A tiling with all that follows from it but addresses.
struct SparseListsPlan {
  SparseTiling tiling;
  bool is_aligned = true;  ///< rows of the packed weight are loaded as vectors
  SparseListsParameters parameters;
  SparseFinishParameters finish;
  bool has_partials = false;
  std::int64_t blocks = 0;
  std::size_t shared_memory_bytes = 0;
  std::int64_t partials = 0;  ///< elements
};

/// Empty, or why the kernels cannot.
std::string why_not_sparse_lists(const SparseArguments& arguments);

/// Throws Unsupported where it does not fit.
SparseListsPlan plan_sparse_lists(const SparseArguments& arguments, const SparseTiling& tiling);

/// Those that fit, at least one of a problem that the kernels can.
std::vector<SparseTiling> sparse_tilings(const SparseArguments& arguments);

/// What it takes, in nanoseconds, where about an eighth of the values are not zero: by count, not fitted to times yet.
/// The order matters only.
double sparse_cost(const SparseListsPlan& plan, int multiprocessors);

tuning::Config config_of(const SparseTiling& tiling);
SparseTiling tiling_of(const tuning::Config& config);

}  // namespace fusedsc::gpu
