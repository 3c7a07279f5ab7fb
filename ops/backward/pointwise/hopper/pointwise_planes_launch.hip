#ifdef FUSEDSC_HOPPER
#include <algorithm>

#include "fusedsc/backward/pointwise/hopper/pointwise_hopper_configs.h"
#include "fusedsc/backward/pointwise/hopper/pointwise_hopper_parameters.h"
#include "fusedsc/backward/pointwise/hopper/pointwise_hopper_transposed.h"
#include "fusedsc/backward/pointwise/pointwise_kernels.h"
#include "fusedsc/common/gpu/sums/partials_launch.h"
#include "fusedsc/forward/pointwise/hopper_planes/pointwise_planes_instances.h"
#include "fusedsc/forward/pointwise/hopper_planes/pointwise_planes_weight.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc {
namespace gpu::hopper {
namespace {

using tuning::Config;
using tuning::Configs;

constexpr const char *kName = "pointwise_conv2d_backward", *kKernel = "hopper_planes";

template <class T>
void append_fused(std::vector<PlanesInstance>& to, DataType dtype) {
  append_fused_planes<T, true, false, EpilogueKind::gradient>(to, dtype);
  append_fused_planes<T, true, true, EpilogueKind::gradient>(to, dtype);
}

template <class T>
void append_all(std::vector<PlanesInstance>& to, DataType dtype) {
  append_plain_planes<T, true>(to, dtype);
  append_fused<T>(to, dtype);
}

const std::vector<PlanesInstance>& instances() {
  static const std::vector<PlanesInstance> all = [] {
    std::vector<PlanesInstance> list = plain_float_planes();
    append_all<Float16>(list, DataType::float16);
    append_all<BFloat16>(list, DataType::bfloat16);
    append_fused<float>(list, DataType::float32);
    return list;
  }();
  return all;
}

/// Of the input gradient: grad_y is what is multiplied.
PlanesCase case_of(const PointwiseBackwardArguments& a) {
  PlanesCase product = planes_case(a.grad_y, a.x.sizes[1]);
  set_fusion(product, a);
  product.input_gradient = true;
  product.smem_transposes_weight = can_smem_transpose_weight(product, a);
  product.lays_out = lays_out_weight(product, a.weight);
  return product;
}

std::string why_not(const PointwiseBackwardArguments& a) {
  std::string reason =
      why_not_hopper(a.x.dtype, a.x.device, a.groups, a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3], a.allow_tf32);
  if (!reason.empty()) return reason;
  reason = why_not_input(a);
  if (!reason.empty()) return reason;
  const ConstTensorView x = a.prologue ? a.x : ConstTensorView{};
  if (!are_planes({a.grad_y, a.gradient_prologue.output, x, a.grad_add, a.grad_x})) return kNoPlanes;
  reason = too_large_for_pointwise(a.x.sizes, a.grad_y.sizes);
  if (!reason.empty()) return reason;
  return plan(instances(), case_of(a)).instance != nullptr ? "" : "no tile of these tensors fits shared memory";
}

PlanesLaunch launch_of(const PlanesCase& product, const Config& config) {
  if (config == Config()) return plan(instances(), product);
  const PlanesLaunch launch = launch_with(instances(), product, family_of(config), without_family(config));
  if (launch.instance == nullptr) throw_no_tile(kName, kKernel, config);
  return launch;
}

/// The launch of the input gradient, worked out but for addresses.
class InputPass {
 public:
  /// By the cheapest tile, or one that was chosen. Throws Unsupported where that does not fit.
  explicit InputPass(const PointwiseBackwardArguments& a, const Config& config = {})
      : case_(case_of(a)),
        launch_(launch_of(case_, config)),
        pads_(!transposes() && !launch_.smem_transposes_weight && !suits_tma(weight_matrix(a.weight, 1), a.x.dtype)) {}

  Config config() const { return with_family(config_of(launch_), launch_.instance->family); }

  /// What is between its kernels.
  struct Memory {
    float* transposed;
    void* padded;
    float* partials;
  };
  Memory take_memory(const PointwiseBackwardArguments& a, Arena& arena) const {
    return {transposes() ? arena.take<float>(case_.problem.channels * transposed_pitch(case_.problem.depth)) : nullptr,
            pads_ ? arena.take<char>(padded_bytes(a.weight)) : nullptr,
            a.sums ? arena.take<float>(std::int64_t{2} * launch_.splits * a.x.sizes[1]) : nullptr};
  }

  void run(const PointwiseBackwardArguments& a, const Execution& execution) const {
    const PointwiseProblem& problem = case_.problem;
    const PlanesInstance& instance = *launch_.instance;
    Arena arena(execution.workspace);
    const Memory memory = take_memory(a, arena);
    PlanesParameters p;
    launch_.fill(case_, p);
    set_fusion(p, a, memory.partials);
    p.other_rows = a.gradient_prologue.output.data;
    p.x_rows = a.x.data;
    p.added_rows = a.grad_add.data;
    p.activations = map_of_planes(a.grad_y, case_, instance.depth);
    p.other = map_of_planes(a.gradient_prologue.output, case_, instance.depth);
    if (case_.has_x) p.x = map_of_planes(a.x, case_, instance.channels);
    p.added = map_of_planes(a.grad_add, case_, instance.channels);
    p.output = map_of_planes(a.grad_x, case_, instance.channels);
    if (transposes()) {
      launch_transposed_weight(kName, a.weight, memory.transposed, execution.stream);
      p.weight = map_of(memory.transposed, problem.dtype, problem.depth, problem.channels,
                        transposed_pitch(problem.depth), instance.depth, instance.channels);
    } else if (launch_.smem_transposes_weight) {
      p.weight = map_for_smem_transpose(a.weight);
    } else if (case_.lays_out) {
      p.source = WeightSource(a.weight, {});
    } else {
      if (pads_) launch_padded_weight(kName, a.weight, memory.padded, execution.stream);
      p.weight = map_of(pads_ ? memory.padded : a.weight.data, problem.dtype, problem.channels, problem.depth,
                        pads_ ? padded_pitch(a.weight) : a.weight.strides[0], instance.columns(), instance.depth);
    }
    launch_.start(kName, case_, p, execution.stream);
    if (!a.sums) return;
    launch_gradient_sums(kName, p.epilogue.partials, launch_.splits, a.sums, a.x, execution.stream);
  }

 private:
  /// Products of floats have their k innermost.
  bool transposes() const { return case_.problem.dtype == DataType::float32 && !launch_.smem_transposes_weight; }

  PlanesCase case_;
  PlanesLaunch launch_;
  bool pads_;  ///< TMA reads a copy of the weight
};

Configs configs(const PointwiseBackwardArguments& a) { return configs_of_all(instances(), case_of(a)); }

Plan<PointwiseBackwardArguments> plan_input(const PointwiseBackwardArguments& a, const Config& config,
                                            int /*threads*/) {
  const InputPass pass(a, config);
  Arena arena(nullptr);
  pass.take_memory(a, arena);
  return {arena.used(),
          [=](const PointwiseBackwardArguments& like, const Execution& execution) { pass.run(like, execution); }};
}

}  // namespace
}  // namespace gpu::hopper

tuning::Kernel<PointwiseBackwardArguments> pointwise_backward_hopper_planes() {
  return {gpu::hopper::kKernel, gpu::hopper::why_not, gpu::hopper::configs, gpu::hopper::plan_input};
}

tuning::Config pointwise_backward_hopper_planes_prior(const PointwiseBackwardArguments& a) {
  return gpu::hopper::InputPass(a).config();
}

}  // namespace fusedsc
#endif
