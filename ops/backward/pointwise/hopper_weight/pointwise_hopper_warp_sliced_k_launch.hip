#ifdef FUSEDSC_HOPPER
#include <algorithm>
#include <limits>

#include "fusedsc/backward/pointwise/hopper/pointwise_hopper_parameters.h"
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

template <class T, WarpSlicedKRows kTileRows, bool kFused, int kRowBlocks, int kColumnBlocks, int kSliceRows,
          int kSliceColumns, int kSlices, int kDepth = warp_sliced_k_depth<T>(kTileRows)>
constexpr WarpSlicedKInstance instance(DataType dtype) {
  using Product =
      WarpSlicedKProduct<T, kTileRows, kFused, kRowBlocks, kColumnBlocks, kSliceRows, kSliceColumns, kSlices, kDepth>;
  return {dtype,
          kTileRows,
          kFused,
          Product::kRows,
          Product::kColumns,
          kSlices,
          Product::kThreads,
          kDepth,
          Product::kShape,
          hopper_kernel<Product>,
          Product::memory_bytes};
}

#define FUSEDSC_FLOAT(rows, ...) instance<float, WarpSlicedKRows::rows, __VA_ARGS__>(DataType::float32)
#define FUSEDSC_BOTH(rows, ...)                                             \
  instance<Float16, WarpSlicedKRows::rows, __VA_ARGS__>(DataType::float16), \
      instance<BFloat16, WarpSlicedKRows::rows, __VA_ARGS__>(DataType::bfloat16)

const WarpSlicedKInstance kInstances[] = {
    // Whether anything is fused; of a warp, blocks of 32 outputs and channels; warps of a slice side by side; slices;
    // positions that come
    FUSEDSC_FLOAT(channels, false, 1, 1, 1, 1, 8, 32), FUSEDSC_FLOAT(channels, false, 3, 1, 1, 1, 8, 16),
    FUSEDSC_FLOAT(channels, false, 1, 3, 1, 1, 8, 16), FUSEDSC_FLOAT(channels, false, 2, 2, 1, 1, 8, 16),
    FUSEDSC_FLOAT(channels, true, 1, 1, 1, 1, 8, 32),  FUSEDSC_FLOAT(channels, true, 2, 2, 1, 1, 8, 16),
    FUSEDSC_FLOAT(positions, false, 1, 1, 1, 1, 8),    FUSEDSC_FLOAT(positions, false, 2, 2, 1, 1, 4),
    FUSEDSC_FLOAT(positions, false, 2, 2, 2, 2, 2),    FUSEDSC_FLOAT(positions, true, 1, 1, 1, 1, 8),
    FUSEDSC_FLOAT(positions, true, 2, 1, 1, 2, 4),     FUSEDSC_FLOAT(phases, false, 2, 1, 1, 2, 4),
    FUSEDSC_FLOAT(phases, false, 2, 2, 2, 2, 2),       FUSEDSC_FLOAT(phases, true, 2, 1, 1, 2, 4),
    FUSEDSC_BOTH(positions, false, 1, 1, 1, 1, 8),     FUSEDSC_BOTH(positions, false, 2, 2, 1, 1, 4),
    FUSEDSC_BOTH(positions, true, 2, 1, 1, 2, 4),      FUSEDSC_BOTH(phases, false, 2, 1, 1, 2, 4),
    FUSEDSC_BOTH(phases, false, 2, 2, 2, 2, 2),        FUSEDSC_BOTH(phases, true, 2, 1, 1, 2, 4),
};

bool wants_fusion(const PointwiseBackwardArguments& a) { return a.prologue || a.gradient_prologue; }

/// Tiles of positions.
std::int64_t steps_of(const PointwiseBackwardArguments& a, const WarpSlicedKLayout& layout, int depth) {
  return layout.rows == WarpSlicedKRows::channels ? divide_up(a.x.sizes[0] * area_of(a), depth)
                                                  : a.x.sizes[0] * divide_up(area_of(a), depth);
}

/// In microseconds, and what a multiprocessor does in one; fitted to the times of all tiles and cuts on the layers of
/// mobile networks on an H200.
struct CostModel {
  double start;
  double bytes, products;        ///< copied; multiplied, of floats (of 16 bits twice as many)
  double sums;                   ///< of a tile, put together by a block
  double second, partial_bytes;  ///< the second kernel; what all blocks leave for it
};

