/// What entries of the weight gradient on Hopper GPUs share on their way from arguments to launches.
#pragma once

#include "fusedsc/backward/pointwise/hopper_weight/pointwise_hopper_weight_sum.h"
#include "fusedsc/backward/pointwise/pointwise_kernels.h"
#include "fusedsc/common/gpu/hopper/hopper_host.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc::gpu::hopper {

inline std::int64_t area_of(const PointwiseBackwardArguments& a) { return a.x.sizes[2] * a.x.sizes[3]; }

/// Whether each image is contiguous without gaps, and begins at a multiple of 16 bytes.
inline bool has_aligned_images(const ConstTensorView& view) {
  const std::int64_t area = view.sizes[2] * view.sizes[3], bytes = static_cast<std::int64_t>(size_of(view.dtype));
  return view.strides[3] == 1 && view.strides[2] == view.sizes[3] && view.strides[1] == area &&
         reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 &&
         (view.sizes[0] <= 1 || view.strides[0] * bytes % 16 == 0);
}

/// Of an entry for the weight gradient that needs such a GPU: why_not(arguments), or why that is not to be asked.
inline std::string why_not_on_hopper(const PointwiseBackwardArguments& a,
                                     std::string (*why_not)(const PointwiseBackwardArguments&)) {
  std::string reason = needs_device(Device::gpu, a.x.device);
  if (reason.empty()) reason = why_not_weight(a);
  if (!reason.empty()) return reason;
  return is_hopper() ? why_not(a) : "the GPU is not a Hopper GPU";
}

/// By a Pass that was made for a config.
template <class Pass>
Plan<PointwiseBackwardArguments> plan_weight_pass(const PointwiseBackwardArguments& a, const tuning::Config& config,
                                                  int /*threads*/) {
  const Pass pass(a, config);
  Arena arena(nullptr);
  pass.take_partials(arena);
  return {arena.used(), [pass](const PointwiseBackwardArguments& like, const Execution& execution) {
            Arena taken(execution.workspace);
            pass.run(like, taken, execution.stream);
          }};
}

template <class T, class Tiles>
FUSEDSC_KERNEL(kWeightSumThreads, 4)
sum_kernel(const WeightSumParameters<Tiles> p) {
  sum_weight_partials<T>(p);
}

/// Adds the splits' partial sums up. kHasFloats: tensors may be of float32, too.
template <bool kHasFloats, class Tiles>
void launch_weight_sum(const char* name, DataType dtype, const Tiles& tiles, int splits, void* stream) {
  const WeightSumParameters<Tiles> sum(tiles, splits);
  auto* kernel = dtype == DataType::float16 ? sum_kernel<Float16, Tiles> : sum_kernel<BFloat16, Tiles>;
  if constexpr (kHasFloats) {
    if (dtype == DataType::float32) kernel = sum_kernel<float, Tiles>;
  }
  launch_following(name, kernel, sum.blocks(), kWeightSumThreads, stream, sum, kWeightSumBytes);
}

}  // namespace fusedsc::gpu::hopper
