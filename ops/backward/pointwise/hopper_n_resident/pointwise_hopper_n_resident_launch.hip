#ifdef FUSEDSC_HOPPER
#include <algorithm>
#include <type_traits>

#include "fusedsc/backward/pointwise/hopper_n_resident/pointwise_hopper_n_resident_kernel.h"
#include "fusedsc/backward/pointwise/hopper_n_resident/pointwise_hopper_n_resident_wide_kernel.h"
#include "fusedsc/backward/pointwise/pointwise_kernels.h"
#include "fusedsc/common/divide_up.h"
#include "fusedsc/common/gpu/hopper/hopper_kernel.h"
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_plan.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc {
namespace gpu::hopper {
namespace {

constexpr const char* kName = "pointwise_conv2d_backward";

template <class Maker>
FUSEDSC_HOPPER_KERNEL(Maker::kThreads)
image_kernel(const PrepackParameters p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(FUSEDSC_HOST_EXECUTOR)
  Maker::run(p);
#endif
}

template <class T>
FUSEDSC_HOPPER_KERNEL(kNResidentSumThreads)
n_resident_sum_kernel(const NResidentSumParameters p) {
  sum_n_resident_partials<T>(p);
}

/// Of all instances.
constexpr int kMostChannels = 96;

template <class T, int kWide>
using ImageOf = WeightPrepacker<T, kMostChannels, kWide>;

/// Kernels that were compiled, and what for.
struct NResidentInstance {
  DataType dtype;
  int outputs, channels;  ///< at most
  int columns, wide, all_wide, last_wide, groups, slices, quads;
  void (*kernel)(PointwiseNResidentParameters);
  int (*memory)(int stages, bool has_added);
  PrepackedWeights image;
  void (*make_image)(PrepackParameters);
  void (*sum)(NResidentSumParameters);
};

template <class T, int kOutputs, int kChannels, int kColumns, int kSlices>
NResidentInstance instance(DataType dtype) {
  using Block = NResidentBlock<T, kOutputs, kChannels, kColumns, kSlices>;
  using Product =
      std::conditional_t<Block::kSharesTile, PointwiseNResidentWideProduct<Block>, PointwiseNResidentProduct<Block>>;
  return {dtype,
          kOutputs,
          kChannels,
          kColumns,
          Block::kWide,
          Block::kAllWide,
          Block::kLastWide,
          Block::kGroups,
          kSlices,
          Block::kQuads,
          hopper_kernel<Product>,
          Product::memory_bytes,
          Block::kImage,
          image_kernel<ImageOf<T, Block::kWide>>,
          n_resident_sum_kernel<T>};
}

#define FUSEDSC_BOTH(outputs, channels, columns, slices)                    \
  instance<Float16, outputs, channels, columns, slices>(DataType::float16), \
      instance<BFloat16, outputs, channels, columns, slices>(DataType::bfloat16)

/// The first that fits is taken.
const std::vector<NResidentInstance>& instances() {
  static const std::vector<NResidentInstance> all = {
      // outputs, channels, of which a block has so many; warpgroups with positions of their own, or one for two
      FUSEDSC_BOTH(48, 16, 16, 4),  FUSEDSC_BOTH(96, 16, 16, 4),  FUSEDSC_BOTH(96, 24, 24, 4),
      FUSEDSC_BOTH(144, 24, 24, 3), FUSEDSC_BOTH(192, 32, 32, 3), FUSEDSC_BOTH(128, 48, 48, 1),
      FUSEDSC_BOTH(256, 48, 48, 1), FUSEDSC_BOTH(384, 64, 64, 1), FUSEDSC_BOTH(192, 96, 48, 1),
      FUSEDSC_BOTH(256, 96, 48, 1), FUSEDSC_BOTH(384, 96, 48, 1), FUSEDSC_BOTH(576, 96, 48, 1),
  };
  return all;
}

/// Outputs that are missing cost as much as others: no more than a third may be.
const NResidentInstance* instance_for(DataType dtype, std::int64_t outputs, std::int64_t channels) {
  for (const NResidentInstance& instance : instances()) {
    const bool fits = outputs <= instance.outputs && channels <= instance.channels;
    if (instance.dtype == dtype && fits && outputs * 3 >= instance.outputs * 2) return &instance;
  }
  return nullptr;
}

std::string why_not(const PointwiseBackwardArguments& a) {
  const std::int64_t pixels = a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3];
  std::string reason = why_not_hopper(a.x.dtype, a.x.device, a.groups, pixels);
  if (!reason.empty()) return reason;
  if (!a.gradient_prologue || !a.gradient_prologue.output_is_of_x || a.prologue) {
    return "the gradient prologue's output is not said to be the convolution of x as it is";
  }
  if (!a.grad_x || !a.grad_weight || a.grad_bias) return "it computes the gradients of input and weight, and no other";
  reason = too_large_for_pointwise(a.x.sizes, a.grad_y.sizes);
  if (!reason.empty()) return reason;
  const auto suits = [](const ConstTensorView& view) { return suits_tma(activation_matrix(view, 1, true)); };
  if (!suits(a.x) || !suits(a.grad_y) || !suits(a.grad_add) || !suits_tma(output_matrix(a.grad_x, 1, true)) ||
      !suits_tma(weight_matrix(a.weight, 1)) || a.x.sizes[1] % 8 != 0 || a.grad_y.sizes[1] % 8 != 0 ||
      a.grad_weight.strides[1] != 1 || a.grad_weight.strides[0] % 2 != 0 ||
      reinterpret_cast<std::uintptr_t>(a.grad_weight.data) % 4 != 0) {
    return kUnsuited;
  }
  return instance_for(a.x.dtype, a.grad_y.sizes[1], a.x.sizes[1]) != nullptr
             ? ""
             : "there is no kernel for so many channels and outputs";
}

/// The launches, worked out but for addresses.
class NResidentPass {
 public:
  explicit NResidentPass(const PointwiseBackwardArguments& a)
      : instance_(*instance_for(a.x.dtype, a.grad_y.sizes[1], a.x.sizes[1])) {
    p_.pixels = static_cast<int>(a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3]);
    p_.pixel_tiles = static_cast<int>(divide_up(p_.pixels, 64));
    p_.outputs = static_cast<int>(a.grad_y.sizes[1]);
    p_.channels = static_cast<int>(a.x.sizes[1]);
    p_.has_added = static_cast<bool>(a.grad_add);
    p_.parts = static_cast<int>(divide_up(p_.channels, instance_.columns));
    p_.splits = static_cast<int>(
        std::min<std::int64_t>(std::max(multiprocessors() / p_.parts, 1), divide_up(p_.pixel_tiles, instance_.slices)));
    p_.stages = kMostStages;
    while (p_.stages > 1 && instance_.memory(p_.stages, p_.has_added) > kMemoryLimit) --p_.stages;
  }

  std::size_t workspace_bytes() const {
    Arena arena(nullptr);
    take_image(arena);
    take_partials(arena);
    return arena.used();
  }

  void run(const PointwiseBackwardArguments& a, const Execution& execution) const {
    Arena arena(execution.workspace);
    const float *grad_scale = static_cast<const float*>(a.gradient_prologue.grad_scale.data),
                *output_scale = static_cast<const float*>(a.gradient_prologue.output_scale.data),
                *offset = static_cast<const float*>(a.gradient_prologue.offset.data);
    PrepackParameters image;
    image.weight = a.weight.data;
    image.weight_row = a.weight.strides[0];
    image.grad_scale = grad_scale;
    image.output_scale = output_scale;
    image.offset = offset;
    image.outputs = p_.outputs;
    image.channels = p_.channels;
    image.columns = instance_.columns;
    image.image = instance_.image;
    image.to = take_image(arena);
    launch_following(kName, instance_.make_image, std::int64_t{p_.parts} * image.columns / ImageOf<Float16, 32>::kRun,
                     ImageOf<Float16, 32>::kThreads, execution.stream, image, ImageOf<Float16, 32>::memory_bytes());

    PointwiseNResidentParameters p = p_;
    p.image = image.to;
    p.partials = take_partials(arena);
    p.grad_scale = grad_scale;
    p.output_scale = output_scale;
    p.offset = offset;
    const auto map = [&](const auto& matrix, int channels, int columns) {
      return map_of(matrix, a.x.dtype, channels, p.pixels, columns);
    };
    p.weight = a.weight.data;
    p.weight_row = a.weight.strides[0];
    p.grad_y = map(activation_matrix(a.grad_y, 1, true), p.outputs, 64);
    p.own_x = map(activation_matrix(a.x, 1, true), p.channels, instance_.wide);
    p.last_grad_y = map(activation_matrix(a.grad_y, 1, true), p.outputs, instance_.last_wide);
    p.x = map(activation_matrix(a.x, 1, true), p.channels, instance_.all_wide);
    p.added = map(activation_matrix(a.grad_add, 1, true), p.channels, instance_.wide);
    p.grad_x = map(output_matrix(a.grad_x, 1, true), p.channels, instance_.wide);
    p.added_data = a.grad_add.data;
    p.added_row = activation_matrix(a.grad_add, 1, true).first;
    p.grad_x_data = a.grad_x.data;
    p.grad_x_row = output_matrix(a.grad_x, 1, true).first;
    launch_following(kName, instance_.kernel, std::int64_t{p.splits} * p.parts, instance_.groups * 128,
                     execution.stream, p, static_cast<std::size_t>(instance_.memory(p.stages, p.has_added)));

    NResidentSumParameters sum;
    sum.partials = p.partials;
    sum.splits = p.splits;
    sum.parts = p.parts;
    sum.quads = instance_.quads;
    sum.row_quads = instance_.columns / 8;
    sum.outputs = p.outputs;
    sum.channels = p.channels;
    while (sum.lanes < 32 && sum.lanes * 4 < sum.splits) sum.lanes *= 2;
    sum.weight = a.grad_weight.data;
    sum.weight_row = a.grad_weight.strides[0];
    launch_following(kName, instance_.sum,
                     divide_up(std::int64_t{sum.parts} * sum.quads * 128 * sum.lanes, kNResidentSumThreads),
                     kNResidentSumThreads, execution.stream, sum, kNResidentSumThreads * 16);
  }

 private:
  static constexpr int kMostStages = 6;

  unsigned char* take_image(Arena& arena) const {
    return arena.take<unsigned char>(std::int64_t{p_.parts} * instance_.image.bytes);
  }
  Aligned<float, 4>* take_partials(Arena& arena) const {
    return arena.take<Aligned<float, 4>>(std::int64_t{p_.splits} * p_.parts * instance_.quads * 128);
  }

  NResidentInstance instance_;
  PointwiseNResidentParameters p_;
};

Plan<PointwiseBackwardArguments> plan_n_resident(const PointwiseBackwardArguments& a, int /*threads*/) {
  const NResidentPass pass(a);
  return {pass.workspace_bytes(),
          [pass](const PointwiseBackwardArguments& like, const Execution& execution) { pass.run(like, execution); }};
}

}  // namespace
}  // namespace gpu::hopper

Implementation<PointwiseBackwardArguments> pointwise_backward_hopper_n_resident() {
  return {"hopper_n_resident", gpu::hopper::why_not, gpu::hopper::plan_n_resident};
}

}  // namespace fusedsc
#endif
