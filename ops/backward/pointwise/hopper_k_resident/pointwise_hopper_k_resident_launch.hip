#ifdef FUSEDSC_HOPPER
#include <algorithm>
#include <span>

#include "fusedsc/backward/pointwise/hopper/pointwise_hopper_one_pass.h"
#include "fusedsc/backward/pointwise/hopper/pointwise_hopper_prologue_pass.h"
#include "fusedsc/backward/pointwise/hopper_k_resident/pointwise_hopper_k_resident.h"
#include "fusedsc/backward/pointwise/hopper_k_resident/pointwise_hopper_k_resident_sum.h"
#include "fusedsc/backward/pointwise/hopper_k_resident/pointwise_hopper_k_resident_window_sum.h"
#include "fusedsc/backward/pointwise/pointwise_kernels.h"
#include "fusedsc/common/divide_up.h"
#include "fusedsc/common/gpu/hopper/hopper_kernel.h"
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_plan.h"

namespace fusedsc {
namespace gpu::hopper {
namespace {

constexpr const char* kName = "pointwise_conv2d_backward";
constexpr int kTile = 64;      ///< channels and rows of a tile
constexpr int kPairBytes = 4;  ///< of a weight's neighbours, which threads read together where filters have windows

template <class T>
FUSEDSC_KERNEL(kSumWarps * 32, 1)
sum_kernel(GradientsSumParameters p) {
  sum_gradients<T>(p);
}

template <class T>
FUSEDSC_KERNEL(kWindowSumThreads, 1)
window_sum_kernel(GradientsWindowSumParameters p) {
  sum_windows<T>(p);
}

template <class T, int kDepth, int kSharing, int kSlices, bool kHasOutput, bool kPlain, int kWindows = 0>
constexpr PointwiseGradientsInstance instance(DataType dtype) {
  using Gradients = PointwiseGradients<T, kDepth, kSharing, kSlices, kHasOutput, kPlain, kWindows>;
  return {dtype,
          kHasOutput,
          kPlain,
          kWindows,
          kDepth,
          kSharing,
          kSlices,
          Gradients::kThreads,
          Gradients::kWide,
          hopper_kernel<Gradients>,
          Gradients::memory_bytes};
}

#define FUSEDSC_BOTH(depth, sharing, slices, has_output, plain)                    \
  instance<Float16, depth, sharing, slices, has_output, plain>(DataType::float16), \
      instance<BFloat16, depth, sharing, slices, has_output, plain>(DataType::bfloat16)
#define FUSEDSC_OF_WINDOWS(windows)                                            \
  instance<Float16, 128, 1, 2, false, true, windows>(DataType::float16),       \
      instance<BFloat16, 128, 1, 2, false, true, windows>(DataType::bfloat16), \
      instance<Float16, 256, 1, 2, false, true, windows>(DataType::float16),   \
      instance<BFloat16, 256, 1, 2, false, true, windows>(DataType::bfloat16)

/// Outputs; warpgroups that share positions; how often. Of many outputs, the gradient prologue is always
/// another kernel's.
const PointwiseGradientsInstance kInstances[] = {FUSEDSC_BOTH(32, 1, 3, true, false),
                                                 FUSEDSC_BOTH(32, 3, 1, true, false),
                                                 FUSEDSC_BOTH(32, 1, 3, false, false),
                                                 FUSEDSC_BOTH(64, 1, 2, false, false),
                                                 FUSEDSC_BOTH(96, 1, 2, false, false),
                                                 FUSEDSC_BOTH(160, 1, 2, false, false),
                                                 FUSEDSC_BOTH(128, 1, 2, false, true),
                                                 FUSEDSC_BOTH(256, 1, 2, false, true),
                                                 FUSEDSC_OF_WINDOWS(4),
                                                 FUSEDSC_OF_WINDOWS(8),
                                                 FUSEDSC_OF_WINDOWS(16),
                                                 FUSEDSC_BOTH(320, 1, 2, false, false)};

bool is_plain(const PointwiseBackwardArguments& a) { return !a.prologue && !a.gradient_prologue; }

/// Positions that lie in a row together, so that it has 64 channels. They are of one image: the zeros beside the
/// weights are multiplied, too, and make a NaN of a neighbour's.
int fold_of(const PointwiseBackwardArguments& a) {
  const std::int64_t channels = a.x.sizes[1], outputs = a.grad_y.sizes[1];
  const std::int64_t pixels = a.x.sizes[2] * a.x.sizes[3], fold = kTile / channels;
  const auto is_dense = [](const auto& matrix, std::int64_t columns) {
    return matrix.data == nullptr || matrix.first == columns;
  };
  const bool folds = channels < kTile && kTile % channels == 0 && pixels % fold == 0 &&
                     fold * outputs <= kInstances[std::size(kInstances) - 1].depth &&
                     is_dense(activation_matrix(a.x, 1, true), channels) &&
                     is_dense(output_matrix(a.grad_x, 1, true), channels) &&
                     is_dense(activation_matrix(a.grad_y, 1, true), outputs) &&
                     is_dense(activation_matrix(a.gradient_prologue.output, 1, true), outputs);
  return folds ? static_cast<int>(fold) : 1;
}

/// How many different windows filters have, if those share half of their channels with the next one, and as many
/// filters share each; else 0.
int windows_of(const PointwiseBackwardArguments& a) {
  const SlidingChannels& windows = a.windows;
  const bool are_halves = is_plain(a) && windows.channels > 0 && windows.width == 2 * windows.step &&
                          windows.channels == windows.cycle * windows.step && a.weight.sizes[0] % windows.cycle == 0 &&
                          a.grad_weight.strides[1] == 1;
  const bool has_kernel = windows.cycle == 4 || windows.cycle == 8 || windows.cycle == 16;
  return are_halves && has_kernel && WeightSource(a.weight, windows).piece > 1 ? static_cast<int>(windows.cycle) : 0;
}

/// The one that multiplies least; null: none is large enough. Groups share positions where a block has all channels
/// then, and its last tile would be too narrow to be worth blocks of its own.
const PointwiseGradientsInstance* find_instance(const PointwiseBackwardArguments& a) {
  const int fold = fold_of(a);
  const std::int64_t depth = fold * a.grad_y.sizes[1], columns = fold * a.x.sizes[1];
  const bool plain = is_plain(a);
  const int windows = windows_of(a);
  const std::int64_t sharing = plain || columns % kTile == 0 ? 1 : divide_up(columns, kTile);
  const PointwiseGradientsInstance* best = nullptr;
  for (const PointwiseGradientsInstance& instance : kInstances) {
    const bool fits = instance.dtype == a.x.dtype && instance.plain == plain && instance.windows == windows &&
                      (!instance.has_output || a.gradient_prologue) && depth <= instance.depth;
    if (!fits || (best != nullptr && (best->depth < instance.depth || best->has_output != instance.has_output)))
      continue;
    if (best == nullptr || instance.sharing == sharing) best = &instance;
  }
  return best;
}

}  // namespace

std::string PointwiseGradientsPass::why_not(const PointwiseBackwardArguments& a) {
  const std::int64_t positions = a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3];
  std::string reason = why_not_hopper(a.x.dtype, a.x.device, a.groups, positions);
  if (reason.empty()) reason = too_large_for_pointwise(a.x.sizes, a.grad_y.sizes);
  if (!reason.empty()) return reason;
  if (!a.grad_x || !a.grad_weight || a.grad_bias) return "it computes the gradients of input and weight, and no other";
  if (a.grad_add) return "something is added to the input gradient";
  if (!a.prologue && !is_plain(a)) return "it is for a prologue of x, or none at all";
  // Over few positions most of a gradient cancels in BatchNorm's, and here the terms that do are rounded one by one.
  if (a.gradient_prologue && positions < kTileRows) return "there are few positions";
  const bool has_windows = a.windows.channels > 0;
  const auto suits = [](const auto& matrix) { return suits_tma(matrix); };
  if ((has_windows && !suits_weight(a.weight, a.windows)) || (!has_windows && !suits(weight_matrix(a.weight, 1))) ||
      !suits(activation_matrix(a.x, 1, true)) || !suits(activation_matrix(a.grad_y, 1, true)) ||
      !suits(activation_matrix(a.gradient_prologue.output, 1, true)) || !suits(output_matrix(a.grad_x, 1, true)) ||
      a.x.sizes[1] % 8 != 0 || a.grad_y.sizes[1] % 8 != 0) {
    return kUnsuited;
  }
  return find_instance(a) != nullptr ? "" : "there is no kernel for so many outputs";
}

PointwiseGradientsPass::PointwiseGradientsPass(const PointwiseBackwardArguments& a)
    : PointwiseGradientsPass(a, *find_instance(a)) {}

PointwiseGradientsPass::PointwiseGradientsPass(const PointwiseBackwardArguments& a,
                                               const PointwiseGradientsInstance& instance)
    : instance_(&instance), forms_gradient_(a.gradient_prologue && !instance.has_output) {
  p_.stages = kMostGradientStages;
  while (instance.memory(p_.stages) > kMemoryLimit) --p_.stages;
  p_.channels = static_cast<int>(a.x.sizes[1]);
  p_.outputs = static_cast<int>(a.grad_y.sizes[1]);
  p_.fold = fold_of(a);
  p_.rows = static_cast<int>(a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3] / p_.fold);
  p_.row_tiles = static_cast<int>(divide_up(p_.rows, kTile));
  const std::int64_t columns = std::int64_t{p_.fold} * p_.channels;
  const int tile = instance.sharing * kTile;
  p_.channel_tiles = static_cast<int>(divide_up(columns, tile));
  // A narrow last tile of channels is less work for its blocks, of which there are fewer.
  const double last = static_cast<double>(columns - (p_.channel_tiles - 1) * tile) / tile, work = 0.7 + 0.3 * last;
  const std::int64_t most = divide_up(p_.row_tiles, instance.slices);
  const double splits = multiprocessors() / (p_.channel_tiles - 1 + work);
  p_.splits = static_cast<int>(std::clamp<std::int64_t>(static_cast<std::int64_t>(splits), 1, most));
  p_.last_splits = p_.splits;
  if (last < 1) {
    p_.last_splits = static_cast<int>(
        std::clamp<std::int64_t>(multiprocessors() - std::int64_t{p_.channel_tiles - 1} * p_.splits, 1, p_.splits));
  }
  p_.activation = a.prologue.activation;
}

