#ifdef FUSEDSC_HOPPER
#include "fusedsc/common/gpu/sums/partials_launch.h"
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_parameters.h"
#include "fusedsc/forward/pointwise/hopper_planes/pointwise_planes_instances.h"
#include "fusedsc/forward/pointwise/hopper_planes/pointwise_planes_weight.h"
#include "fusedsc/forward/pointwise/pointwise_kernels.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_launches.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc {
namespace gpu::hopper {
namespace {

constexpr const char* kName = "pointwise_conv2d";

template <class T>
void append_fused(std::vector<PlanesInstance>& to, DataType dtype) {
  append_fused_planes<T, false, false, EpilogueKind::statistics>(to, dtype);
  append_fused_planes<T, false, true, EpilogueKind::statistics>(to, dtype);
  append_fused_planes<T, false, false, EpilogueKind::inference>(to, dtype);
  append_fused_planes<T, false, true, EpilogueKind::inference>(to, dtype);
}

template <class T>
void append_all(std::vector<PlanesInstance>& to, DataType dtype) {
  append_plain_planes<T, false>(to, dtype);
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

PlanesCase case_of(const PointwiseArguments& a) {
  PlanesCase product = planes_case(a.x, a.y.sizes[1]);
  set_fusion(product, a);
  product.lays_out = lays_out_weight(product, a.weight);
  return product;
}

/// Of both families.
std::string why_none(const PointwiseArguments& a) {
  std::string reason =
      why_not_hopper(a.x.dtype, a.x.device, a.groups, a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3], a.allow_tf32);
  if (!reason.empty()) return reason;
  if (a.statistics && a.bias) return "it adds no bias where it takes statistics";
  if (!are_planes({a.x, a.epilogue.residual, a.y})) return kNoPlanes;
  return too_large_for_pointwise(a.x.sizes, a.y.sizes);
}

/// A launch, worked out but for addresses.
class Pass {
 public:
  Pass(const PointwiseArguments& a, const PlanesLaunch& launch)
      : case_(case_of(a)), launch_(launch), pads_(!suits_tma(weight_matrix(a.weight, 1), a.x.dtype)) {}

  std::size_t workspace_bytes(const PointwiseArguments& a) const {
    Arena arena(nullptr);
    take_partials(a, arena);
    take_padded(a, arena);
    return arena.used();
  }

  void run(const PointwiseArguments& a, const Execution& execution) const {
    const PointwiseProblem& problem = case_.problem;
    const PlanesInstance& instance = *launch_.instance;
    Arena arena(execution.workspace);
    PlanesParameters p;
    launch_.fill(case_, p);
    set_fusion(p, a, take_partials(a, arena));
    p.activations = map_of_planes(a.x, case_, instance.depth);
    p.added = map_of_planes(a.epilogue.residual, case_, instance.channels);
    p.output = map_of_planes(a.y, case_, instance.channels);
    void* padded = take_padded(a, arena);
    if (padded != nullptr) launch_padded_weight(kName, a.weight, padded, execution.stream);
    if (case_.lays_out) {
      p.source = WeightSource(a.weight, {});
    } else {
      p.rounds_weight = problem.dtype == DataType::float32;
      p.weight =
          map_of(padded != nullptr ? padded : a.weight.data, problem.dtype, problem.depth, problem.channels,
                 padded != nullptr ? padded_pitch(a.weight) : a.weight.strides[0], instance.depth, instance.channels);
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

  /// A weight as TMA reads it; null: the caller's is read.
  void* take_padded(const PointwiseArguments& a, Arena& arena) const {
    return pads_ ? arena.take<char>(padded_bytes(a.weight)) : nullptr;
  }

  PlanesCase case_;
  PlanesLaunch launch_;
  bool pads_;
};

constexpr const char* name_of(PointwiseFamily family) {
  return family == PointwiseFamily::resident ? "hopper_planes_resident" : "hopper_planes_sliced_k";
}

template <PointwiseFamily kFamily>
Kernel<PointwiseArguments> family() {
  const auto unsupported = [](const PointwiseArguments& a) {
    const std::string reason = why_none(a);
    if (!reason.empty()) return reason;
    const bool fits = !configs_of(instances(), case_of(a), kFamily).empty();
    return std::string(fits ? "" : "none of its tiles has what is fused, and fits shared memory");
  };
  const auto configs = [](const PointwiseArguments& a) { return configs_of(instances(), case_of(a), kFamily); };
  const auto plan = [](const PointwiseArguments& a, const Config& config, int /*threads*/) -> Plan<PointwiseArguments> {
    const PlanesLaunch launch = launch_with(instances(), case_of(a), kFamily, config);
    if (launch.instance == nullptr) throw_no_tile(kName, name_of(kFamily), config);
    const Pass pass(a, launch);
    return {pass.workspace_bytes(a),
            [pass](const PointwiseArguments& like, const Execution& execution) { pass.run(like, execution); }};
  };
  return {name_of(kFamily), unsupported, configs, plan};
}

}  // namespace

Kernel<PointwiseArguments> pointwise_planes_resident() { return family<PointwiseFamily::resident>(); }
Kernel<PointwiseArguments> pointwise_planes_sliced_k() { return family<PointwiseFamily::sliced_k>(); }

Config pointwise_planes_resident_prior(const PointwiseArguments& a) {
  return config_of(plan(instances(), case_of(a), PointwiseFamily::resident));
}
Config pointwise_planes_sliced_k_prior(const PointwiseArguments& a) {
  return config_of(plan(instances(), case_of(a), PointwiseFamily::sliced_k));
}

NamedChoice pointwise_planes_prior(const PointwiseArguments& a) {
  if (!why_none(a).empty()) return {};
  const PlanesLaunch launch = plan(instances(), case_of(a));
  if (launch.instance == nullptr) return {};
  return {name_of(launch.instance->family), config_of(launch)};
}

}  // namespace gpu::hopper
}  // namespace fusedsc
#endif
