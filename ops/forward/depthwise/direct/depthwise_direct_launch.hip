#include <vector>

#include "fusedsc/forward/depthwise/depthwise_kernels.h"
#include "fusedsc/forward/depthwise/direct/depthwise_direct_kernel.h"
#include "fusedsc/forward/depthwise/direct/depthwise_direct_plan.h"

namespace fusedsc::gpu {
namespace {

template <class T, int kKernel, int kStride, int kChannels, int kRows, bool kChannelsLast>
FUSEDSC_KERNEL(kItemThreads, 1)
direct_kernel(DepthwiseDirectParameters parameters) {
  DepthwiseDirect<T, kKernel, kStride, kChannels, kRows, kChannelsLast>::run(parameters);
}

using Instance = DirectInstance<DepthwiseDirectParameters>;

/// kStride 0: any, where a thread has one row.
template <class T, bool kChannelsLast, int kKernel, int kChannels, int kRows, int kStride>
void append(std::vector<Instance>& to, DataType dtype) {
  constexpr int kStep = kStride > 0 ? kStride : 1;
  static_assert(kStride > 0 || kRows == 1);
  using Kernel = DepthwiseDirect<T, kKernel, kStep, kChannels, kRows, kChannelsLast>;
  to.push_back({dtype,
                kKernel,
                kStride,
                kChannelsLast,
                {kChannels, kRows},
                Kernel::X::kVectors,
                direct_kernel<T, kKernel, kStep, kChannels, kRows, kChannelsLast>,
                Kernel::Weights::kBytes});
}

/// Vectors of up to 16 bytes and two rows, as registers allow, AMD's as well.
template <class T, int kKernel, int kChannels>
void append_channels_last(std::vector<Instance>& to, DataType dtype) {
  constexpr int kBytes = kChannels * static_cast<int>(sizeof(T));
  if constexpr (kBytes <= (kKernel < 7 ? 16 : 8)) {
    append<T, true, kKernel, kChannels, 1, 0>(to, dtype);
    if constexpr (kKernel < 7 && kBytes > 2 && kBytes <= (kKernel < 5 ? 16 : 8) && sizeof(T) < 8) {
      append<T, true, kKernel, kChannels, 2, 1>(to, dtype);
      append<T, true, kKernel, kChannels, 2, 2>(to, dtype);
    }
  }
}

template <class T, int kKernel>
void append_kernel(std::vector<Instance>& to, DataType dtype) {
  append_channels_last<T, kKernel, 1>(to, dtype);
  append_channels_last<T, kKernel, 2>(to, dtype);
  append_channels_last<T, kKernel, 4>(to, dtype);
  append_channels_last<T, kKernel, 8>(to, dtype);
  append<T, false, kKernel, 1, 1, 0>(to, dtype);
  if constexpr (sizeof(T) < 8) {
    append<T, false, kKernel, 1, 2, 1>(to, dtype);
    append<T, false, kKernel, 1, 2, 2>(to, dtype);
    if constexpr (kKernel < 7) {
      append<T, false, kKernel, 1, 4, 1>(to, dtype);
      append<T, false, kKernel, 1, 4, 2>(to, dtype);
    }
  }
}

template <class T>
void append_type(std::vector<Instance>& to, DataType dtype) {
  append_kernel<T, 3>(to, dtype);
  append_kernel<T, 5>(to, dtype);
  append_kernel<T, 7>(to, dtype);
}

std::span<const Instance> instances() {
  static const std::vector<Instance> all = [] {
    std::vector<Instance> list;
    append_type<Float16>(list, DataType::float16);
    append_type<BFloat16>(list, DataType::bfloat16);
    append_type<float>(list, DataType::float32);
    append_type<double>(list, DataType::float64);
    return list;
  }();
  return all;
}

DirectGrid grid_of(const DepthwiseArguments& a) {
  return {a.y.sizes[0], a.y.sizes[1], a.y.sizes[2], a.y.sizes[3], a.x.strides[1] < a.x.strides[3]};
}

/// Calls `use` with the problem that the arguments are.
template <class Use>
auto with_problem(const DepthwiseArguments& a, const Use& use) {
  const ConstTensorView y(a.y);
  return use(DirectProblem{grid_of(a), a.window, a.weight, a.x, y});
}

std::string unsupported(const DepthwiseArguments& a) {
  const std::string elsewhere = why_not_on_gpu(a);
  if (!elsewhere.empty()) return elsewhere;
  if (a.prologue || a.epilogue || a.statistics) return "nothing can be fused with it";
  return why_no_direct(a.x, ConstTensorView(a.y), a.weight, a.window);
}

Configs configs(const DepthwiseArguments& a) {
  return with_problem(a, [](const DirectProblem& problem) { return direct_configs(instances(), problem); });
}

Plan<DepthwiseArguments> plan(const DepthwiseArguments& a, const Config& config, int /*threads*/) {
  const Instance* const instance = with_problem(a, [&](const DirectProblem& problem) {
    return &direct_instance("depthwise_conv2d", instances(), problem, config);
  });
  const Window& window = a.window;
  const int reach = instance->kernel - 1;
  DepthwiseDirectParameters planned;
  planned.x = compact(a.x);
  planned.y = compact(a.y);
  planned.work = plan_direct_work(grid_of(a), instance->tile, static_cast<int>(size_of(a.x.dtype)));
  planned.height = static_cast<int>(a.x.sizes[2]);
  planned.width = static_cast<int>(a.x.sizes[3]);
  planned.output_height = static_cast<int>(a.y.sizes[2]);
  planned.stride_height = static_cast<int>(window.stride[0]);
  planned.stride_width = static_cast<int>(window.stride[1]);
  planned.step = direct_step(a.weight);
  planned.first_row = -static_cast<int>(window.padding.top);
  planned.first_column = -static_cast<int>(window.padding.left);
  if (planned.step < 0) {
    planned.first_row += reach + (instance->tile.rows - 1) * planned.stride_height;
    planned.first_column += reach;
  }
  return {0, [planned, instance](const DepthwiseArguments& like, const Execution& execution) {
            DepthwiseDirectParameters p = planned;
            p.x.data = like.x.data;
            p.weight = lowest_address(like.weight);
            p.bias = like.bias.data;
            p.y.data = like.y.data;
            launch_following("depthwise_conv2d", instance->run, p.work.blocks, kItemThreads, execution.stream, p,
                             spread(p.work.blocks, instance->memory));
          }};
}

}  // namespace

Kernel<DepthwiseArguments> depthwise_direct() { return {"gpu_direct", unsupported, configs, plan}; }

bool suits_depthwise_direct(const DepthwiseArguments& a) { return with_problem(a, suits_direct); }

Config depthwise_direct_prior(const DepthwiseArguments& a) {
  return with_problem(a, [](const DirectProblem& problem) { return direct_prior_config(instances(), problem); });
}

}  // namespace fusedsc::gpu
