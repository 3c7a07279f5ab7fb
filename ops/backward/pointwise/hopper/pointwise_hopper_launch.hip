#ifdef FUSEDSC_HOPPER
#include <algorithm>

#include "fusedsc/backward/pointwise/hopper/pointwise_hopper_configs.h"
#include "fusedsc/backward/pointwise/hopper/pointwise_hopper_parameters.h"
#include "fusedsc/backward/pointwise/hopper/pointwise_hopper_prologue_pass.h"
#include "fusedsc/backward/pointwise/hopper/pointwise_hopper_swap_ab.h"
#include "fusedsc/backward/pointwise/hopper/pointwise_hopper_transposed.h"
#include "fusedsc/backward/pointwise/hopper_weight/pointwise_hopper_weight.h"
#include "fusedsc/backward/pointwise/pointwise_kernels.h"
#include "fusedsc/common/gpu/sums/partials_launch.h"
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_instances.h"
#include "fusedsc/forward/sliding_channel/weight/sliding_channel_weight.h"
#include "fusedsc/forward/sliding_channel/weight/sliding_channel_weight_gpu.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc {
namespace gpu::hopper {
namespace {

using tuning::Config;
using tuning::Configs;

constexpr const char *kName = "pointwise_conv2d_backward", *kKernel = "hopper";

using SlicedKTiles = Tiles<SlicedKTile<1, 32, 2>, SlicedKTile<1, 96, 2>, SlicedKTile<2, 96, 1>, SlicedKTile<2, 192, 1>>;

template <class T>
void append_all(std::vector<PointwiseInstance>& to, DataType dtype) {
  append<T, true, false, EpilogueKind::plain>(to, dtype, PlainTiles());
  append<T, true, false, EpilogueKind::plain>(to, dtype, PlainSlicedKTiles());
  append<T, true, EpilogueKind::plain>(to, dtype, RowsTiles());
  append<T, true, false, EpilogueKind::gradient>(to, dtype, Tiles<Tile<32, 64, 4>, Tile<64, 64, 3>>());
  append<T, true, false, EpilogueKind::gradient>(to, dtype, SlicedKTiles());
  append<T, true, true, EpilogueKind::gradient>(
      to, dtype, Tiles<Tile<32, 32, 5>, Tile<32, 64, 2>, Tile<32, 64, 4>, Tile<64, 32, 3>, Tile<64, 64, 3>>());
  append<T, true, true, EpilogueKind::gradient>(to, dtype, SlicedKTiles());
}

// The input gradient of float32 without and with a gradient prologue.
using FloatTiles = Tiles<Tile<32, 32, 3>, Tile<32, 32, 4>, Tile<64, 32, 2>>;
using FloatFusedTiles = Tiles<Tile<32, 32, 3>, Tile<64, 32, 2>, Tile<96, 32, 2>>;
using FloatSlicedKTiles =
    Tiles<SlicedKTile<1, 32, 2>, SlicedKTile<1, 96, 2>, SlicedKTile<2, 64, 1>, SlicedKTile<2, 96, 1>>;
using FloatFusedSlicedKTiles =
    Tiles<SlicedKTile<1, 64, 2>, SlicedKTile<1, 96, 2>, SlicedKTile<2, 64, 1>, SlicedKTile<2, 96, 1>>;

void append_floats(std::vector<PointwiseInstance>& to) {
  constexpr DataType kType = DataType::float32;
  to.insert(to.end(), plain_float_instances().begin(), plain_float_instances().end());
  append<float, true, false, EpilogueKind::gradient>(to, kType, FloatTiles());
  append<float, true, false, EpilogueKind::gradient>(to, kType, FloatSlicedKTiles());
  append<float, true, true, EpilogueKind::gradient>(to, kType, FloatFusedTiles());
  append<float, true, true, EpilogueKind::gradient>(to, kType, FloatFusedSlicedKTiles());
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

/// Of the input gradient: grad_y is what is multiplied.
PointwiseCase case_of(const PointwiseBackwardArguments& a) {
  const std::int64_t pixels = a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3];
  PointwiseCase product{{a.x.dtype, true, pixels, a.grad_y.sizes[1], a.x.sizes[1], 1}};
  set_fusion(product, a);
  product.input_gradient = a.windows.channels == 0;
  product.smem_transposes_weight = a.windows.channels == 0 && can_smem_transpose_weight(product, a);
  product.lays_out = lays_out_in_blocks(a.weight, a.windows);
  product.has_slow_rows = has_slow_rows(a.weight, a.windows, pixels);
  product.is_dense = is_dense(activation_matrix(a.grad_y, 1, true), a.grad_y.sizes[1]) &&
                     is_dense(output_matrix(a.grad_x, 1, true), a.x.sizes[1]);
  return product;
}

std::string why_not(const PointwiseBackwardArguments& a) {
  const PointwiseCase product = case_of(a);
  std::string reason = why_not_hopper(a.x.dtype, a.x.device, a.groups, product.problem.pixels, a.allow_tf32);
  if (reason.empty()) reason = why_not_one_gradient(a);
  if (reason.empty()) reason = too_large_for_pointwise(a.x.sizes, a.grad_y.sizes);
  if (!reason.empty()) return reason;
  const bool has_windows = a.windows.channels > 0;
  if (has_windows && (size_of(a.x.dtype) != 2 || !suits_weight(a.weight, a.windows))) return kUnsuited;
  if (!a.grad_x) return PointwiseWeightPass::suits(a) ? "" : kUnsuited;
  const ConstTensorView x = a.prologue ? a.x : ConstTensorView{};
  const auto suits = [&](const auto& matrix) { return suits_tma(matrix, a.x.dtype); };
  const bool lays_out_weight = has_windows || a.x.dtype == DataType::float32;  // and takes any
  if (!suits(activation_matrix(a.grad_y, 1, true)) || (!lays_out_weight && !suits(weight_matrix(a.weight, 1))) ||
      !suits(activation_matrix(a.gradient_prologue.output, 1, true)) || !suits(activation_matrix(x, 1, true)) ||
      !suits(activation_matrix(a.grad_add, 1, true)) || !suits(output_matrix(a.grad_x, 1, true))) {
    return kUnsuited;
  }
  return plan(instances(), product).instance != nullptr ? "" : "the weight of 32 channels does not fit shared memory";
}

/// The launch of the input gradient, worked out but for addresses.
class InputPass {
 public:
  explicit InputPass(const PointwiseBackwardArguments& a) : case_(case_of(a)), launch_(plan(instances(), case_)) {}
  /// By a tile that was chosen. Throws Unsupported where it does not fit.
  InputPass(const PointwiseBackwardArguments& a, const Config& config)
      : case_(case_of(a)), launch_(launch_with(instances(), case_, family_of(config), without_family(config))) {
    if (launch_.instance == nullptr) throw_no_tile(kName, kKernel, config);
  }

