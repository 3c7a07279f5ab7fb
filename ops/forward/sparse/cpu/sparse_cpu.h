/// Convolution that skips zeros, on CPUs.
#pragma once

#include "fusedsc/forward/sparse.h"

namespace fusedsc {

Implementation<SparseArguments> sparse_cpu();

namespace cpu {

void pack_sparse_weight(const PackSparseWeightArguments& arguments, const Execution& execution);
SparseWork sparse_work(const SparseArguments& arguments);

}  // namespace cpu
}  // namespace fusedsc
