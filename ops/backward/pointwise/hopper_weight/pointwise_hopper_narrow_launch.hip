#ifdef FUSEDSC_HOPPER
#include <algorithm>
#include <limits>

#include "fusedsc/backward/pointwise/hopper/pointwise_hopper_parameters.h"
#include "fusedsc/backward/pointwise/hopper_weight/pointwise_hopper_narrow.h"
#include "fusedsc/backward/pointwise/hopper_weight/pointwise_hopper_warp_sliced_k.h"
#include "fusedsc/backward/pointwise/hopper_weight/pointwise_hopper_weight_pass.h"
#include "fusedsc/common/divide_up.h"
#include "fusedsc/common/gpu/hopper/hopper_kernel.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_launches.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_plan.h"

namespace fusedsc {
namespace gpu::hopper {
namespace {

constexpr const char* kName = "pointwise_conv2d_backward";

template <class T, bool kPositionsInner, int kColumnTiles>
constexpr NarrowInstance instance(DataType dtype) {
  using Product = NarrowProduct<T, kPositionsInner, kColumnTiles>;
  return {dtype, kPositionsInner, kColumnTiles, Product::kThreads, hopper_kernel<Product>, Product::memory_bytes};
}

#define FUSEDSC_ALL(columns)                                                                                    \
  instance<Float16, false, columns>(DataType::float16), instance<BFloat16, false, columns>(DataType::bfloat16), \
      instance<Float16, true, columns>(DataType::float16), instance<BFloat16, true, columns>(DataType::bfloat16)

const NarrowInstance kInstances[] = {FUSEDSC_ALL(2), FUSEDSC_ALL(3), FUSEDSC_ALL(4), FUSEDSC_ALL(5)};

constexpr int kMostStages = 8;
/// Of a block; the rest is for the second kernel's, which wait beside it.
constexpr int kMemory = 200 * 1024;

bool has_positions_inner(const PointwiseBackwardArguments& a) { return !channels_inner(a.x, a.grad_y); }

const NarrowInstance* instance_for(const PointwiseBackwardArguments& a) {
  const std::int64_t slim = std::min(a.x.sizes[1], a.grad_y.sizes[1]);
  const NarrowInstance* best = nullptr;
  for (const NarrowInstance& instance : kInstances) {
    if (instance.dtype != a.x.dtype || instance.positions_inner != has_positions_inner(a)) continue;
    if (instance.column_tiles * 8 < slim) continue;
    if (best == nullptr || instance.column_tiles < best->column_tiles) best = &instance;
  }
  return best;
}

}  // namespace

std::string NarrowWeightPass::why_not(const PointwiseBackwardArguments& a) {
  if (!a.grad_weight) return "the weight gradient is not wanted";
  if (a.grad_bias) return "the bias gradient is wanted";
  if (a.prologue || a.gradient_prologue) return "there is a prologue";
  if (a.groups != 1 || a.windows.channels > 0) return "there are groups or windows";
  if (size_of(a.x.dtype) != 2) return "the tensors are not of 16 bits";
  if (a.x.elements() == 0 || a.grad_y.elements() == 0) return "a tensor is empty";
  const TensorView& weight = a.grad_weight;
  if (weight.strides[1] != 1 || weight.strides[0] % 2 != 0 || reinterpret_cast<std::uintptr_t>(weight.data) % 4 != 0) {
    return "the weight's gradient has not its channels as neighbours, in aligned pairs";
  }
  std::string reason = too_large_for_pointwise(a.x.sizes, a.grad_y.sizes);
  if (!reason.empty()) return reason;
  const std::int64_t area = area_of(a);
  for (const ConstTensorView& view : {a.x, a.grad_y}) {
    if (view.sizes[1] % 8 != 0) return "the number of channels is no multiple of 8";
    if (reinterpret_cast<std::uintptr_t>(view.data) % 16 != 0) return "a tensor is not aligned to 16 bytes";
    if (has_positions_inner(a)) {
      if (!has_aligned_images(view) || area % 8 != 0) {
        return "an image is not dense and contiguous, or its channels are no whole runs of 16 bytes";
      }
    } else {
      const PointwiseMatrix matrix = activation_matrix(view, 1, true);
      if (!matrix.is_linear || matrix.run_bytes != 16 || matrix.first != view.sizes[1]) {
        return "a tensor is not dense and channels_last";
      }
    }
  }
  const std::int64_t slim = std::min(a.x.sizes[1], a.grad_y.sizes[1]), wide = std::max(a.x.sizes[1], a.grad_y.sizes[1]);
  if (instance_for(a) == nullptr) return std::to_string(slim) + " channels are not few";
  constexpr std::int64_t kMostWide = 256;
  if (wide > kMostWide) return std::to_string(wide) + " channels are too many for a block";
  return {};
}

namespace {

constexpr int kDepths[] = {16, 32, 64};

/// Warps with all channels of the wider tensor between them.
int warps_of(const PointwiseBackwardArguments& a) {
  return static_cast<int>(divide_up(std::max(a.x.sizes[1], a.grad_y.sizes[1]), kNarrowWarpRows));
}
int most_slices(const PointwiseBackwardArguments& a) { return instance_for(a)->threads / 32 / warps_of(a); }
/// More slices have more sums to put together; fewer do not hide each other's waits.
int usual_slices(const PointwiseBackwardArguments& a) { return std::max((most_slices(a) * 2 + 2) / 3, 1); }

/// Steps of the busiest slice.
std::int64_t rounds_of(const NarrowParameters& p) {
  return divide_up(p.steps, std::int64_t{multiprocessors()} * p.slices);
}

}  // namespace

bool NarrowWeightPass::set_cut(const PointwiseBackwardArguments& a, int slices, int depth) {
  const bool positions_inner = instance_->positions_inner;
  if (positions_inner && depth == 16) return false;
  p_.slices = slices;
  p_.depth = depth;
  for (NarrowTensor* tensor : {&p_.wide, &p_.slim}) {
    const bool in_boxes = !positions_inner && tensor->channels % kNarrowBoxChannels == 0;
    tensor->boxes = in_boxes ? tensor->channels / kNarrowBoxChannels : 0;
    tensor->pitch = in_boxes ? 128 : tensor->channels * 2;
    constexpr std::int64_t kAlignment = 1024;  // of swizzled runs
    tensor->bytes = static_cast<int>(divide_up(std::int64_t{depth} * tensor->channels * 2, kAlignment) * kAlignment);
  }
  const std::int64_t image_steps = divide_up(p_.positions, depth);
  p_.steps = static_cast<int>(positions_inner ? a.x.sizes[0] * image_steps : image_steps);
  p_.image_steps = static_cast<int>(image_steps);
  p_.stages = static_cast<int>(std::min<std::int64_t>(kMostStages, rounds_of(p_)));
  while (p_.stages > 1 && instance_->memory(p_) > kMemory) --p_.stages;
  return instance_->memory(p_) <= kMemoryLimit;
}

tuning::Config NarrowWeightPass::config() const {
  return {{tuning::Knob::groups, p_.slices}, {tuning::Knob::depth, p_.depth}};
}

tuning::Configs NarrowWeightPass::configs(const PointwiseBackwardArguments& a) {
  tuning::Configs configs;
  NarrowWeightPass pass(a);
  const int most = most_slices(a);
  for (const int slices : {usual_slices(a), most, (most + 1) / 2, 1}) {
    for (const int depth : kDepths) {
      if (slices < 1 || !pass.set_cut(a, slices, depth)) continue;
      if (std::find(configs.begin(), configs.end(), pass.config()) == configs.end()) configs.push_back(pass.config());
    }
  }
  return configs;
}

NarrowWeightPass::NarrowWeightPass(const PointwiseBackwardArguments& a, const tuning::Config& config)
    : instance_(instance_for(a)), is_output_wide_(a.grad_y.sizes[1] > a.x.sizes[1]) {
  p_.wide.channels = static_cast<int>(is_output_wide_ ? a.grad_y.sizes[1] : a.x.sizes[1]);
  p_.slim.channels = static_cast<int>(is_output_wide_ ? a.x.sizes[1] : a.grad_y.sizes[1]);
  p_.positions = static_cast<int>(instance_->positions_inner ? area_of(a) : a.x.sizes[0] * area_of(a));
  p_.warps = warps_of(a);
  if (config != tuning::Config()) {
    const int slices = config[tuning::Knob::groups], depth = config[tuning::Knob::depth];
    const bool is_depth = std::find(std::begin(kDepths), std::end(kDepths), depth) != std::end(kDepths);
    const bool fits = is_depth && slices >= 1 && slices <= std::max(most_slices(a), 1) && set_cut(a, slices, depth);
    if (!fits || this->config() != config) throw_no_tile(kName, "hopper_narrow", config);
  } else {
    // As many positions to a step as leave few slices idle in the last one.
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    int best = kDepths[0];
    for (const int depth : kDepths) {
      constexpr int kStart = 4;  // of a step, in positions
      if (!set_cut(a, usual_slices(a), depth) || rounds_of(p_) * (depth + kStart) >= least) continue;
      least = rounds_of(p_) * (depth + kStart);
      best = depth;
    }
    set_cut(a, usual_slices(a), best);
  }
  const int size = multiprocessors();
  blocks_ = static_cast<int>(std::min<std::int64_t>(size, divide_up(p_.steps, p_.slices)));
  p_.by_image_steps = Divisor(static_cast<std::uint32_t>(p_.image_steps));
  NarrowTiles& tiles = p_.tiles;
  tiles.outputs = static_cast<int>(a.grad_y.sizes[1]);
  tiles.channels = static_cast<int>(a.x.sizes[1]);
  tiles.rows = p_.warps * kNarrowWarpRows;
  tiles.columns = instance_->column_tiles * 8;
  tiles.threads = p_.warps * 32;
  tiles.column_tiles = instance_->column_tiles;
  tiles.is_output_wide = is_output_wide_;
  tiles.weight_row = a.grad_weight.strides[0];
}

Four* NarrowWeightPass::take_partials(Arena& arena) const {
  return blocks_ > 1 ? arena.take<Four>(std::int64_t{blocks_} * p_.tiles.fours()) : nullptr;
}

void NarrowWeightPass::run(const PointwiseBackwardArguments& a, Arena& arena, void* stream) const {
  NarrowParameters p = p_;
  const auto set = [&](NarrowTensor& tensor, const ConstTensorView& view) {
    tensor.data = view.data;
    if (instance_->positions_inner) {
      const std::int64_t area = area_of(a);
      tensor.map = map_of_images(
          {view.data, view.dtype, {1, area, view.sizes[0], tensor.channels}, {0, 1, view.strides[0], area}}, p.depth,
          tensor.channels, 1, 1, true);
    } else if (tensor.boxes > 0) {
      tensor.map =
          map_of(view.data, view.dtype, tensor.channels, p.positions, tensor.channels, kNarrowBoxChannels, p.depth);
    }
  };
  set(p.wide, is_output_wide_ ? a.grad_y : a.x);
  set(p.slim, is_output_wide_ ? a.x : a.grad_y);
  p.tiles.weight = a.grad_weight.data;
  p.tiles.partials = take_partials(arena);
  launch_following(kName, instance_->kernel, blocks_, p.slices * p.warps * 32, stream, p,
                   spread(blocks_, static_cast<std::size_t>(instance_->memory(p))));
  if (blocks_ == 1) return;
  launch_weight_sum<false>(kName, a.x.dtype, p.tiles, blocks_, stream);
}

}  // namespace gpu::hopper

/// Of a channels_last tensor others have tiles of 64 outputs and 32 channels; of a contiguous one such of 32 channels
/// of each, and of small ones more of these than fit: with every channel in every block, what the blocks leave of their
/// sums is as much as the tensors.
bool suits_pointwise_narrow(const PointwiseBackwardArguments& a) {
  using namespace gpu::hopper;
  const std::int64_t channels = a.x.sizes[1], outputs = a.grad_y.sizes[1], slim = std::min(channels, outputs);
  // Whose sums take longer here than their products.
  const std::int64_t few_positions = has_positions_inner(a) ? 1 << 11 : slim > 24 ? 14'000 : 7'000;
  if (a.x.sizes[0] * area_of(a) < few_positions) return false;
  if (!has_positions_inner(a)) return outputs % 64 != 0 || channels % 32 != 0;
  return slim <= 16 || (slim > 32 && !are_small_for_warp_sliced_k(a)) || !WarpSlicedKWeightPass::why_not(a).empty();
}

tuning::Kernel<PointwiseBackwardArguments> pointwise_backward_hopper_narrow() {
  using namespace gpu::hopper;
  return {"hopper_narrow",
          [](const PointwiseBackwardArguments& a) { return why_not_on_hopper(a, NarrowWeightPass::why_not); },
          NarrowWeightPass::configs, plan_weight_pass<NarrowWeightPass>};
}

tuning::Config pointwise_backward_hopper_narrow_prior(const PointwiseBackwardArguments& a) {
  return gpu::hopper::NarrowWeightPass(a).config();
}

}  // namespace fusedsc
#endif