PointwiseGradientsPass::Memory PointwiseGradientsPass::take_memory(Arena& arena) const {
  Memory memory{};
  if (forms_gradient_) memory.gradient = arena.take<Float16>(std::int64_t{p_.rows} * p_.fold * p_.outputs);
  memory.partials = arena.take<float>(
      instance_->windows > 0 ? std::int64_t{p_.channel_tiles} * p_.splits * window_rows() * window_columns()
                             : std::int64_t{p_.splits} * p_.fold * (p_.outputs + 2) * p_.channels);
  return memory;
}

std::size_t PointwiseGradientsPass::workspace_bytes() const {
  Arena arena(nullptr);
  take_memory(arena);
  return arena.used();
}

void PointwiseGradientsPass::run(const PointwiseBackwardArguments& a, const Execution& execution) const {
  Arena arena(execution.workspace);
  const Memory memory = take_memory(arena);
  PointwiseGradientsParameters p = p_;
  const auto map = [&](const auto& matrix, std::int64_t channels, int columns) {
    return map_of(matrix.data, a.x.dtype, p.fold * channels, p.rows, p.fold * matrix.first, columns, kTile);
  };
  p.x = map(activation_matrix(a.x, 1, true), p.channels, kTile);
  p.grad_x = map(output_matrix(a.grad_x, 1, true), p.channels, kTile);
  const GradientPrologue& gradient = a.gradient_prologue;
  PointwiseMatrix grad_y = activation_matrix(a.grad_y, 1, true);
  if (forms_gradient_) {
    launch_gradient_prologue(a, memory.gradient, execution.stream);
    grad_y.data = memory.gradient;
    grad_y.first = p.outputs;
  } else if (gradient) {
    p.output = map(activation_matrix(gradient.output, 1, true), p.outputs, instance_->wide);
  }
  p.grad_y = map(grad_y, p.outputs, instance_->wide);
  if (!instance_->has_output && p.fold == 1 && a.windows.channels == 0) {
    p.weight_tiles = map_of(a.weight.data, a.x.dtype, p.channels, p.outputs, a.weight.strides[0], kTile, kTile / 2);
  }
  p.weight = WeightSource(a.weight, a.windows);
  if (instance_->windows > 0) check_alignment("weight", a.weight.data, kPairBytes);
  p.grad_scale = static_cast<const float*>(gradient.grad_scale.data);
  p.output_scale = static_cast<const float*>(gradient.output_scale.data);
  p.offset = static_cast<const float*>(gradient.offset.data);
  p.scale = static_cast<const float*>(a.prologue.scale.data);
  p.shift = static_cast<const float*>(a.prologue.shift.data);
  p.mean = static_cast<const float*>(a.sums.mean.data);
  p.partials = memory.partials;
  const std::int64_t blocks = std::int64_t{p.channel_tiles - 1} * p.splits + p.last_splits;
  launch_following(kName, instance_->kernel, blocks, instance_->threads, execution.stream, p,
                   static_cast<std::size_t>(instance_->memory(p.stages)));

  if (instance_->windows > 0) sum_windows(a, memory.partials, execution.stream);
  else sum(a, memory.partials, execution.stream);
}

