/// The storing matrix products, compiled once per instruction set.
#include "fusedsc/common/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fusedsc/common/cpu/gemm.cpp"
#include "hwy/foreach_target.h"

#include "fusedsc/common/cpu/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

void gemm(const Gemm<float>& g, Prefetcher& prefetcher) { gemm_blocks(g, prefetcher, StoreBlock<float>{g}); }
void gemm(const Gemm<double>& g, Prefetcher& prefetcher) { gemm_blocks(g, prefetcher, StoreBlock<double>{g}); }

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();
