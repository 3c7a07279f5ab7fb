#ifdef FUSEDSC_HOPPER
#include "fusedsc/forward/depthwise_columns_launch.h"

#include "fusedsc/common/gpu/depthwise_columns_plan.h"
#include "fusedsc/common/gpu/hopper_host.h"
#include "fusedsc/forward/depthwise_columns_kernel.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr const char* kName = "depthwise_conv2d";

template <int kKernel, int kStride, int kColumns>
FUSEDSC_KERNEL(128, 4)
columns_kernel(const FUSEDSC_GRID_CONSTANT DepthwiseColumnsParameters p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(FUSEDSC_HOST_EXECUTOR)  // other chips of a build have none of this
  DepthwiseColumns<kKernel, kStride, kColumns>::run(p);
#endif
}

struct Instance {
  int kernel, stride, columns, input_columns;
  void (*run)(DepthwiseColumnsParameters);
  int (*block_bytes)(int stages);
};

template <int kKernel, int kStride, int kColumns>
constexpr Instance instance() {
  using Columns = DepthwiseColumns<kKernel, kStride, kColumns>;
  return {
      kKernel, kStride, kColumns, Columns::kInputs, columns_kernel<kKernel, kStride, kColumns>, Columns::block_bytes};
}

const Instance kInstances[] = {
    instance<3, 1, 7>(),  instance<3, 2, 7>(),  instance<5, 1, 7>(),  instance<5, 2, 7>(),
    instance<3, 1, 14>(), instance<3, 2, 14>(), instance<5, 1, 14>(), instance<5, 2, 14>(),
};

const Instance* choose(const DepthwiseArguments& a) {
  if (a.prologue || a.epilogue || a.statistics) return nullptr;
  if (!why_no_columns(a.x, ConstTensorView(a.y), a.window).empty()) return nullptr;
  // Measured: with lanes left over, wide images of 3x3 windows are faster by rows.
  const std::int64_t width = a.y.sizes[3];
  if (a.window.kernel[0] == 3 && width >= 28 && a.x.sizes[1] % DepthwiseColumnsShape::kChannels != 0) return nullptr;
  const int columns = columns_of_warp(width);
  for (const Instance& instance : kInstances) {
    if (instance.kernel == a.window.kernel[0] && instance.stride == a.window.stride[0] && instance.columns == columns)
      return &instance;
  }
  return nullptr;
}

}  // namespace

std::optional<Plan<DepthwiseArguments>> plan_depthwise_columns(const DepthwiseArguments& a) {
  const Instance* instance = choose(a);
  if (instance == nullptr) return {};
  DepthwiseColumnsParameters planned;
  static_cast<DepthwiseColumnsShape&>(planned) =
      columns_shape(a.x.sizes, a.y.sizes, a.window, instance->columns, instance->columns > 7 ? 3 : 4);
  const auto memory = static_cast<std::size_t>(instance->block_bytes(planned.stages));
  cut_strips(planned, a.y.sizes, a.window, instance->columns,
             resident_blocks(instance->run, planned.kWarps * 32, memory));
  return Plan<DepthwiseArguments>{
      0, [planned, instance, memory](const DepthwiseArguments& like, const Execution& execution) {
        DepthwiseColumnsParameters p = planned;
        p.x = map_of_images(like.x, p.kChannels, instance->input_columns, 1);
        p.y = map_of_images(ConstTensorView(like.y), p.kChannels, instance->columns, 1);
        p.weight = like.weight;
        p.bias = static_cast<const float*>(like.bias.data);
        launch_following(kName, instance->run, std::int64_t{channel_groups(p)} * p.splits, p.kWarps * 32,
                         execution.stream, p, memory);
      }};
}

}  // namespace fusedsc::gpu::hopper
#endif