void PointwiseGradientsPass::sum_windows(const PointwiseBackwardArguments& a, const float* partials,
                                         void* stream) const {
  GradientsWindowSumParameters sum;
  sum.partials = partials;
  sum.splits = p_.splits;
  sum.last_splits = p_.last_splits;
  sum.tiles = p_.channel_tiles;
  sum.row_quads = window_columns() / 4;
  sum.tile_quads = window_rows() * sum.row_quads;
  sum.rows = Divisor(static_cast<std::uint32_t>(sum.tile_quads));
  sum.quads = Divisor(static_cast<std::uint32_t>(sum.row_quads));
  constexpr int kMostLanes = 32, kSplitsOfLane = 4;
  while (sum.lanes < kMostLanes && sum.lanes * kSplitsOfLane < sum.splits) sum.lanes *= 2;
  sum.lanes = std::max(sum.lanes, 4);  // all elements of a block have a thread
  sum.channels = p_.channels;
  sum.windows = instance_->windows;
  sum.filters = window_rows() / 2;
  sum.step = Divisor(static_cast<std::uint32_t>(a.windows.step));
  sum.step_channels = static_cast<int>(a.windows.step);
  sum.weight = a.grad_weight.data;
  sum.weight_row = a.grad_weight.strides[0];
  const std::int64_t blocks = divide_up(sum.items(), sum.items_of_block());
  launch_following(kName, a.x.dtype == DataType::float16 ? window_sum_kernel<Float16> : window_sum_kernel<BFloat16>,
                   blocks, kWindowSumThreads, stream, sum,
                   spread(blocks, std::size_t{kWindowSumThreads} * 4 * sizeof(float)));
}

