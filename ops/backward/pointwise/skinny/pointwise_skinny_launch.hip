#include "fusedsc/backward/pointwise/pointwise_kernels.h"
#include "fusedsc/backward/pointwise/skinny/pointwise_skinny_kernel.h"
#include "fusedsc/common/gpu/sums/partials_launch.h"
#include "fusedsc/forward/depthwise/rows/depthwise_plan.h"
#include "fusedsc/forward/pointwise/skinny/pointwise_skinny_plan.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc {
namespace gpu {
namespace {

constexpr const char* kName = "pointwise_conv2d_backward";

template <class Gradients>
FUSEDSC_KERNEL(kSkinnyThreads, Gradients::kBlocks)
skinny_gradients_kernel(PointwiseSkinnyGradientsParameters parameters) {
  wait_for_previous_kernel();
  Gradients::run(parameters);
}

struct Instance {
  DataType dtype;
  bool channels_inner;
  int outputs, vector, at_once;
  void (*run)(PointwiseSkinnyGradientsParameters);
  int memory_bytes;
};

template <class T, bool kChannelsInner, int kOutputs, int kVector>
constexpr Instance instance(DataType dtype) {
  using Gradients = std::conditional_t<kChannelsInner, PointwiseSkinnyChannelsGradients<T, kOutputs, kVector>,
                                       PointwiseSkinnyPlanesGradients<T, kOutputs, kVector>>;
  return {dtype,
          kChannelsInner,
          kOutputs,
          kVector,
          Gradients::kAtOnce,
          skinny_gradients_kernel<Gradients>,
          Gradients::memory_bytes()};
}

template <class T, bool kChannelsInner, int kVector>
void append(std::vector<Instance>& to, DataType dtype) {
  to.push_back(instance<T, kChannelsInner, 1, kVector>(dtype));
  to.push_back(instance<T, kChannelsInner, 2, kVector>(dtype));
  to.push_back(instance<T, kChannelsInner, kMostSkinnyOutputs, kVector>(dtype));
}

template <class T>
void append_all(std::vector<Instance>& to, DataType dtype) {
  constexpr int kRun = 16 / static_cast<int>(sizeof(T));
  append<T, true, kRun>(to, dtype);
  append<T, true, 1>(to, dtype);
  append<T, false, kRun>(to, dtype);
  if constexpr (kRun > 2) append<T, false, kRun / 2>(to, dtype);
  append<T, false, 1>(to, dtype);
}

const std::vector<Instance>& instances() {
  static const std::vector<Instance> all = [] {
    std::vector<Instance> list;
    append_all<Float16>(list, DataType::float16);
    append_all<BFloat16>(list, DataType::bfloat16);
    append_all<float>(list, DataType::float32);
    append_all<double>(list, DataType::float64);
    return list;
  }();
  return all;
}

/// Of contiguous tensors grad_y comes in the vectors of x.
SkinnyLayout layout_of(const PointwiseBackwardArguments& a) {
  const SkinnyLayout layout = skinny_layout({a.x, a.grad_x}, {a.grad_y});
  return layout.channels_inner ? layout : skinny_layout({a.x, a.grad_x, a.grad_y}, {});
}

std::string why_not(const PointwiseBackwardArguments& a) {
  if (a.gradient_prologue || a.grad_add) return "there is a gradient prologue, or grad_add";
  const SkinnyLayout layout = layout_of(a);
  if (!a.grad_x && layout.channels_inner && a.weight.sizes[0] > 1) return "of several outputs it is for that of x, too";
  return why_not_skinny(a.x, a.weight, a.groups, a.windows.channels > 0, layout);
}

/// The launches, worked out but for addresses.
class SkinnyGradientsPass {
 public:
  explicit SkinnyGradientsPass(const PointwiseBackwardArguments& a) {
    const SkinnyLayout layout = layout_of(a);
    const int outputs = skinny_outputs(a.grad_y.sizes[1]);
    instance_ = &*std::find_if(instances().begin(), instances().end(), [&](const Instance& candidate) {
      return candidate.dtype == a.x.dtype && candidate.channels_inner == layout.channels_inner &&
             candidate.outputs == outputs && candidate.vector == layout.vector;
    });
    p_.channels = static_cast<int>(a.x.sizes[1]);
    p_.outputs = static_cast<int>(a.grad_y.sizes[1]);
    p_.positions = skinny_positions(a.x.sizes, layout);
    p_.has_weight = static_cast<bool>(a.grad_weight);
    p_.has_sums = static_cast<bool>(a.sums);
    p_.rows = (p_.has_weight ? p_.outputs : 0) + (p_.has_sums ? 2 : 0);
    const int vectors = (p_.channels + layout.vector - 1) / layout.vector;
    p_.lanes = layout.channels_inner ? std::min(vectors, 32) : 1;
    groups_ = layout.channels_inner ? (vectors + p_.lanes - 1) / p_.lanes : p_.channels;
    p_.by_groups = Divisor(static_cast<std::uint32_t>(groups_));
    const int step = (layout.channels_inner ? kSkinnyThreads / p_.lanes : kSkinnyThreads) * instance_->at_once;
    const std::int64_t resident = resident_blocks(instance_->run, kSkinnyThreads, memory());
    const std::int64_t steps = (p_.positions.vectors + step - 1) / step;
    const std::int64_t most = std::clamp<std::int64_t>(resident / groups_, 1, steps), each = (steps + most - 1) / most;
    p_.splits = static_cast<int>((steps + each - 1) / each);
    p_.split_vectors = static_cast<int>(each * step);
  }

