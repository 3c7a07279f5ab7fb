#ifdef FUSEDSC_HOPPER
#include "fusedsc/common/gpu/sums/partials_launch.h"
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_instances.h"
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_parameters.h"
#include "fusedsc/forward/pointwise/pointwise_kernels.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_launches.h"
#include "fusedsc/forward/sliding_channel/weight/sliding_channel_weight.h"
#include "fusedsc/forward/sliding_channel/weight/sliding_channel_weight_gpu.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc {
namespace gpu::hopper {
namespace {

constexpr const char* kName = "pointwise_conv2d";

// With statistics: as they come, and with the prologue.
using StatisticsTiles = Tiles<Tile<32, 64, 2>, Tile<32, 64, 6>, Tile<64, 64, 2>, Tile<64, 64, 4>, Tile<96, 32, 3>,
                              Tile<128, 64, 2>, Tile<192, 32, 2>>;
// Where memory binds, costs are equal and the first is taken.
using NormalisingTiles =
    Tiles<Tile<32, 32, 6>, Tile<32, 64, 4>, Tile<64, 64, 3>, Tile<96, 64, 3>, Tile<128, 64, 2>, Tile<32, 64, 2>>;
using InferenceTiles = Tiles<Tile<32, 64, 4>, Tile<64, 64, 3>, Tile<128, 64, 2>>;
using StatisticsSlicedKTiles = Tiles<SlicedKTile<1, 32, 2>, SlicedKTile<1, 96, 2>>;
using NormalisingSlicedKTiles = Tiles<SlicedKTile<1, 32, 2>, SlicedKTile<1, 64, 1>, SlicedKTile<1, 96, 2>,
                                      SlicedKTile<1, 160, 2>, SlicedKTile<2, 160, 1>>;
// With the prologue and nothing behind the product, as blocks in training have it.
using NormalisedTiles = Tiles<Tile<32, 64, 4>, Tile<64, 64, 3>, Tile<96, 64, 3>, Tile<128, 64, 2>>;
using InferenceSlicedKTiles = Tiles<SlicedKTile<1, 32, 1>, SlicedKTile<1, 32, 2>, SlicedKTile<1, 96, 2>>;

template <class T>
void append_all(std::vector<PointwiseInstance>& to, DataType dtype) {
  append<T, false, false, EpilogueKind::plain>(to, dtype, PlainTiles());
  append<T, false, false, EpilogueKind::plain>(to, dtype, PlainSlicedKTiles());
  append<T, false, EpilogueKind::plain>(to, dtype, RowsTiles());
  append<T, false, false, EpilogueKind::statistics>(to, dtype, StatisticsTiles());
  append<T, false, false, EpilogueKind::statistics>(to, dtype, StatisticsSlicedKTiles());
  append<T, false, true, EpilogueKind::statistics>(to, dtype, NormalisingTiles());
  append<T, false, true, EpilogueKind::statistics>(to, dtype, NormalisingSlicedKTiles());
  append<T, false, true, EpilogueKind::plain>(to, dtype, NormalisedTiles());
  append<T, false, true, EpilogueKind::plain>(to, dtype, NormalisingSlicedKTiles());
  append<T, false, false, EpilogueKind::inference>(to, dtype, InferenceTiles());
  append<T, false, false, EpilogueKind::inference>(to, dtype, InferenceSlicedKTiles());
  append<T, false, EpilogueKind::inference>(to, dtype, RowsTiles());
  append<T, false, true, EpilogueKind::inference>(to, dtype, InferenceTiles());
  append<T, false, true, EpilogueKind::inference>(to, dtype, NormalisingSlicedKTiles());
}

using FloatStatisticsTiles =
    Tiles<Tile<32, 32, 4>, Tile<64, 32, 2>, Tile<96, 32, 3>, Tile<128, 32, 2>, Tile<192, 32, 2>>;
using FloatNormalisingTiles =
    Tiles<Tile<32, 32, 2>, Tile<32, 32, 4>, Tile<64, 32, 2>, Tile<96, 32, 3>, Tile<128, 32, 2>>;
using FloatInferenceTiles = Tiles<Tile<32, 32, 4>, Tile<64, 32, 3>, Tile<128, 32, 2>>;
using FloatStatisticsSlicedKTiles = Tiles<SlicedKTile<1, 32, 2>, SlicedKTile<1, 96, 2>, SlicedKTile<1, 160, 2>,
                                          SlicedKTile<2, 96, 1>, SlicedKTile<2, 128, 1>>;
using FloatNormalisingSlicedKTiles =
    Tiles<SlicedKTile<1, 64, 2>, SlicedKTile<1, 96, 2>, SlicedKTile<1, 160, 2>, SlicedKTile<2, 160, 1>>;
using FloatInferenceSlicedKTiles = Tiles<SlicedKTile<1, 32, 2>, SlicedKTile<1, 96, 2>, SlicedKTile<2, 96, 1>>;

void append_floats(std::vector<PointwiseInstance>& to) {
  constexpr DataType kType = DataType::float32;
  to.insert(to.end(), plain_float_instances().begin(), plain_float_instances().end());
  append<float, false, false, EpilogueKind::statistics>(to, kType, FloatStatisticsTiles());
  append<float, false, false, EpilogueKind::statistics>(to, kType, FloatStatisticsSlicedKTiles());
  append<float, false, true, EpilogueKind::statistics>(to, kType, FloatNormalisingTiles());
  append<float, false, true, EpilogueKind::statistics>(to, kType, FloatNormalisingSlicedKTiles());
  append<float, false, false, EpilogueKind::inference>(to, kType, FloatInferenceTiles());
  append<float, false, false, EpilogueKind::inference>(to, kType, FloatInferenceSlicedKTiles());
  append<float, false, true, EpilogueKind::inference>(to, kType, FloatInferenceTiles());
  append<float, false, true, EpilogueKind::inference>(to, kType, FloatInferenceSlicedKTiles());
}

const std::vector<PointwiseInstance>& instances() {
  static const std::vector<PointwiseInstance> all = [] {
    std::vector<PointwiseInstance> list;
    append_all<Float16>(list, DataType::float16);
    append_all<BFloat16>(list, DataType::bfloat16);
    append_floats(list);
    return list;
  }();
  return all;
}

PointwiseCase case_of(const PointwiseArguments& a) {
  const std::int64_t pixels = a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3];
  PointwiseCase product{{a.x.dtype, true, pixels, a.x.sizes[1], a.y.sizes[1], 1}};
  set_fusion(product, a);
  const bool has_epilogue = a.epilogue || a.bias;
  if (product.kind == EpilogueKind::inference && !has_epilogue && size_of(a.x.dtype) == 2) {
    product.kind = EpilogueKind::plain;
  }
  product.lays_out = lays_out_in_blocks(a.weight, a.windows);
  product.has_slow_rows = has_slow_rows(a.weight, a.windows, pixels);
  product.is_dense = is_dense(activation_matrix(a.x, 1, true), a.x.sizes[1]) &&
                     is_dense(output_matrix(a.y, 1, true), a.y.sizes[1]) &&
                     is_dense(activation_matrix(a.epilogue.residual, 1, true), a.y.sizes[1]);
  return product;
}

/// Of all families.
std::string why_none(const PointwiseArguments& a) {
  std::string reason =
      why_not_hopper(a.x.dtype, a.x.device, a.groups, a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3], a.allow_tf32);
  if (!reason.empty()) return reason;
  if (a.statistics && a.bias) return "it adds no bias where it takes statistics";
  const auto suits = [&](const auto& matrix) { return suits_tma(matrix, a.x.dtype); };
  if (!suits(activation_matrix(a.x, 1, true)) || !suits_weight(a.weight, a.windows) ||
      !suits(activation_matrix(a.epilogue.residual, 1, true)) || !suits(output_matrix(a.y, 1, true))) {
    return kUnsuited;
  }
  return too_large_for_pointwise(a.x.sizes, a.y.sizes);
}

