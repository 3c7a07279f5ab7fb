/// The registry's kernels of the convolution that skips zeros, on GPUs.
#pragma once

#include "fusedsc/forward/sparse.h"
#include "fusedsc/tuning/role.h"

namespace fusedsc::gpu {

/// Anything: a block's part of the map as lists in shared memory, each multiplied with rows of 32 to 128 outputs.
tuning::Kernel<SparseArguments> sparse_lists();

/// The config that sparse_lists() is taken with where nothing was measured.
tuning::Config sparse_lists_prior(const SparseArguments& arguments);

/// As fusedsc::pack_sparse_weight(), of checked arguments on a GPU.
void pack_sparse_weight(const PackSparseWeightArguments& arguments, void* stream);

}  // namespace fusedsc::gpu
