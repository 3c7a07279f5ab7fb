#include <algorithm>

#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/fused/batch_norm/running/batch_norm_running_gpu.h"
#include "fusedsc/fused/batch_norm/running/batch_norm_running_kernel.h"

namespace fusedsc {
namespace gpu {
namespace {

template <class A>
FUSEDSC_KERNEL(kRunningThreads, 1)
batch_norm_running_kernel(BatchNormRunningParameters parameters) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  update_running_statistics<A>(parameters);
}

void run(const BatchNormRunningArguments& arguments, const Execution& execution) {
  const auto& all = arguments.batch_norms;
  const bool is_double = arguments.mean.dtype == DataType::float64;
  const auto kernel = is_double ? batch_norm_running_kernel<double> : batch_norm_running_kernel<float>;
  int channels = 0;
  for (std::size_t first = 0; first < all.size(); first += kMostRunning) {
    BatchNormRunningParameters p;
    p.mean = arguments.mean.data;
    p.variance = arguments.variance.data;
    const std::size_t count = std::min<std::size_t>(kMostRunning, all.size() - first);
    for (std::size_t i = 0; i < count; ++i) {
      const RunningBatchNorm& norm = all[first + i];
      p.batch_norms[i] = {norm.mean.data, norm.variance.data, norm.mean.dtype,    norm.variance.dtype,
                          norm.batches,   norm.momentum,      norm.is_cumulative, static_cast<int>(norm.channels),
                          channels};
      channels += static_cast<int>(norm.channels);
    }
    launch_following("update_running_statistics", kernel, static_cast<int>(count), kRunningThreads, execution.stream,
                     p);
  }
}

std::string why_not(const BatchNormRunningArguments& arguments) { return needs_device(Device::gpu, arguments.device); }

}  // namespace
}  // namespace gpu

Implementation<BatchNormRunningArguments> batch_norm_running_gpu() {
  return {"gpu", gpu::why_not, plan_of_nothing<BatchNormRunningArguments, gpu::run>};
}

}  // namespace fusedsc
