#ifdef FUSEDSC_HOPPER
#include <algorithm>

#include "fusedsc/backward/pointwise/hopper_n_resident/pointwise_tf32_n_resident_kernel.h"
#include "fusedsc/backward/pointwise/pointwise_kernels.h"
#include "fusedsc/common/gpu/hopper/hopper_host.h"
#include "fusedsc/common/gpu/hopper/hopper_kernel.h"
#include "fusedsc/common/gpu/sums/partials_launch.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_plan.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc {
namespace gpu::hopper {
namespace {

constexpr const char* kName = "pointwise_conv2d_backward";

template <class Image>
FUSEDSC_HOPPER_KERNEL(Image::kThreads)
image_kernel(const FUSEDSC_GRID_CONSTANT Tf32NResidentParameters p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(FUSEDSC_HOST_EXECUTOR)
  Image::make(p);
#endif
}

/// Kernels that were compiled, and what for.
struct Tf32NResidentInstance {
  int channels, outputs;  ///< outputs: at most
  int threads, positions, memory_bytes, image_size, image_blocks, image_threads;
  void (*kernel)(Tf32NResidentParameters);
  void (*make_image)(Tf32NResidentParameters);
};

template <int kChannels, int kTiles>
constexpr Tf32NResidentInstance instance() {
  using NResident = Tf32NResident<kChannels, kTiles>;
  using Image = typename NResident::Image;
  return {kChannels,    NResident::kOutputs, NResident::kThreads, NResident::kPositions,    NResident::kMemoryBytes,
          Image::kSize, Image::kBlocks,      Image::kThreads,     hopper_kernel<NResident>, image_kernel<Image>};
}

/// The first that fits is taken.
const Tf32NResidentInstance kInstances[] = {instance<16, 1>(), instance<16, 2>(), instance<24, 2>(), instance<24, 3>(),
                                            instance<32, 2>(), instance<32, 3>(), instance<32, 4>()};

/// Outputs that are missing cost as much as others: no more than a third may be.
const Tf32NResidentInstance* instance_for(std::int64_t outputs, std::int64_t channels) {
  for (const Tf32NResidentInstance& instance : kInstances) {
    if (channels == instance.channels && outputs <= instance.outputs && outputs * 3 >= instance.outputs * 2)
      return &instance;
  }
  return nullptr;
}

std::string why_not(const PointwiseBackwardArguments& a) {
  std::string reason = needs_device(Device::gpu, a.x.device);
  if (!reason.empty()) return reason;
  if (a.x.dtype != DataType::float32) return std::string("it is for float32, the tensors are ") + name_of(a.x.dtype);
  if (!a.allow_tf32) return "TensorFloat-32 is not allowed";
  if (!is_hopper()) return "the GPU is no Hopper";
  if (!a.gradient_prologue || !a.gradient_prologue.output_is_of_x || a.prologue) {
    return "the gradient prologue's output is not said to be the convolution of x as it is";
  }
  if (!a.grad_x || !a.grad_weight || a.grad_bias) return "it computes the gradients of input and weight, and no other";
  if (a.groups != 1) return "there are groups";
  if (a.x.elements() == 0) return "there are no positions";
  reason = too_large_for_pointwise(a.x.sizes, a.grad_y.sizes);
  if (!reason.empty()) return reason;
  const auto suits = [](const auto& matrix) {
    return matrix.data == nullptr || (matrix.is_linear && matrix.run_bytes == 16 && matrix.first % 4 == 0);
  };
  if (!suits(activation_matrix(a.x, 1, true)) || !suits(activation_matrix(a.grad_y, 1, true)) ||
      !suits(activation_matrix(a.grad_add, 1, true)) || !suits(output_matrix(a.grad_x, 1, true))) {
    return "a tensor is not dense and channels_last, or it is not aligned to 16 bytes";
  }
  return instance_for(a.grad_y.sizes[1], a.x.sizes[1]) != nullptr
             ? ""
             : "there is no kernel for so many channels and outputs";
}

/// The launches, worked out but for addresses.
class Tf32NResidentPass {
 public:
  explicit Tf32NResidentPass(const PointwiseBackwardArguments& a)
      : instance_(instance_for(a.grad_y.sizes[1], a.x.sizes[1])) {
    p_.pixels = static_cast<int>(a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3]);
    p_.tiles = (p_.pixels + instance_->positions - 1) / instance_->positions;
    p_.outputs = static_cast<int>(a.grad_y.sizes[1]);
    p_.splits = std::min(p_.tiles, resident_blocks(instance_->kernel, instance_->threads, memory_bytes()));
  }

