#include <vector>

#include "fusedsc/backward/depthwise/depthwise_kernels.h"
#include "fusedsc/backward/depthwise/direct/depthwise_direct_input_kernel.h"
#include "fusedsc/forward/depthwise/direct/depthwise_direct_plan.h"

namespace fusedsc::gpu {
namespace {

template <class T, int kKernel, int kChannels, int kRows, bool kChannelsLast>
FUSEDSC_KERNEL(kItemThreads, 1)
direct_input_kernel(DepthwiseDirectInputParameters parameters) {
  DepthwiseDirectInput<T, kKernel, kChannels, kRows, kChannelsLast>::run(parameters);
}

using Instance = DirectInstance<DepthwiseDirectInputParameters>;

template <class T, bool kChannelsLast, int kKernel, int kChannels, int kRows>
void append(std::vector<Instance>& to, DataType dtype) {
  using Kernel = DepthwiseDirectInput<T, kKernel, kChannels, kRows, kChannelsLast>;
  to.push_back({dtype,
                kKernel,
                2,
                kChannelsLast,
                {kChannels, kRows},
                Kernel::GradY::kVectors,
                direct_input_kernel<T, kKernel, kChannels, kRows, kChannelsLast>,
                Kernel::Weights::kBytes});
}

/// Vectors of up to 16 bytes, as registers allow, AMD's as well.
template <class T, int kKernel>
void append_kernel(std::vector<Instance>& to, DataType dtype) {
  constexpr int kMostChannels = (kKernel < 7 ? 16 : 8) / static_cast<int>(sizeof(T));
  append<T, true, kKernel, 1, 1>(to, dtype);
  if constexpr (kMostChannels >= 2) append<T, true, kKernel, 2, 1>(to, dtype);
  if constexpr (kMostChannels >= 4) append<T, true, kKernel, 4, 1>(to, dtype);
  if constexpr (kMostChannels >= 8) append<T, true, kKernel, 8, 1>(to, dtype);
  append<T, false, kKernel, 1, 1>(to, dtype);
  if constexpr (sizeof(T) <= 4) append<T, false, kKernel, 1, 2>(to, dtype);
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

/// Pairs of rows, or of columns, of the padded input that have any of the input.
std::int64_t pairs_of(std::int64_t size, std::int64_t padding) { return (size + padding - 1) / 2 + 1 - padding / 2; }

DirectGrid grid_of(const DepthwiseBackwardArguments& a) {
  return {a.x.sizes[0], a.x.sizes[1], pairs_of(a.x.sizes[2], a.window.padding.top),
          pairs_of(a.x.sizes[3], a.window.padding.left), a.grad_y.strides[1] < a.grad_y.strides[3]};
}

/// Calls `use` with the problem that the arguments are.
template <class Use>
auto with_problem(const DepthwiseBackwardArguments& a, const Use& use) {
  const ConstTensorView grad_x(a.grad_x);
  return use(DirectProblem{grid_of(a), a.window, a.weight, a.grad_y, grad_x});
}

std::string unsupported(const DepthwiseBackwardArguments& a) {
  const std::string elsewhere = why_not_on_gpu(a);
  if (!elsewhere.empty()) return elsewhere;
  if (!a.grad_x) return "grad_x is not wanted";
  if (a.prologue || a.gradient_prologue || a.grad_add) return "nothing can be fused with it";
  if (a.window.stride != std::array<std::int64_t, 2>{2, 2}) return "it is for a stride of 2";
  if (direct_step(a.weight) < 0) return "the weight is rotated by 180 degrees";
  return why_no_direct(a.grad_y, ConstTensorView(a.grad_x), a.weight, a.window);
}

Configs configs(const DepthwiseBackwardArguments& a) {
  return with_problem(a, [](const DirectProblem& problem) { return direct_configs(instances(), problem); });
}

Plan<DepthwiseBackwardArguments> plan(const DepthwiseBackwardArguments& a, const Config& config, int /*threads*/) {
  const Instance* const instance = with_problem(a, [&](const DirectProblem& problem) {
    return &direct_instance("depthwise_conv2d_backward", instances(), problem, config);
  });
  DepthwiseDirectInputParameters planned;
  planned.grad_y = compact(a.grad_y);
  planned.grad_x = compact(a.grad_x);
  planned.work = plan_direct_work(grid_of(a), instance->tile, static_cast<int>(size_of(a.x.dtype)));
  planned.grad_height = static_cast<int>(a.grad_y.sizes[2]);
  planned.grad_width = static_cast<int>(a.grad_y.sizes[3]);
  planned.height = static_cast<int>(a.x.sizes[2]);
  planned.width = static_cast<int>(a.x.sizes[3]);
  planned.padding_top = static_cast<int>(a.window.padding.top);
  planned.padding_left = static_cast<int>(a.window.padding.left);
  planned.first_row = planned.padding_top / 2;
  planned.first_column = planned.padding_left / 2;
  return {0, [planned, instance](const DepthwiseBackwardArguments& like, const Execution& execution) {
            DepthwiseDirectInputParameters p = planned;
            p.grad_y.data = like.grad_y.data;
            p.weight = like.weight.data;
            p.grad_x.data = like.grad_x.data;
            launch_following("depthwise_conv2d_backward", instance->run, p.work.blocks, kItemThreads, execution.stream,
                             p, spread(p.work.blocks, instance->memory));
          }};
}

}  // namespace

Kernel<DepthwiseBackwardArguments> depthwise_direct_input() { return {"gpu_direct", unsupported, configs, plan}; }

bool suits_depthwise_direct_input(const DepthwiseBackwardArguments& a) { return with_problem(a, suits_direct); }

Config depthwise_direct_input_prior(const DepthwiseBackwardArguments& a) {
  return with_problem(a, [](const DirectProblem& problem) { return direct_prior_config(instances(), problem); });
}

}  // namespace fusedsc::gpu