void PointwiseGradientsPass::sum(const PointwiseBackwardArguments& a, const float* partials, void* stream) const {
  GradientsSumParameters sum;
  sum.partials = partials;
  sum.splits = p_.splits * p_.fold;
  sum.rows = p_.outputs + (instance_->plain ? 0 : 2);
  sum.outputs = p_.outputs;
  sum.channels = p_.channels;
  sum.warps = sum.splits <= 8 ? 1 : std::min(sum.splits / 4, kSumWarps);
  sum.groups = std::max(1, 4 / sum.warps);
  sum.weight = a.grad_weight.data;
  sum.places = WeightSource(a.grad_weight, a.windows);
  sum.grad = static_cast<float*>(a.sums.grad.data);
  sum.grad_times_centered = static_cast<float*>(a.sums.grad_times_centered.data);
  sum.normaliser = GradientNormaliserParameters(a.sums, a.x);
  launch_following(kName, a.x.dtype == DataType::float16 ? sum_kernel<Float16> : sum_kernel<BFloat16>,
                   divide_up(sum.items(), 32 * sum.groups), sum.groups * sum.warps * 32, stream, sum,
                   static_cast<std::size_t>(sum.groups * sum.warps) * 1024);
}

}  // namespace gpu::hopper

bool suits_pointwise_k_resident(const PointwiseBackwardArguments& a) {
  if (a.prologue) return true;  // each element is read and computed once for both
  const PointwiseBackwardArguments weight = without_input(a);
  return gpu::hopper::has_tiles_for_all(a) &&
         !(pointwise_backward_hopper_narrow().unsupported(weight).empty() && suits_pointwise_narrow(weight));
}

Implementation<PointwiseBackwardArguments> pointwise_backward_hopper_k_resident() {
  using namespace gpu::hopper;
  return {"hopper_k_resident",
          [](const PointwiseBackwardArguments& a) {
            return a.x.dtype == DataType::float32 ? why_not_tf32_k_resident(a) : PointwiseGradientsPass::why_not(a);
          },
          [](const PointwiseBackwardArguments& a, int /*threads*/) -> Plan<PointwiseBackwardArguments> {
            if (a.x.dtype == DataType::float32) return plan_tf32_k_resident(a);
            const PointwiseGradientsPass pass(a);
            return {pass.workspace_bytes(), [pass](const PointwiseBackwardArguments& like, const Execution& execution) {
                      pass.run(like, execution);
                    }};
          }};
}

}  // namespace fusedsc
#endif
