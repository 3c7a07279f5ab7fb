#ifdef FUSEDSC_HOPPER
#include "fusedsc/common/gpu/partials_launch.h"
#include "fusedsc/common/gpu/pointwise_planes_instances.h"
#include "fusedsc/common/gpu/pointwise_planes_weight.h"
#include "fusedsc/forward/pointwise_gpu.h"
#include "fusedsc/forward/pointwise_hopper_parameters.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc {
namespace gpu::hopper {
namespace {

constexpr const char* kName = "pointwise_conv2d";

template <class T>
void append_seams(std::vector<PlanesInstance>& to, DataType dtype) {
  append_seam_planes<T, false, false, EpilogueKind::statistics>(to, dtype);
  append_seam_planes<T, false, true, EpilogueKind::statistics>(to, dtype);
  append_seam_planes<T, false, false, EpilogueKind::inference>(to, dtype);
  append_seam_planes<T, false, true, EpilogueKind::inference>(to, dtype);
}

template <class T>
void append_all(std::vector<PlanesInstance>& to, DataType dtype) {
  append_plain_planes<T, false>(to, dtype);
  append_seams<T>(to, dtype);
}

const std::vector<PlanesInstance>& instances() {
  static const std::vector<PlanesInstance> all = [] {
    std::vector<PlanesInstance> list = plain_float_planes();
    append_all<Float16>(list, DataType::float16);
    append_all<BFloat16>(list, DataType::bfloat16);
    append_seams<float>(list, DataType::float32);
    return list;
  }();
  return all;
}

PlanesCase case_of(const PointwiseArguments& a) {
  PlanesCase product = planes_case(a.x, a.y.sizes[1]);
  set_seams(product, a);
  product.lays_out = lays_out_weight(product, a.weight);
  return product;
}

std::string why_not(const PointwiseArguments& a) {
  std::string reason =
      why_not_hopper(a.x.dtype, a.x.device, a.groups, a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3], a.allow_tf32);
  if (!reason.empty()) return reason;
  if (a.statistics && a.bias) return "it adds no bias where it takes statistics";
  if (!are_planes({a.x, a.epilogue.residual, a.y})) return kNoPlanes;
  reason = too_large_for_pointwise(a.x.sizes, a.y.sizes);
  if (!reason.empty()) return reason;
  return plan(instances(), case_of(a)).instance != nullptr ? "" : "no tile of these tensors fits block memory";
}

/// A launch, worked out but for addresses.
class Pass {
 public:
  explicit Pass(const PointwiseArguments& a)
      : case_(case_of(a)),
        launch_(plan(instances(), case_)),
        pads_(!suits_copy_engine(weight_matrix(a.weight, 1), a.x.dtype)) {}

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
    set_seams(p, a, take_partials(a, arena));
    p.activations = map_of_planes(a.x, case_, instance.depth);
    p.added = map_of_planes(a.epilogue.residual, case_, instance.channels);
    p.output = map_of_planes(a.y, case_, instance.channels);
    void* padded = take_padded(a, arena);
    if (padded != nullptr) launch_padded_weight(kName, a.weight, padded, execution.stream);
    if (case_.lays_out) {
      p.source = WeightSource(a.weight, {});
    } else {
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

  /// A weight as the copy engine reads it; null: the caller's is read.
  void* take_padded(const PointwiseArguments& a, Arena& arena) const {
    return pads_ ? arena.take<char>(padded_bytes(a.weight)) : nullptr;
  }

  PlanesCase case_;
  PlanesLaunch launch_;
  bool pads_;
};

Plan<PointwiseArguments> plan_forward(const PointwiseArguments& a, int /*threads*/) {
  const Pass pass(a);
  return {pass.workspace_bytes(a),
          [pass](const PointwiseArguments& like, const Execution& execution) { pass.run(like, execution); }};
}

}  // namespace
}  // namespace gpu::hopper

Implementation<PointwiseArguments> pointwise_hopper_planes() {
  return {"gpu_hopper_planes", gpu::hopper::why_not, gpu::hopper::plan_forward};
}

}  // namespace fusedsc
#endif
