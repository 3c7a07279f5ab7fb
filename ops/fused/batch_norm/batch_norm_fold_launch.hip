#include <algorithm>

#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/fused/batch_norm/batch_norm_fold_gpu.h"
#include "fusedsc/fused/batch_norm/batch_norm_fold_kernel.h"

namespace fusedsc {
namespace gpu {
namespace {

/// It waits for the kernel before it like any other: that may be the one that writes the parameters.
template <class A>
FUSEDSC_KERNEL(kFoldThreads, 1)
batch_norm_fold_kernel(BatchNormFoldParameters parameters) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  fold_batch_norms<A>(parameters);
}

VectorOfAnyType any_type(const ConstChannelVector& vector) { return {vector.data, vector.dtype}; }

void run(const BatchNormFoldArguments& arguments, const Execution& execution) {
  const TensorView& statistics = arguments.statistics;
  const auto& all = arguments.batch_norms;
  const bool is_double = statistics.dtype == DataType::float64;
  const auto kernel = is_double ? batch_norm_fold_kernel<double> : batch_norm_fold_kernel<float>;
  char* to = static_cast<char*>(statistics.data);
  for (std::size_t first = 0; first < all.size(); first += kMostFolds) {
    BatchNormFoldParameters p;
    p.to = to;
    p.row = statistics.strides[2];
    const std::size_t count = std::min<std::size_t>(kMostFolds, all.size() - first);
    for (std::size_t i = 0; i < count; ++i) {
      const FoldedBatchNorm& norm = all[first + i];
      p.channels += static_cast<int>(norm.channels);
      p.batch_norms[i] = {any_type(norm.weight),
                          any_type(norm.bias),
                          any_type(norm.mean),
                          any_type(norm.variance),
                          norm.eps,
                          p.channels};
    }
    launch_following("fold_batch_norms", kernel, divide_up(p.channels, kFoldThreads), kFoldThreads, execution.stream,
                     p);
    to += p.channels * static_cast<std::int64_t>(size_of(statistics.dtype));
  }
}

std::string why_not(const BatchNormFoldArguments& arguments) {
  return needs_device(Device::gpu, arguments.statistics.device);
}

}  // namespace
}  // namespace gpu

Implementation<BatchNormFoldArguments> batch_norm_fold_gpu() {
  return {"gpu", gpu::why_not, plan_of_nothing<BatchNormFoldArguments, gpu::run>};
}

}  // namespace fusedsc
