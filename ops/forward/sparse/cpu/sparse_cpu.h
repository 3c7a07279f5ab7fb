/// Convolution that skips zeros, on CPUs.
#pragma once

#include "fusedsc/forward/sparse.h"
#include "fusedsc/tuning/role.h"

namespace fusedsc {

/// Anything: values other than zero gathered for each window, then multiplied with rows of 64 outputs.
tuning::Kernel<SparseArguments> sparse_cpu();

namespace cpu {

void pack_sparse_weight(const PackSparseWeightArguments& arguments, const Execution& execution);
SparseWork sparse_work(const SparseArguments& arguments);

}  // namespace cpu
}  // namespace fusedsc
