#ifdef FUSEDSC_HOPPER
#include <algorithm>
#include <type_traits>

#include "fusedsc/backward/pointwise/hopper/pointwise_hopper_one_pass.h"
#include "fusedsc/backward/pointwise/hopper_n_resident/pointwise_hopper_n_resident_kernel.h"
#include "fusedsc/backward/pointwise/hopper_n_resident/pointwise_hopper_n_resident_wide_kernel.h"
#include "fusedsc/backward/pointwise/hopper_n_resident/pointwise_tf32_n_resident_kernel.h"
#include "fusedsc/backward/pointwise/pointwise_kernels.h"
#include "fusedsc/common/divide_up.h"
#include "fusedsc/common/gpu/hopper/hopper_kernel.h"
#include "fusedsc/common/gpu/sums/partials_launch.h"
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_plan.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc {
namespace gpu::hopper {
namespace {

constexpr const char* kName = "pointwise_conv2d_backward";

template <class Maker, class Parameters>
FUSEDSC_HOPPER_KERNEL(Maker::kThreads)
image_kernel(const FUSEDSC_GRID_CONSTANT Parameters p) {
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
          image_kernel<ImageOf<T, Block::kWide>, PrepackParameters>,
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

/// Likewise of TF32.
struct Tf32NResidentInstance {
  int outputs, channels;  ///< outputs: at most
  int threads, positions, memory_bytes, image_size, image_blocks, image_threads;
  void (*kernel)(Tf32NResidentParameters);
  void (*make_image)(Tf32NResidentParameters);
};

template <int kChannels, int kTiles>
constexpr Tf32NResidentInstance tf32_instance() {
  using NResident = Tf32NResident<kChannels, kTiles>;
  using Image = typename NResident::Image;
  return {NResident::kOutputs,      kChannels,
          NResident::kThreads,      NResident::kPositions,
          NResident::kMemoryBytes,  Image::kSize,
          Image::kBlocks,           Image::kThreads,
          hopper_kernel<NResident>, image_kernel<Image, Tf32NResidentParameters>};
}

const Tf32NResidentInstance kTf32Instances[] = {tf32_instance<16, 1>(), tf32_instance<16, 2>(), tf32_instance<24, 2>(),
                                                tf32_instance<24, 3>(), tf32_instance<32, 2>(), tf32_instance<32, 3>(),
                                                tf32_instance<32, 4>()};

/// Outputs that are missing cost as much as others: no more than a third may be.
bool fits(std::int64_t outputs, int most) { return outputs <= most && outputs * 3 >= std::int64_t{most} * 2; }

const NResidentInstance* instance_for(const PointwiseBackwardArguments& a) {
  for (const NResidentInstance& instance : instances()) {
    const bool has_all = instance.dtype == a.x.dtype && a.x.sizes[1] <= instance.channels;
    if (has_all && fits(a.grad_y.sizes[1], instance.outputs)) return &instance;
  }
  return nullptr;
}

const Tf32NResidentInstance* tf32_instance_for(const PointwiseBackwardArguments& a) {
  for (const Tf32NResidentInstance& instance : kTf32Instances) {
    if (a.x.sizes[1] == instance.channels && fits(a.grad_y.sizes[1], instance.outputs)) return &instance;
  }
  return nullptr;
}

bool is_tf32(const PointwiseBackwardArguments& a) { return a.x.dtype == DataType::float32; }

std::string why_not(const PointwiseBackwardArguments& a) {
  const std::int64_t pixels = a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3];
  std::string reason = why_not_hopper(a.x.dtype, a.x.device, a.groups, pixels, a.allow_tf32);
  if (!reason.empty()) return reason;
  if (!a.gradient_prologue || !a.gradient_prologue.output_is_of_x || a.prologue) {
    return "the gradient prologue's output is not said to be the convolution of x as it is";
  }
  if (!a.grad_x || !a.grad_weight || a.grad_bias) return "it computes the gradients of input and weight, and no other";
  reason = too_large_for_pointwise(a.x.sizes, a.grad_y.sizes);
  if (!reason.empty()) return reason;
  const auto suits = [&](const auto& matrix) { return suits_tma(matrix, a.x.dtype); };
  const bool has_pairs = a.x.sizes[1] % 8 == 0 && a.grad_y.sizes[1] % 8 == 0 && suits(weight_matrix(a.weight, 1)) &&
                         a.grad_weight.strides[1] == 1 && a.grad_weight.strides[0] % 2 == 0 &&
                         reinterpret_cast<std::uintptr_t>(a.grad_weight.data) % 4 == 0;
  if (!suits(activation_matrix(a.x, 1, true)) || !suits(activation_matrix(a.grad_y, 1, true)) ||
      !suits(activation_matrix(a.grad_add, 1, true)) || !suits(output_matrix(a.grad_x, 1, true)) ||
      (!is_tf32(a) && !has_pairs)) {
    return kUnsuited;
  }
  const bool has_kernel = is_tf32(a) ? tf32_instance_for(a) != nullptr : instance_for(a) != nullptr;
  return has_kernel ? "" : "there is no kernel for so many channels and outputs";
}

/// a, b, c of grad = a * grad_y + b * output + c.
template <class Parameters>
void set_vectors(Parameters& p, const GradientPrologue& prologue) {
  p.grad_scale = static_cast<const float*>(prologue.grad_scale.data);
  p.output_scale = static_cast<const float*>(prologue.output_scale.data);
  p.offset = static_cast<const float*>(prologue.offset.data);
}

/// The launches of 16 bits, worked out but for addresses.
class NResidentPass {
 public:
  explicit NResidentPass(const PointwiseBackwardArguments& a) : instance_(*instance_for(a)) {
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

  void run(const PointwiseBackwardArguments& a, const Execution& execution) const {
    Arena arena(execution.workspace);
    PrepackParameters image;
    image.weight = a.weight.data;
    image.weight_row = a.weight.strides[0];
    set_vectors(image, a.gradient_prologue);
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
    set_vectors(p, a.gradient_prologue);
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

  unsigned char* take_image(Arena& arena) const {
    return arena.take<unsigned char>(std::int64_t{p_.parts} * instance_.image.bytes);
  }
  Aligned<float, 4>* take_partials(Arena& arena) const {
    return arena.take<Aligned<float, 4>>(std::int64_t{p_.splits} * p_.parts * instance_.quads * 128);
  }

 private:
  static constexpr int kMostStages = 6;

  NResidentInstance instance_;
  PointwiseNResidentParameters p_;
};

/// Likewise of TF32.
class Tf32NResidentPass {
 public:
  explicit Tf32NResidentPass(const PointwiseBackwardArguments& a) : instance_(tf32_instance_for(a)) {
    p_.pixels = static_cast<int>(a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3]);
    p_.tiles = (p_.pixels + instance_->positions - 1) / instance_->positions;
    p_.outputs = static_cast<int>(a.grad_y.sizes[1]);
    p_.splits = std::min(p_.tiles, resident_blocks(instance_->kernel, instance_->threads, memory_bytes()));
  }

  void run(const PointwiseBackwardArguments& a, const Execution& execution) const {
    Arena arena(execution.workspace);
    Tf32NResidentParameters p = p_;
    p.image = take_image(arena);
    p.partials = take_partials(arena);
    p.weight = a.weight;
    set_vectors(p, a.gradient_prologue);
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

  float* take_image(Arena& arena) const { return arena.take<float>(instance_->image_size); }
  float* take_partials(Arena& arena) const {
    return arena.take<float>(std::int64_t{p_.splits} * instance_->channels * p_.outputs);
  }

 private:
  std::size_t memory_bytes() const { return static_cast<std::size_t>(instance_->memory_bytes); }

  const Tf32NResidentInstance* instance_;
  Tf32NResidentParameters p_;
};

template <class Pass>
Plan<PointwiseBackwardArguments> plan_by(const Pass& pass) {
  Arena arena(nullptr);
  pass.take_image(arena);
  pass.take_partials(arena);
  return {arena.used(),
          [pass](const PointwiseBackwardArguments& like, const Execution& execution) { pass.run(like, execution); }};
}

Plan<PointwiseBackwardArguments> plan_n_resident(const PointwiseBackwardArguments& a, int /*threads*/) {
  return is_tf32(a) ? plan_by(Tf32NResidentPass(a)) : plan_by(NResidentPass(a));
}

}  // namespace
}  // namespace gpu::hopper

bool suits_pointwise_n_resident(const PointwiseBackwardArguments& a) { return gpu::hopper::has_tiles_for_all(a); }

Implementation<PointwiseBackwardArguments> pointwise_backward_hopper_n_resident() {
  return {"hopper_n_resident", gpu::hopper::why_not, gpu::hopper::plan_n_resident};
}

}  // namespace fusedsc
#endif