/// is_small: of tensors for which are_small_for_warp_sliced_k, if they are contiguous.
const CostModel& cost_model_of(const WarpSlicedKInstance& instance, bool is_small) {
  static constexpr CostModel kFused{2.8, 80.5e3, 829e3, 18.1e3, 1.95, 1.23e6},
      kChannels{2.9, 99e3, 26.1e6, 6.99e3, 0.358, 567e3}, kPositions{4.08, 77.9e3, 6.52e6, 166e3, 1.58, 1.15e6},
      kPhases{4.43, 25.8e3, 3.14e6, 29.7e3, 0.802, 1.88e6}, kSmall{2.18, 89.9e3, 26.2e6, 1.66e6, 0.935, 744e3};
  if (instance.fused) return kFused;
  if (is_small && instance.tile_rows == WarpSlicedKRows::positions) return kSmall;
  return instance.tile_rows == WarpSlicedKRows::channels    ? kChannels
         : instance.tile_rows == WarpSlicedKRows::positions ? kPositions
                                                            : kPhases;
}

double cost_of(const WarpSlicedKInstance& instance, std::int64_t tiles, std::int64_t steps, std::int64_t splits,
               int size, bool is_small) {
  const CostModel& model = cost_model_of(instance, is_small);
  const double rounds = static_cast<double>(divide_up(tiles * splits, size));
  const double block_steps = static_cast<double>(divide_up(steps, splits * instance.slices)) * instance.slices;
  const double area = static_cast<double>(instance.rows) * instance.columns;
  const double row_bytes = instance.depth * static_cast<double>(size_of(instance.dtype));
  const double step =
      (instance.rows + instance.columns) * row_bytes / model.bytes + area * row_bytes / 4 / model.products;
  double cost = model.start + rounds * (block_steps * step + area / model.sums);
  if (splits > 1) cost += model.second + static_cast<double>(tiles * splits) * area * 4 / model.partial_bytes;
  return cost;
}

}  // namespace

bool are_small_for_warp_sliced_k(const PointwiseBackwardArguments& a) {
  // Fitted to float32 at batches 8 and 16. Of 16 bits it gives the times of layers with few channels within 7%, nearly
  // all; others are not known.
  constexpr std::int64_t kMostFloatBytes = 8'000'000, kMostHalfBytes = 10'000'000, kFewChannels = 40;
  const std::int64_t bytes = static_cast<std::int64_t>(size_of(a.x.dtype)) * (a.x.elements() + a.grad_y.elements());
  if (a.x.dtype == DataType::float32) return bytes <= kMostFloatBytes;
  return bytes <= kMostHalfBytes && std::min(a.x.sizes[1], a.grad_y.sizes[1]) <= kFewChannels;
}

std::string WarpSlicedKLayout::find(const PointwiseBackwardArguments& a, WarpSlicedKLayout& layout) {
  const ConstTensorView tensors[] = {a.x, a.grad_y, a.gradient_prologue.output};
  const auto bytes = static_cast<std::int64_t>(size_of(a.x.dtype));
  layout.rows = channels_inner(a.x, a.grad_y) ? WarpSlicedKRows::channels : WarpSlicedKRows::positions;
  if (layout.rows == WarpSlicedKRows::channels) {
    if (bytes != 4) return "16-bit channels_last tensors are another's";
    for (const ConstTensorView& view : tensors) {
      if (!view) continue;
      const PointwiseMatrix matrix = activation_matrix(view, 1, true);
      if (!matrix.is_linear || matrix.run_bytes != 16 || matrix.first * bytes % 16 != 0) {
        return "a tensor is not dense and channels_last, or not aligned to 16 bytes";
      }
    }
    return {};
  }
  const std::int64_t area = area_of(a);
  while (layout.phases * area * bytes % 16 != 0) layout.phases *= 2;
  if (layout.phases > 1) layout.rows = WarpSlicedKRows::phases;
  for (const ConstTensorView& view : tensors) {
    if (!view) continue;
    if (!has_aligned_images(view)) {
      return "an image is not dense and contiguous, or not aligned to 16 bytes";
    }
    if (view.sizes[1] % layout.phases != 0) {
      return std::to_string(view.sizes[1]) + " channels with maps of " + std::to_string(area * bytes) +
             " bytes: " + std::to_string(layout.phases) + " channels are the least of whole runs of 16 bytes";
    }
  }
  return {};
}