  double cost() const { return launch_.cost; }
  Config config() const { return with_family(config_of(launch_), launch_.instance->family); }

  /// What is between its kernels.
  struct Memory {
    float *weight, *partials;
    TensorView expanded;
  };
  Memory take_memory(const PointwiseBackwardArguments& a, Arena& arena) const {
    return {transposes() ? arena.take<float>(case_.problem.channels * transposed_pitch(case_.problem.depth)) : nullptr,
            take_partials(a, arena), expands(a) ? take_expanded_weight(arena, a.weight, a.windows) : TensorView{}};
  }

  float* take_partials(const PointwiseBackwardArguments& a, Arena& arena) const {
    return a.sums ? arena.take<float>(std::int64_t{2} * launch_.splits * a.x.sizes[1]) : nullptr;
  }

  void run(const PointwiseBackwardArguments& a, Arena& arena, void* stream) const {
    const PointwiseProblem& problem = case_.problem;
    const PointwiseInstance& instance = *launch_.instance;
    PointwiseParameters p;
    launch_.fill(case_, p);
    const Memory memory = take_memory(a, arena);
    set_fusion(p, a, memory.partials);
    const auto map = [&](const auto& matrix, std::int64_t channels, int columns) {
      return map_of(matrix, problem.dtype, channels, problem.pixels, columns);
    };
    p.activations = map(activation_matrix(a.grad_y, 1, true), problem.depth, instance.depth);
    p.other = map(activation_matrix(a.gradient_prologue.output, 1, true), problem.depth, instance.depth);
    p.output = map(output_matrix(a.grad_x, 1, true), problem.channels, instance.columns());
    if (case_.has_x) p.x = map(activation_matrix(a.x, 1, true), problem.channels, instance.columns());
    p.added = map(activation_matrix(a.grad_add, 1, true), problem.channels, instance.columns());
    if (launch_.lays_out) {
      p.source = WeightSource(a.weight, a.windows);
    } else if (transposes()) {
      launch_transposed_weight(kName, a.weight, memory.weight, stream);
      p.weight = map_of(memory.weight, problem.dtype, problem.depth, problem.channels, transposed_pitch(problem.depth),
                        instance.depth, instance.channels);
    } else if (launch_.smem_transposes_weight) {
      p.weight = map_for_smem_transpose(a.weight);
    } else {
      const ConstTensorView weight = expands(a) ? ConstTensorView(memory.expanded) : a.weight;
      if (expands(a)) gpu::expand_sliding_channels(a.windows, a.weight, memory.expanded, stream);
      p.weight_is_new = expands(a);
      p.weight = map_of(weight.data, problem.dtype, problem.channels, problem.depth, weight.strides[0],
                        instance.columns(), instance.depth);
    }
    launch_.start(kName, case_, p, stream);
    if (!a.sums) return;
    launch_gradient_sums(kName, p.epilogue.partials, launch_.splits, a.sums, a.x, stream);
  }

