#ifdef FUSEDSC_HOPPER
#include <algorithm>
#include <limits>

#include "fusedsc/backward/pointwise/hopper_k_resident/pointwise_hopper_k_resident.h"
#include "fusedsc/backward/pointwise/hopper_k_resident/pointwise_tf32_k_resident_kernel.h"
#include "fusedsc/common/gpu/hopper/hopper_kernel.h"
#include "fusedsc/common/gpu/sums/partials_launch.h"
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_plan.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr const char* kName = "pointwise_conv2d_backward";

/// Kernels that were compiled, and what for.
struct Tf32GradientsInstance {
  int outputs, channels;  ///< channels: at most
  int threads, groups, positions, rows, memory_bytes;
  void (*kernel)(Tf32GradientsParameters);
};

template <int kOutputs, int kTiles, int kWarps, int kGroups>
constexpr Tf32GradientsInstance instance() {
  using Gradients = Tf32Gradients<kOutputs, kTiles, kWarps, kGroups>;
  return {kOutputs,         Gradients::kChannels,    Gradients::kThreads,     kGroups, Gradients::kPositions,
          Gradients::kRows, Gradients::kMemoryBytes, hopper_kernel<Gradients>};
}

const Tf32GradientsInstance kInstances[] = {
    instance<16, 1, 4, 2>(), instance<24, 2, 6, 2>(), instance<24, 3, 6, 2>(),
    instance<32, 3, 6, 1>(), instance<32, 4, 6, 1>(),
};

/// Channels that are missing cost as much as others: no more than a third may be.
const Tf32GradientsInstance* instance_for(std::int64_t outputs, std::int64_t channels) {
  for (const Tf32GradientsInstance& instance : kInstances) {
    if (outputs == instance.outputs && channels <= instance.channels && channels * 3 >= instance.channels * 2)
      return &instance;
  }
  return nullptr;
}

/// The launches, worked out but for addresses.
class Tf32GradientsPass {
 public:
  explicit Tf32GradientsPass(const PointwiseBackwardArguments& a)
      : instance_(instance_for(a.grad_y.sizes[1], a.x.sizes[1])) {
    p_.pixels = static_cast<int>(a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3]);
    p_.tiles = (p_.pixels + instance_->positions - 1) / instance_->positions;
    p_.channels = static_cast<int>(a.x.sizes[1]);
    p_.splits = std::min(p_.tiles, resident_blocks(instance_->kernel, instance_->threads, memory_bytes()));
    const Activation activation = a.prologue.activation;
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    p_.low = activation == Activation::identity ? -kInfinity : 0;
    p_.high = activation == Activation::relu6 ? 6 : kInfinity;
  }

  std::size_t workspace_bytes() const {
    Arena arena(nullptr);
    take_partials(arena);
    return arena.used();
  }

  void run(const PointwiseBackwardArguments& a, const Execution& execution) const {
    Arena arena(execution.workspace);
    const auto floats = [](const ConstChannelVector& vector) { return static_cast<const float*>(vector.data); };
    Tf32GradientsParameters p = p_;
    p.partials = take_partials(arena);
    p.weight = a.weight;
    p.grad_scale = floats(a.gradient_prologue.grad_scale);
    p.output_scale = floats(a.gradient_prologue.output_scale);
    p.offset = floats(a.gradient_prologue.offset);
    p.scale = floats(a.prologue.scale);
    p.shift = floats(a.prologue.shift);
    p.mean = floats(a.sums.mean);
    const auto map = [&](const auto& matrix, std::int64_t channels) {
      return map_of(matrix.data, DataType::float32, channels, p.pixels, matrix.first, 32, instance_->positions);
    };
    p.grad_y = map(activation_matrix(a.grad_y, 1, true), instance_->outputs);
    if (a.gradient_prologue) p.output = map(activation_matrix(a.gradient_prologue.output, 1, true), instance_->outputs);
    p.x = map(activation_matrix(a.x, 1, true), p.channels);
    p.grad_x = map(output_matrix(a.grad_x, 1, true), p.channels);
    launch_following(kName, instance_->kernel, p.splits, instance_->threads, execution.stream, p, memory_bytes());

    SumPartialsParameters sum(a.sums, a.x);
    sum.partials = p.partials;
    sum.splits = p.splits * instance_->groups;
    sum.taps = sum.kernel_width = instance_->outputs;
    sum.rows = instance_->rows;
    sum.channels = p.channels;
    // As a depthwise weight whose taps are the outputs.
    sum.weight = TensorView(a.grad_weight.data, DataType::float32, {p.channels, 1, 1, instance_->outputs},
                            {a.grad_weight.strides[1], 1, 1, a.grad_weight.strides[0]}, Device::gpu);
    launch_sum_partials(kName, DataType::float32, sum, execution.stream);
  }

 private:
  std::size_t memory_bytes() const { return static_cast<std::size_t>(instance_->memory_bytes); }
  float* take_partials(Arena& arena) const {
    return arena.take<float>(std::int64_t{p_.splits} * instance_->groups * instance_->rows * p_.channels);
  }

  const Tf32GradientsInstance* instance_;
  Tf32GradientsParameters p_;
};

}  // namespace

std::string why_not_tf32_k_resident(const PointwiseBackwardArguments& a) {
  const std::int64_t pixels = a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3];
  std::string reason = why_not_hopper(a.x.dtype, a.x.device, a.groups, pixels, a.allow_tf32);
  if (!reason.empty()) return reason;
  if (a.windows.channels > 0) return "the weight has channel windows";
  if (!a.prologue || !a.sums) return "it is for a prologue of x, and sums";
  if (!only_clamps(a.prologue.activation)) return "it is for activations that only clamp";
  if (!a.grad_x || !a.grad_weight || a.grad_bias) return "it computes the gradients of input and weight, and no other";
  reason = too_large_for_pointwise(a.x.sizes, a.grad_y.sizes);
  if (!reason.empty()) return reason;
  const auto suits = [](const auto& matrix) { return suits_tma(matrix, DataType::float32); };
  if (!suits(activation_matrix(a.x, 1, true)) || !suits(activation_matrix(a.grad_y, 1, true)) ||
      !suits(activation_matrix(a.gradient_prologue.output, 1, true)) || !suits(output_matrix(a.grad_x, 1, true))) {
    return kUnsuited;
  }
  for (const ConstChannelVector& vector :
       {a.gradient_prologue.grad_scale, a.gradient_prologue.output_scale, a.gradient_prologue.offset}) {
    if (reinterpret_cast<std::uintptr_t>(vector.data) % 16 != 0) return "a vector is not aligned to 16 bytes";
  }
  return instance_for(a.grad_y.sizes[1], a.x.sizes[1]) != nullptr
             ? ""
             : "there is no kernel for so many channels and outputs";
}

Plan<PointwiseBackwardArguments> plan_tf32_k_resident(const PointwiseBackwardArguments& a) {
  const Tf32GradientsPass pass(a);
  return {pass.workspace_bytes(),
          [pass](const PointwiseBackwardArguments& like, const Execution& execution) { pass.run(like, execution); }};
}

}  // namespace fusedsc::gpu::hopper
#endif
