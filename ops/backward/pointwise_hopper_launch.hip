#ifdef FUSEDSC_HOPPER
#include "fusedsc/common/gpu/launch.h"
#include "fusedsc/common/gpu/partials_launch.h"
#include "fusedsc/common/gpu/pointwise_hopper_plan.h"
#include "fusedsc/backward/pointwise_gpu.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc {
namespace gpu::hopper {
namespace {

constexpr const char* kName = "pointwise_conv2d_backward";

template <class Product>
__global__ void __launch_bounds__(Product::kThreads, 1) input_kernel(const __grid_constant__ PointwiseParameters p) {
  Product::run(p);
}

template <class T, int kChannels, int kTileDepth, int kGroups, bool kPrologue, EpilogueKind kKind>
constexpr PointwiseInstance instance(DataType dtype) {
  using Product = PointwiseProduct<T, kChannels, kTileDepth, kGroups, kPrologue, true, kKind>;
  return {dtype, kChannels, kTileDepth, kGroups, kPrologue, kKind, input_kernel<Product>, Product::memory_bytes};
}

const PointwiseInstance kInstances[] = {
#define F(c, d, g, p, k) instance<Float16, c, d, g, p, EpilogueKind::k>(DataType::float16)
    F(32, 32, 8, false, plain), F(32, 64, 4, false, plain), F(32, 64, 8, false, plain), F(32, 64, 2, false, plain), F(32, 64, 1, false, plain),
    F(64, 32, 4, false, plain), F(64, 64, 1, false, plain), F(64, 64, 2, false, plain), F(64, 64, 3, false, plain), F(64, 64, 4, false, plain),
    F(128, 32, 4, false, plain), F(128, 64, 3, false, plain), F(128, 64, 2, false, plain), F(192, 32, 4, false, plain), F(192, 64, 3, false, plain),
    F(32, 32, 4, true, gradient), F(32, 32, 6, true, gradient), F(32, 64, 2, true, gradient), F(32, 64, 4, true, gradient), F(64, 32, 4, true, gradient), F(64, 64, 2, true, gradient), F(64, 64, 3, true, gradient), F(128, 64, 2, true, gradient), F(128, 32, 2, true, gradient),
};

class InputPass {
 public:
  InputPass(const PointwiseBackwardArguments& a, Arena& arena, bool runs) {
    const GradientPrologue& prologue = a.gradient_prologue;
    const PointwiseProblem problem{a.x.dtype,    true, a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3], a.grad_y.sizes[1],
                                   a.x.sizes[1], 1};
    const bool seams = a.prologue || prologue || a.grad_add;
    const PointwiseMatrix other = activation_matrix(prologue.output, 1, true);
    const PointwiseMatrix x = a.prologue ? activation_matrix(a.x, 1, true) : PointwiseMatrix{};
    const PointwiseMatrix added = activation_matrix(a.grad_add, 1, true);
    p_.has_other = other.data != nullptr;
    p_.epilogue.has_x = x.data != nullptr;
    p_.epilogue.has_added = added.data != nullptr;
    launch_ = plan(kInstances, std::size(kInstances), problem, seams, seams ? EpilogueKind::gradient : EpilogueKind::plain, p_);
    p_.scale = static_cast<const float*>(prologue.grad_scale.data);
    p_.shift = static_cast<const float*>(prologue.offset.data);
    p_.other_scale = static_cast<const float*>(prologue.output_scale.data);
    p_.epilogue.scale = static_cast<const float*>(a.prologue.scale.data);
    p_.epilogue.shift = static_cast<const float*>(a.prologue.shift.data);
    p_.epilogue.mean = static_cast<const float*>(a.sums.mean.data);
    p_.epilogue.activation = a.prologue.activation;
    if (a.sums) p_.epilogue.partials = arena.take<float>(2 * p_.splits * problem.channels);
    if (!runs) return;
    const auto map = [&](const auto& matrix, std::int64_t channels, int columns) {
      return map_of(matrix, problem.dtype, channels, problem.pixels, columns);
    };
    p_.activations = map(activation_matrix(a.grad_y, 1, true), problem.depth, launch_.depth);
    p_.other = map(other, problem.depth, launch_.depth);
    p_.output = map(output_matrix(a.grad_x, 1, true), problem.channels, launch_.columns);
    p_.x = map(x, problem.channels, launch_.columns);
    p_.added = map(added, problem.channels, launch_.columns);
    p_.weight = map_of(a.weight.data, problem.dtype, problem.channels, problem.depth, a.weight.strides[0], launch_.columns,
                       launch_.depth);
  }

  void run(const PointwiseBackwardArguments& a, void* stream) const {
    gpu::launch(kName, launch_.kernel, launch_.blocks, launch_.threads, static_cast<std::size_t>(launch_.memory), stream,
                p_);
    if (!a.sums) return;
    SumPartialsParameters sum;
    sum.partials = p_.epilogue.partials;
    sum.splits = p_.splits;
    sum.rows = 2;
    sum.channels = static_cast<int>(a.x.sizes[1]);
    sum.vectors[0] = a.sums.grad.data;
    sum.vectors[1] = a.sums.grad_times_centered.data;
    if (getenv("NOMERGE")) return;
    launch_sum_partials(kName, DataType::float32, sum, stream);
  }

 private:
  PointwiseLaunch launch_;
  PointwiseParameters p_;
};

std::size_t backward(const PointwiseBackwardArguments& a, const Execution* execution) {
  Arena arena(execution != nullptr ? execution->workspace : nullptr);
  if (a.grad_x) {
    const InputPass pass(a, arena, execution != nullptr);
    if (execution != nullptr) pass.run(a, execution->stream);
  }
  return arena.used();
}

}  // namespace
}  // namespace gpu::hopper

Implementation<PointwiseBackwardArguments> pointwise_backward_hopper() {
  return {
      .name = "gpu_hopper",
      .why_not = [](const PointwiseBackwardArguments&) -> std::string { return {}; },
      .workspace_bytes = [](const PointwiseBackwardArguments& a, int) { return gpu::hopper::backward(a, nullptr); },
      .run = [](const PointwiseBackwardArguments& a, const Execution& execution) { gpu::hopper::backward(a, &execution); },
  };
}

}  // namespace fusedsc
#endif