namespace {

/// Calls with each tile that fits, its tiles of the weight and its steps.
template <class Visit>
void for_each_instance(const PointwiseBackwardArguments& a, const WarpSlicedKLayout& layout, const Visit& visit) {
  for (const WarpSlicedKInstance& instance : kInstances) {
    if (instance.dtype != a.x.dtype || instance.tile_rows != layout.rows || instance.fused != wants_fusion(a)) {
      continue;
    }
    constexpr int kSwizzledRows = 8;  // which each phase's rows begin at multiples of
    if (instance.rows / layout.phases < kSwizzledRows || instance.columns / layout.phases < kSwizzledRows) continue;
    if (most_stages(instance) < 2) continue;
    const std::int64_t tiles = divide_up(a.grad_y.sizes[1], instance.rows) * divide_up(a.x.sizes[1], instance.columns);
    visit(instance, tiles, steps_of(a, layout, instance.depth));
  }
}

std::int64_t most_splits(const WarpSlicedKInstance& instance, std::int64_t steps) {
  return divide_up(steps, instance.slices);
}

/// Likewise, with each number of blocks for a tile that is worth a try.
template <class Visit>
void for_each_plan(const PointwiseBackwardArguments& a, const WarpSlicedKLayout& layout, int multiprocessors,
                   const Visit& visit) {
  for_each_instance(a, layout, [&](const WarpSlicedKInstance& instance, std::int64_t tiles, std::int64_t steps) {
    const auto cut_for = [&](std::int64_t blocks) {
      return std::clamp<std::int64_t>(blocks / tiles, 1, most_splits(instance, steps));
    };
    const std::int64_t most = cut_for(multiprocessors);
    for (const std::int64_t splits : {std::int64_t{1}, (most + 1) / 2, most, cut_for(2 * multiprocessors)}) {
      visit(WarpSlicedKPlan{&instance, static_cast<int>(splits), most_stages(instance), 0}, tiles, steps);
    }
  });
}

tuning::Config config_of(const WarpSlicedKPlan& plan) {
  using enum tuning::Knob;
  return {{rows, plan.instance->rows},
          {columns, plan.instance->columns},
          {groups, plan.instance->slices},
          {splits, plan.splits},
          {depth, plan.instance->depth}};
}

WarpSlicedKPlan configured(const PointwiseBackwardArguments& a, const WarpSlicedKLayout& layout,
                           const tuning::Config& config) {
  const int splits = config[tuning::Knob::splits];
  WarpSlicedKPlan found;
  for_each_instance(a, layout, [&](const WarpSlicedKInstance& instance, std::int64_t /*tiles*/, std::int64_t steps) {
    const WarpSlicedKPlan plan{&instance, splits, most_stages(instance), 0};
    if (splits >= 1 && splits <= most_splits(instance, steps) && config_of(plan) == config) found = plan;
  });
  if (found.instance == nullptr) throw_no_tile(kName, "hopper_warp_sliced_k", config);
  return found;
}

}  // namespace

WarpSlicedKPlan plan_warp_sliced_k(const PointwiseBackwardArguments& a, const WarpSlicedKLayout& layout,
                                   int multiprocessors) {
  WarpSlicedKPlan best;
  best.cost = std::numeric_limits<double>::infinity();
  const bool is_small = are_small_for_warp_sliced_k(a);
  for_each_plan(a, layout, multiprocessors, [&](WarpSlicedKPlan plan, std::int64_t tiles, std::int64_t steps) {
    plan.cost = cost_of(*plan.instance, tiles, steps, plan.splits, multiprocessors, is_small);
    if (plan.cost < best.cost) best = plan;
  });
  return best;
}

std::string WarpSlicedKWeightPass::why_not(const PointwiseBackwardArguments& a) {
  if (!a.grad_weight) return "the weight gradient is not wanted";
  if (a.grad_bias) return "the bias gradient is wanted";
  if (a.groups != 1) return "there are groups";
  if (a.x.dtype == DataType::float64) return "the tensors are float64";
  if (a.x.dtype == DataType::float32 && !uses_tf32(a.x.dtype, a.allow_tf32)) return "TF32 is not allowed";
  if (a.x.elements() == 0 || a.grad_y.elements() == 0) return "a tensor is empty";
  const TensorView& weight = a.grad_weight;
  if (weight.strides[1] != 1 || weight.strides[0] % 4 != 0 || weight.sizes[1] % 4 != 0 ||
      reinterpret_cast<std::uintptr_t>(weight.data) % (4 * size_of(weight.dtype)) != 0) {
    return "the weight's gradient has not its channels as neighbours, in aligned runs of four";
  }
  std::string reason = too_large_for_pointwise(a.x.sizes, a.grad_y.sizes);
  if (!reason.empty()) return reason;
  WarpSlicedKLayout layout;
  reason = WarpSlicedKLayout::find(a, layout);
  if (!reason.empty()) return reason;
  return plan_warp_sliced_k(a, layout, multiprocessors()).instance != nullptr ? "" : "no tile fits the maps";
}

tuning::Configs WarpSlicedKWeightPass::configs(const PointwiseBackwardArguments& a) {
  tuning::Configs configs;
  WarpSlicedKLayout layout;
  WarpSlicedKLayout::find(a, layout);
  for_each_plan(a, layout, multiprocessors(), [&](const WarpSlicedKPlan& plan, std::int64_t, std::int64_t) {
    const tuning::Config config = config_of(plan);
    if (std::find(configs.begin(), configs.end(), config) == configs.end()) configs.push_back(config);
  });
  return configs;
}

tuning::Config WarpSlicedKWeightPass::config() const { return config_of(plan_); }