  std::size_t workspace_bytes(const PointwiseBackwardArguments& a) const {
    Arena arena(nullptr);
    take_partials(arena, a);
    take_bias_partials(arena, a);
    return arena.used();
  }

  void run(const PointwiseBackwardArguments& a, const Execution& execution) const {
    Arena arena(execution.workspace);
    PointwiseSkinnyGradientsParameters p = p_;
    p.x = SkinnyTensor(a.x);
    p.grad_y = SkinnyTensor(a.grad_y);
    p.grad_x = SkinnyOutput(a.grad_x);
    p.weight = a.weight;
    p.prologue = {a.prologue.scale.data, a.prologue.shift.data, a.prologue.activation};
    p.mean = a.sums.mean.data;
    p.partials = take_partials(arena, a);
    p.bias_partials = take_bias_partials(arena, a);
    launch_following(kName, instance_->run, std::int64_t{groups_} * p.splits, kSkinnyThreads, execution.stream, p,
                     memory());
    if (p.rows > 0) {
      SumPartialsParameters sum(a.sums, a.x);
      sum.partials = p.partials;
      sum.splits = p.splits;
      sum.taps = p.has_weight ? p.outputs : 0;
      sum.rows = p.rows;
      sum.channels = p.channels;
      sum.weight.data = a.grad_weight.data;  // rows are outputs
      sum.weight.image = a.grad_weight.strides[1];
      sum.weight.row = a.grad_weight.strides[0];
      launch_sum_partials(kName, a.x.dtype, sum, execution.stream);
    }
    if (p.bias_partials == nullptr) return;
    SumPartialsParameters sum;
    sum.partials = p.bias_partials;
    sum.splits = p.splits;
    sum.rows = 1;
    sum.channels = p.outputs;
    sum.bias = a.grad_bias.data;
    launch_sum_partials(kName, a.x.dtype, sum, execution.stream);
  }

 private:
  std::size_t memory() const { return static_cast<std::size_t>(instance_->memory_bytes); }
  void* take_partials(Arena& arena, const PointwiseBackwardArguments& a) const {
    const auto bytes = static_cast<std::int64_t>(size_of(accumulation_type(a.x.dtype)));
    return p_.rows > 0 ? arena.take<char>(std::int64_t{p_.splits} * p_.rows * p_.channels * bytes) : nullptr;
  }
  void* take_bias_partials(Arena& arena, const PointwiseBackwardArguments& a) const {
    const auto bytes = static_cast<std::int64_t>(size_of(accumulation_type(a.x.dtype)));
    return a.grad_bias ? arena.take<char>(std::int64_t{p_.splits} * p_.outputs * bytes) : nullptr;
  }

  const Instance* instance_ = nullptr;
  PointwiseSkinnyGradientsParameters p_;  ///< without addresses
  int groups_ = 1;
};

Plan<PointwiseBackwardArguments> plan_skinny(const PointwiseBackwardArguments& a, int /*threads*/) {
  const SkinnyGradientsPass pass(a);
  return {pass.workspace_bytes(a),
          [pass](const PointwiseBackwardArguments& like, const Execution& execution) { pass.run(like, execution); }};
}

/// Microseconds: of launches, and of each 2^20 elements of x.
struct SkinnyCost {
  double start, each;

  double of(double elements) const { return start + each * elements; }
};

// Fitted to times on an H200: of 96→4 at 32 positions; of 64→1, 64→2 and 64→4 at 100,352, and 384→1 at 25,088, with
// relu6 behind an affine map and sums; float16. Sums over blocks and second kernels are the start.
SkinnyCost cost_in_one_pass(const PointwiseBackwardArguments& a) {
  const auto outputs = static_cast<double>(a.grad_y.sizes[1]);
  const double each = layout_of(a).channels_inner ? 1.3 + 0.52 * outputs : 1 + 0.25 * outputs;
  return wants_weight(a) ? SkinnyCost{11.4, each - 0.5} : SkinnyCost{7.6, each};
}

/// Of each gradient by itself, of whichever kernel is the best: contiguous images of whole vectors are TMA's.
SkinnyCost cost_of_others(const PointwiseBackwardArguments& a) {
  const std::int64_t image_bytes = a.x.sizes[2] * a.x.sizes[3] * static_cast<std::int64_t>(size_of(a.x.dtype));
  const bool is_for_tma = !layout_of(a).channels_inner && image_bytes % 16 == 0;
  SkinnyCost cost{0, 0};
  if (a.grad_x) cost = {2.1, is_for_tma ? 2.5 : 6.6};
  if (wants_weight(a)) cost = {cost.start + 3.3, cost.each + (is_for_tma ? 2.0 : 2.8)};
  return cost;
}

}  // namespace
}  // namespace gpu

bool suits_pointwise_skinny(const PointwiseBackwardArguments& a) {
  const double elements = static_cast<double>(a.x.elements()) / (1 << 20);
  return gpu::cost_in_one_pass(a).of(elements) < gpu::cost_of_others(a).of(elements);
}

Implementation<PointwiseBackwardArguments> pointwise_backward_skinny() {
  return {"gpu_skinny", gpu::why_not, gpu::plan_skinny};
}

}  // namespace fusedsc