 private:
  /// Products of floats have their k innermost.
  bool transposes() const { return case_.problem.dtype == DataType::float32 && !launch_.smem_transposes_weight; }
  /// TMA wants rows of all channels.
  bool expands(const PointwiseBackwardArguments& a) const { return a.windows.channels > 0 && !launch_.lays_out; }

  PointwiseCase case_;
  PointwiseLaunch launch_;
};

using BackwardPlan = Plan<PointwiseBackwardArguments>;

BackwardPlan plan_of(const InputPass& pass, const PointwiseBackwardArguments& a) {
  Arena arena(nullptr);
  pass.take_memory(a, arena);
  return {arena.used(), [pass](const PointwiseBackwardArguments& like, const Execution& execution) {
            Arena taken(execution.workspace);
            pass.run(like, taken, execution.stream);
          }};
}

/// Whether the products' sides are better swapped.
bool suits_swap_ab(const PointwiseBackwardArguments& a) {
  return SwapAbInputPass::suits(a) && SwapAbInputPass(a).cost() < InputPass(a).cost();
}

BackwardPlan plan_input(const PointwiseBackwardArguments& a) {
  if (!suits_swap_ab(a)) return plan_of(InputPass(a), a);
  return {0, [pass = SwapAbInputPass(a)](const PointwiseBackwardArguments& like, const Execution& execution) {
            pass.run(like, execution.stream);
          }};
}

/// Whether the prologue of x is worth a pass of its own before the weight gradient: kernels that apply it do so for
/// each tile of the weight, and are made for a gradient prologue beside it.
bool forms_activations(const PointwiseBackwardArguments& a) {
  return a.prologue && !a.gradient_prologue && a.grad_weight && !a.grad_bias &&
         a.x.sizes[1] <= most_prologue_pass_outputs(a.x.dtype) && PointwiseWeightPass::suits(a);
}

/// The weight gradient's arguments after the prologue.
PointwiseBackwardArguments with_activations(const PointwiseBackwardArguments& a, const void* activations) {
  PointwiseBackwardArguments rest = without_input(a);
  const Sizes& sizes = a.x.sizes;
  rest.x = ConstTensorView(activations, a.x.dtype, sizes, dense_strides(sizes, Layout::channels_last), Device::gpu);
  rest.prologue = {};
  return rest;
}

BackwardPlan plan_weight_of_activations(const PointwiseBackwardArguments& a, const Config& config) {
  const PointwiseWeightPass pass(with_activations(a, a.x.data), config);
  const auto take = [](Arena& arena, const PointwiseBackwardArguments& like) {
    return arena.take<char>(like.x.elements() * static_cast<std::int64_t>(size_of(like.x.dtype)));
  };
  Arena arena(nullptr);
  take(arena, a);
  pass.take_memory(with_activations(a, a.x.data), arena);
  return {arena.used(), [=](const PointwiseBackwardArguments& like, const Execution& execution) {
            Arena taken(execution.workspace);
            void* activations = take(taken, like);
            launch_activation_prologue(like, activations, execution.stream);
            pass.run(with_activations(like, activations), taken, execution.stream);
          }};
}

BackwardPlan plan_weight(const PointwiseBackwardArguments& a, const Config& config) {
  if (forms_activations(a)) return plan_weight_of_activations(a, config);
  const PointwiseWeightPass pass(a, config);
  Arena arena(nullptr);
  pass.take_memory(a, arena);
  return {arena.used(), [pass](const PointwiseBackwardArguments& like, const Execution& execution) {
            Arena taken(execution.workspace);
            pass.run(like, taken, execution.stream);
          }};
}

// --------------------------------------------------------------------------------------------------------- to choose

PointwiseBackwardArguments arguments_of_weight(const PointwiseBackwardArguments& a) {
  return forms_activations(a) ? with_activations(a, a.x.data) : a;
}

Configs configs(const PointwiseBackwardArguments& a) {
  return a.grad_x ? configs_of_all(instances(), case_of(a)) : PointwiseWeightPass::configs(arguments_of_weight(a));
}

BackwardPlan plan_with(const PointwiseBackwardArguments& a, const Config& config, int /*threads*/) {
  if (!a.grad_x) return plan_weight(a, config);
  return config == Config() ? plan_input(a) : plan_of(InputPass(a, config), a);
}

/// None where the products' sides are swapped, about which there is nothing to choose.
Config prior_config(const PointwiseBackwardArguments& a) {
  if (!a.grad_x) return PointwiseWeightPass(arguments_of_weight(a)).config();
  return suits_swap_ab(a) ? Config() : InputPass(a).config();
}

}  // namespace
}  // namespace gpu::hopper

tuning::Kernel<PointwiseBackwardArguments> pointwise_backward_hopper() {
  return {gpu::hopper::kKernel, gpu::hopper::why_not, gpu::hopper::configs, gpu::hopper::plan_with};
}

tuning::Config pointwise_backward_hopper_prior(const PointwiseBackwardArguments& a) {
  return gpu::hopper::prior_config(a);
}

}  // namespace fusedsc
#endif