/// A launch, worked out but for addresses.
class Pass {
 public:
  Pass(const PointwiseArguments& a, const PointwiseLaunch& launch) : case_(case_of(a)), launch_(launch) {}

  std::size_t workspace_bytes(const PointwiseArguments& a) const {
    Arena arena(nullptr);
    take_partials(a, arena);
    take_expanded(a, arena);
    return arena.used();
  }

  void run(const PointwiseArguments& a, const Execution& execution) const {
    const PointwiseProblem& problem = case_.problem;
    const PointwiseInstance& instance = *launch_.instance;
    Arena arena(execution.workspace);
    PointwiseParameters p;
    launch_.fill(case_, p);
    set_fusion(p, a, take_partials(a, arena));
    const auto map = [&](const auto& matrix, std::int64_t channels, int columns) {
      return map_of(matrix, problem.dtype, channels, problem.pixels, columns);
    };
    p.activations = map(activation_matrix(a.x, 1, true), problem.depth, instance.depth);
    p.output = map(output_matrix(a.y, 1, true), problem.channels, instance.columns());
    p.added = map(activation_matrix(a.epilogue.residual, 1, true), problem.channels, instance.columns());
    if (launch_.lays_out) {
      p.source = WeightSource(a.weight, a.windows);
    } else {
      const TensorView expanded = take_expanded(a, arena);
      const ConstTensorView weight = expanded ? ConstTensorView(expanded) : a.weight;
      if (expanded) gpu::expand_sliding_channels(a.windows, a.weight, expanded, execution.stream);
      p.weight_is_new = static_cast<bool>(expanded);
      p.rounds_weight = problem.dtype == DataType::float32;
      p.weight = map_of(weight.data, problem.dtype, problem.depth, problem.channels, weight.strides[0], instance.depth,
                        instance.channels);
    }
    launch_.start(kName, case_, p, execution.stream);
    if (!a.statistics) return;
    launch_merge_moments(kName, DataType::float32, p.epilogue.partials, launch_.splits, a.statistics, problem.pixels,
                         execution.stream);
  }