  std::size_t workspace_bytes() const {
    Arena arena(nullptr);
    take_image(arena);
    take_partials(arena);
    return arena.used();
  }

  void run(const PointwiseBackwardArguments& a, const Execution& execution) const {
    Arena arena(execution.workspace);
    Tf32NResidentParameters p = p_;
    p.image = take_image(arena);
    p.partials = take_partials(arena);
    p.weight = a.weight;
    p.grad_scale = static_cast<const float*>(a.gradient_prologue.grad_scale.data);
    p.output_scale = static_cast<const float*>(a.gradient_prologue.output_scale.data);
    p.offset = static_cast<const float*>(a.gradient_prologue.offset.data);
    const auto map = [&](const PointwiseMatrix& matrix, std::int64_t channels) {
      return map_of(matrix.data, DataType::float32, channels, p.pixels, matrix.first, 32, instance_->positions);
    };
    p.grad_y = map(activation_matrix(a.grad_y, 1, true), p.outputs);
    p.x = map(activation_matrix(a.x, 1, true), instance_->channels);
    p.added = static_cast<const float*>(a.grad_add.data);
    p.added_row = activation_matrix(a.grad_add, 1, true).first;
    p.grad_x = static_cast<float*>(a.grad_x.data);
    p.grad_x_row = output_matrix(a.grad_x, 1, true).first;
    launch_following(kName, instance_->make_image, instance_->image_blocks, instance_->image_threads, execution.stream,
                     p);
    launch_following(kName, instance_->kernel, p.splits, instance_->threads, execution.stream, p, memory_bytes());

    SumPartialsParameters sum;
    sum.partials = p.partials;
    sum.splits = p.splits;
    sum.taps = sum.rows = sum.kernel_width = instance_->channels;
    sum.channels = p.outputs;
    // As a depthwise weight whose taps are the channels.
    sum.weight = TensorView(a.grad_weight.data, DataType::float32, {p.outputs, 1, 1, instance_->channels},
                            {a.grad_weight.strides[0], 1, 1, a.grad_weight.strides[1]}, Device::gpu);
    launch_sum_partials(kName, DataType::float32, sum, execution.stream);
  }

 private:
  std::size_t memory_bytes() const { return static_cast<std::size_t>(instance_->memory_bytes); }
  float* take_image(Arena& arena) const { return arena.take<float>(instance_->image_size); }
  float* take_partials(Arena& arena) const {
    return arena.take<float>(std::int64_t{p_.splits} * instance_->channels * p_.outputs);
  }

  const Tf32NResidentInstance* instance_;
  Tf32NResidentParameters p_;
};

Plan<PointwiseBackwardArguments> plan_n_resident(const PointwiseBackwardArguments& a, int /*threads*/) {
  const Tf32NResidentPass pass(a);
  return {pass.workspace_bytes(),
          [pass](const PointwiseBackwardArguments& like, const Execution& execution) { pass.run(like, execution); }};
}

}  // namespace
}  // namespace gpu::hopper

Implementation<PointwiseBackwardArguments> pointwise_backward_tf32_n_resident() {
  return {"hopper_tf32_n_resident", gpu::hopper::why_not, gpu::hopper::plan_n_resident};
}

}  // namespace fusedsc
#endif
