#ifdef FUSEDSC_HOPPER
#include "fusedsc/common/gpu/hopper/hopper_host.h"
#include "fusedsc/common/gpu/hopper/hopper_kernel.h"
#include "fusedsc/forward/depthwise/columns/depthwise_columns_kernel.h"
#include "fusedsc/forward/depthwise/columns/depthwise_columns_plan.h"
#include "fusedsc/forward/depthwise/depthwise_kernels.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr const char* kName = "depthwise_conv2d";
constexpr int kMostStages = 6;  ///< more are of no use

struct Instance {
  int kernel, stride, columns, input_columns;
  void (*run)(DepthwiseColumnsParameters);
  int (*block_bytes)(int stages);
};

template <int kKernel, int kStride, int kColumns>
constexpr Instance instance() {
  using Columns = DepthwiseColumns<kKernel, kStride, kColumns>;
  return {kKernel, kStride, kColumns, Columns::kInputs, hopper_kernel<Columns, 128, 4>, Columns::block_bytes};
}

const Instance kInstances[] = {
    instance<3, 1, 7>(),  instance<3, 2, 7>(),  instance<5, 1, 7>(),  instance<5, 2, 7>(),
    instance<3, 1, 14>(), instance<3, 2, 14>(), instance<5, 1, 14>(), instance<5, 2, 14>(),
};

const Instance* instance_for(const DepthwiseArguments& a, const Config& config) {
  for (const Instance& instance : kInstances) {
    if (instance.kernel == a.window.kernel[0] && instance.stride == a.window.stride[0] &&
        instance.columns == config[Knob::columns])
      return &instance;
  }
  return nullptr;
}

bool fits(const Instance& instance, const Config& config) {
  const int stages = config[Knob::stages];
  return stages >= 2 && stages <= kMostStages && instance.block_bytes(stages) <= kMemoryLimit;
}

std::string unsupported(const DepthwiseArguments& a) {
  const std::string elsewhere = why_not_on_gpu(a);
  if (!elsewhere.empty()) return elsewhere;
  if (a.prologue || a.epilogue || a.statistics) return "nothing can be fused with it";
  return why_no_columns(a.x, ConstTensorView(a.y), a.window);
}

Configs configs(const DepthwiseArguments& a) {
  Configs list;
  for (const int columns : {7, 14}) {
    for (int stages = 2; stages <= kMostStages; ++stages) {
      const Config config{{Knob::columns, columns}, {Knob::stages, stages}};
      if (fits(*instance_for(a, config), config)) list.push_back(config);
    }
  }
  return list;
}

Plan<DepthwiseArguments> plan(const DepthwiseArguments& a, const Config& config, int /*threads*/) {
  const Instance* const instance = instance_for(a, config);
  if (instance == nullptr || !fits(*instance, config)) {
    throw Unsupported(std::string(kName) + ": hopper_columns: there is no kernel with " + tuning::printed(config));
  }
  DepthwiseColumnsParameters planned;
  static_cast<DepthwiseColumnsShape&>(planned) =
      columns_shape(a.x.sizes, a.y.sizes, a.window, instance->columns, config[Knob::stages]);
  const auto memory = static_cast<std::size_t>(instance->block_bytes(planned.stages));
  cut_strips(planned, a.y.sizes, a.window, instance->columns,
             resident_blocks(instance->run, planned.kWarps * 32, memory));
  return {0, [planned, instance, memory](const DepthwiseArguments& like, const Execution& execution) {
            DepthwiseColumnsParameters p = planned;
            p.x = map_of_images(like.x, p.kChannels, instance->input_columns, 1);
            p.y = map_of_images(ConstTensorView(like.y), p.kChannels, instance->columns, 1);
            p.weight = like.weight;
            p.bias = static_cast<const float*>(like.bias.data);
            launch_following(kName, instance->run, std::int64_t{channel_groups(p)} * p.splits, p.kWarps * 32,
                             execution.stream, p, memory);
          }};
}

}  // namespace

Kernel<DepthwiseArguments> depthwise_columns() { return {"hopper_columns", unsupported, configs, plan}; }

}  // namespace fusedsc::gpu::hopper
#endif
