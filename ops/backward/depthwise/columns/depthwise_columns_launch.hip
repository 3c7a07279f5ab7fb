#ifdef FUSEDSC_HOPPER
#include "fusedsc/backward/depthwise/columns/depthwise_columns_weight_kernel.h"
#include "fusedsc/backward/depthwise/depthwise_kernels.h"
#include "fusedsc/common/gpu/hopper/hopper_host.h"
#include "fusedsc/common/gpu/hopper/hopper_kernel.h"
#include "fusedsc/common/gpu/sums/partials_launch.h"
#include "fusedsc/forward/depthwise/columns/depthwise_columns_plan.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr const char* kName = "depthwise_conv2d_backward";
constexpr int kMostStages = 6;  ///< more are of no use

struct Instance {
  int kernel, stride, columns, input_columns;
  void (*run)(DepthwiseColumnsWeightParameters);
  int (*warp_bytes)(int stages);
};

template <int kKernel, int kStride, int kColumns>
constexpr Instance instance() {
  using Columns = DepthwiseColumnsWeight<kKernel, kStride, kColumns>;
  return {kKernel,
          kStride,
          kColumns,
          Columns::kInputs,
          hopper_kernel<DepthwiseColumnsWeight<kKernel, kStride, kColumns>, 128, 4>,
          Columns::warp_bytes};
}

const Instance kInstances[] = {
    instance<3, 1, 7>(),  instance<3, 2, 7>(),  instance<5, 1, 7>(),  instance<5, 2, 7>(),
    instance<3, 1, 14>(), instance<3, 2, 14>(), instance<5, 1, 14>(), instance<5, 2, 14>(),
};

const Instance* instance_for(const DepthwiseBackwardArguments& a, const Config& config) {
  for (const Instance& instance : kInstances) {
    if (instance.kernel == a.window.kernel[0] && instance.stride == a.window.stride[0] &&
        instance.columns == config[Knob::columns])
      return &instance;
  }
  return nullptr;
}

int memory_of(const Instance& instance, int stages) {
  return WarpStages::block_bytes(DepthwiseColumnsShape::kWarps, instance.warp_bytes(stages), stages);
}

bool fits(const Instance& instance, const Config& config) {
  const int stages = config[Knob::stages];
  return stages >= 2 && stages <= kMostStages && memory_of(instance, stages) <= kMemoryLimit;
}

std::string unsupported(const DepthwiseBackwardArguments& a) {
  const std::string elsewhere = why_not_on_gpu(a);
  if (!elsewhere.empty()) return elsewhere;
  if (!a.grad_weight && !a.grad_bias) return "neither grad_weight nor grad_bias is wanted";
  if (a.prologue || a.gradient_prologue) return "it has no prologues";
  return why_no_columns(a.x, a.grad_y, a.window);
}

Configs configs(const DepthwiseBackwardArguments& a) {
  Configs list;
  for (const int columns : {7, 14}) {
    for (int stages = 2; stages <= kMostStages; ++stages) {
      const Config config{{Knob::columns, columns}, {Knob::stages, stages}};
      if (fits(*instance_for(a, config), config)) list.push_back(config);
    }
  }
  return list;
}

float* take_partials(Arena& arena, const DepthwiseColumnsWeightParameters& p, int taps) {
  return arena.take<float>(std::int64_t{p.splits} * (taps + 1) * p.channels);
}

Plan<DepthwiseBackwardArguments> plan(const DepthwiseBackwardArguments& a, const Config& config, int /*threads*/) {
  const Instance* const instance = instance_for(a, config);
  if (instance == nullptr || !fits(*instance, config)) {
    throw Unsupported(std::string(kName) + ": hopper_columns: there is no kernel with " + tuning::printed(config));
  }
  DepthwiseColumnsWeightParameters planned;
  static_cast<DepthwiseColumnsShape&>(planned) =
      columns_shape(a.x.sizes, a.grad_y.sizes, a.window, instance->columns, config[Knob::stages]);
  const int taps = instance->kernel * instance->kernel;
  const auto memory = static_cast<std::size_t>(memory_of(*instance, planned.stages));
  cut_strips(planned, a.grad_y.sizes, a.window, instance->columns,
             resident_blocks(instance->run, planned.kWarps * 32, memory));
  Arena measured(nullptr);
  take_partials(measured, planned, taps);
  return {measured.used(),
          [planned, instance, memory, taps](const DepthwiseBackwardArguments& like, const Execution& execution) {
            Arena arena(execution.workspace);
            DepthwiseColumnsWeightParameters p = planned;
            p.x = map_of_images(like.x, p.kChannels, instance->input_columns, 1);
            p.grad_y = map_of_images(like.grad_y, p.kChannels, instance->columns, 1);
            p.partials = take_partials(arena, p, taps);
            launch_following(kName, instance->run, std::int64_t{channel_groups(p)} * p.splits, p.kWarps * 32,
                             execution.stream, p, memory);
            SumPartialsParameters sum;
            sum.partials = p.partials;
            sum.splits = p.splits;
            sum.taps = taps;
            sum.kernel_width = instance->kernel;
            sum.rows = taps + 1;
            sum.channels = p.channels;
            sum.weight = like.grad_weight;
            sum.bias = like.grad_bias.data;
            sum.lets_next_start = true;
            launch_sum_partials(kName, like.x.dtype, sum, execution.stream);
          }};
}

}  // namespace

Kernel<DepthwiseBackwardArguments> depthwise_columns_weight() { return {"hopper_columns", unsupported, configs, plan}; }

}  // namespace fusedsc::gpu::hopper
#endif