WarpSlicedKWeightPass::WarpSlicedKWeightPass(const PointwiseBackwardArguments& a, const tuning::Config& config) {
  WarpSlicedKLayout::find(a, layout_);
  plan_ =
      config == tuning::Config() ? plan_warp_sliced_k(a, layout_, multiprocessors()) : configured(a, layout_, config);
  const WarpSlicedKInstance& instance = *plan_.instance;
  const std::int64_t steps = steps_of(a, layout_, instance.depth);
  p_.steps = static_cast<int>(steps);
  p_.image_steps = static_cast<int>(layout_.rows == WarpSlicedKRows::channels ? steps : steps / a.x.sizes[0]);
  p_.by_image_steps = Divisor(static_cast<std::uint32_t>(p_.image_steps));
  p_.positions = static_cast<int>(layout_.rows == WarpSlicedKRows::channels ? a.x.sizes[0] * area_of(a) : area_of(a));
  p_.phases = layout_.phases;
  p_.stages = plan_.stages;
  p_.splits = plan_.splits;
  p_.activation = a.prologue.activation;
  SliceTiles& tiles = p_.tiles;
  tiles.outputs = static_cast<int>(a.grad_y.sizes[1]);
  tiles.channels = static_cast<int>(a.x.sizes[1]);
  tiles.rows = instance.rows;
  tiles.columns = instance.columns;
  tiles.output_tiles = static_cast<int>(divide_up(tiles.outputs, tiles.rows));
  tiles.channel_tiles = static_cast<int>(divide_up(tiles.channels, tiles.columns));
  tiles.weight_row = a.grad_weight.strides[0];
  tiles.shape = instance.shape;
  tiles.phases = layout_.phases;
}

Four* WarpSlicedKWeightPass::take_partials(Arena& arena) const {
  return p_.splits > 1 ? arena.take<Four>(std::int64_t{p_.splits} * p_.tiles.fours()) : nullptr;
}

void WarpSlicedKWeightPass::run(const PointwiseBackwardArguments& a, Arena& arena, void* stream) const {
  const WarpSlicedKInstance& instance = *plan_.instance;
  const GradientPrologue& gradient = a.gradient_prologue;
  WarpSlicedKParameters p = p_;
  p.grad_scale = static_cast<const float*>(gradient.grad_scale.data);
  p.output_scale = static_cast<const float*>(gradient.output_scale.data);
  p.offset = static_cast<const float*>(gradient.offset.data);
  p.scale = static_cast<const float*>(a.prologue.scale.data);
  p.shift = static_cast<const float*>(a.prologue.shift.data);
  p.tiles.weight = a.grad_weight.data;
  p.tiles.partials = take_partials(arena);
  const auto map = [&](const ConstTensorView& view, int channels) {
    if (!view) return TensorMap{};
    const std::int64_t images = view.sizes[0], area = area_of(a), count = view.sizes[1];
    if (layout_.rows == WarpSlicedKRows::channels) {
      const std::int64_t row = activation_matrix(view, 1, true).first;
      return map_of_images({view.data, view.dtype, {1, count, 1, images * area}, {0, 1, 0, row}}, 32, instance.depth, 1,
                           1, true);
    }
    const int phases = layout_.phases;
    return map_of_images(
        {view.data, view.dtype, {1, phases * area, images, count / phases}, {0, 1, view.strides[0], phases * area}},
        static_cast<int>(128 / size_of(view.dtype)), channels / phases, 1, 1, true);
  };
  p.grad_y = map(a.grad_y, instance.rows);
  p.output = map(a.gradient_prologue ? a.gradient_prologue.output : a.grad_y, instance.rows);
  p.x = map(a.x, instance.columns);
  const SliceTiles& tiles = p.tiles;
  launch_following(kName, instance.kernel, std::int64_t{tiles.output_tiles} * tiles.channel_tiles * p.splits,
                   instance.threads, stream, p, static_cast<std::size_t>(instance.memory(p.stages)));
  if (p.splits == 1) return;
  launch_weight_sum<true>(kName, a.x.dtype, tiles, p.splits, stream);
}

}  // namespace gpu::hopper

tuning::Kernel<PointwiseBackwardArguments> pointwise_backward_hopper_warp_sliced_k() {
  using namespace gpu::hopper;
  return {"hopper_warp_sliced_k",
          [](const PointwiseBackwardArguments& a) { return why_not_on_hopper(a, WarpSlicedKWeightPass::why_not); },
          WarpSlicedKWeightPass::configs, plan_weight_pass<WarpSlicedKWeightPass>};
}

tuning::Config pointwise_backward_hopper_warp_sliced_k_prior(const PointwiseBackwardArguments& a) {
  return gpu::hopper::WarpSlicedKWeightPass(a).config();
}

}  // namespace fusedsc
#endif