 private:
  float* take_partials(const PointwiseArguments& a, Arena& arena) const {
    return a.statistics ? arena.take<float>(std::int64_t{3} * launch_.splits * a.y.sizes[1]) : nullptr;
  }

  /// A weight with windows as TMA reads it; empty: the caller's is read.
  TensorView take_expanded(const PointwiseArguments& a, Arena& arena) const {
    const bool expands = a.windows.channels > 0 && !launch_.lays_out;
    return expands ? take_expanded_weight(arena, a.weight, a.windows) : TensorView{};
  }

  PointwiseCase case_;
  PointwiseLaunch launch_;
};

Plan<PointwiseArguments> plan_of(const Pass& pass, const PointwiseArguments& a) {
  return {pass.workspace_bytes(a),
          [pass](const PointwiseArguments& like, const Execution& execution) { pass.run(like, execution); }};
}

constexpr const char* kNames[] = {"hopper_resident", "hopper_sliced_k", "hopper_rows"};  // of each PointwiseFamily

template <PointwiseFamily kFamily>
Kernel<PointwiseArguments> family() {
  constexpr const char* kKernel = kNames[static_cast<int>(kFamily)];
  const auto unsupported = [](const PointwiseArguments& a) {
    const std::string reason = why_none(a);
    if (!reason.empty()) return reason;
    const bool fits = !configs_of(instances(), case_of(a), kFamily).empty();
    return std::string(fits ? "" : "none of its tiles has what is fused, and fits shared memory");
  };
  const auto configs = [](const PointwiseArguments& a) { return configs_of(instances(), case_of(a), kFamily); };
  const auto plan = [](const PointwiseArguments& a, const Config& config, int /*threads*/) {
    const PointwiseLaunch launch = launch_with(instances(), case_of(a), kFamily, config);
    if (launch.instance == nullptr) throw_no_tile(kName, kKernel, config);
    return plan_of(Pass(a, launch), a);
  };
  return {kKernel, unsupported, configs, plan};
}

template <PointwiseFamily kFamily>
Config prior_of(const PointwiseArguments& a) {
  return config_of(plan(instances(), case_of(a), kFamily));
}

}  // namespace

Kernel<PointwiseArguments> pointwise_resident() { return family<PointwiseFamily::resident>(); }
Kernel<PointwiseArguments> pointwise_sliced_k() { return family<PointwiseFamily::sliced_k>(); }
Kernel<PointwiseArguments> pointwise_rows() { return family<PointwiseFamily::rows>(); }

Config pointwise_resident_prior(const PointwiseArguments& a) { return prior_of<PointwiseFamily::resident>(a); }
Config pointwise_sliced_k_prior(const PointwiseArguments& a) { return prior_of<PointwiseFamily::sliced_k>(a); }
Config pointwise_rows_prior(const PointwiseArguments& a) { return prior_of<PointwiseFamily::rows>(a); }

NamedChoice pointwise_nhwc_prior(const PointwiseArguments& a) {
  if (!why_none(a).empty()) return {};
  const PointwiseLaunch launch = plan(instances(), case_of(a));
  if (launch.instance == nullptr) return {};
  return {kNames[static_cast<int>(launch.instance->family)], config_of(launch)};
}

std::string why_not_nhwc(const PointwiseArguments& a) {
  const std::string reason = why_none(a);
  if (!reason.empty()) return reason;
  return plan(instances(), case_of(a)).instance != nullptr ? ""
                                                           : "the weight of 32 channels does not fit shared memory";
}

Plan<PointwiseArguments> plan_nhwc(const PointwiseArguments& a) {
  return plan_of(Pass(a, plan(instances(), case_of(a))), a);
}

}  // namespace gpu::hopper
}  // namespace fusedsc
#endif
