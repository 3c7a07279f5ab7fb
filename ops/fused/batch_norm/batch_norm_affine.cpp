#include "fusedsc/fused/batch_norm_affine.h"

#include "fusedsc/common/checks/checks.h"
#include "fusedsc/common/clear.h"
#include "fusedsc/fused/batch_norm/batch_norm_affine_cpu.h"
#include "fusedsc/fused/batch_norm/batch_norm_affine_gpu.h"
#include "fusedsc/runtime/operator.h"

namespace fusedsc {
namespace {

std::span<const Implementation<BatchNormFinalizeArguments>> finalize_implementations() {
  static const Implementation<BatchNormFinalizeArguments> list[] = {
#ifdef FUSEDSC_GPU
      batch_norm_finalize_gpu(),
#endif
      batch_norm_finalize_cpu(),
  };
  return list;
}

std::span<const Implementation<BatchNormApplyArguments>> apply_implementations() {
  static const Implementation<BatchNormApplyArguments> list[] = {
#ifdef FUSEDSC_GPU
      batch_norm_apply_gpu(),
#endif
      batch_norm_apply_cpu(),
  };
  return list;
}

std::span<const Implementation<BatchNormReduceArguments>> reduce_implementations() {
  static const Implementation<BatchNormReduceArguments> list[] = {
#ifdef FUSEDSC_GPU
      batch_norm_reduce_gpu(),
#endif
      batch_norm_reduce_cpu(),
  };
  return list;
}

void check_count(std::int64_t count) {
  check(count > 0, "count: it is ", count, "; BatchNorm needs at least one value per channel");
}

void check_affine(const ConstTensorView& x, const ConstChannelVector& scale, const ConstChannelVector& shift) {
  check_readable({"x", x});
  check_channels("scale", scale, x.sizes[1], accumulation_type(x.dtype));
  check_channels("shift", shift, x.sizes[1], accumulation_type(x.dtype));
  check(static_cast<bool>(scale) == static_cast<bool>(shift),
        "scale and shift: only one is given; give both or neither");
}

/// Of an image_scale.
void check_per_image(const ConstChannelVector& scale, const ConstTensorView& x) {
  if (!scale) return;
  check(scale.size == x.sizes[0], "image_scale: it has ", scale.size, " values, but must have ", x.sizes[0],
        ", one per image");
  check_channels("image_scale", scale, scale.size, accumulation_type(x.dtype));
}

void check_like_x(const NamedTensor& tensor, const ConstTensorView& x) {
  check_readable(tensor);
  check_sizes(tensor, x.sizes, "those of x");
  check_dtype(tensor, x.dtype, "that of x");
}

void check_problem(const BatchNormApplyArguments& arguments) {
  check_affine(arguments.x, arguments.scale, arguments.shift);
  check_per_image(arguments.image_scale, arguments.x);
  check_like_x({"out", arguments.out}, arguments.x);
  check_writable({"out", arguments.out});
  if (arguments.residual) check_like_x({"residual", arguments.residual}, arguments.x);
}

void check_problem(const BatchNormReduceArguments& arguments) {
  check_affine(arguments.x, arguments.scale, arguments.shift);
  check_like_x({"grad_y", arguments.grad_y}, arguments.x);
  check_per_image(arguments.image_scale, arguments.x);
  check(arguments.sums || arguments.grad,
        "sums and grad: both are empty; pass vectors for the two sums, memory for the gradient, or both");
  check(!arguments.image_scale || arguments.grad,
        "image_scale: it is given without grad, whose images it scales; pass grad too");
  check_gradient_sums(arguments.sums, arguments.x);
  if (!arguments.grad) return;
  check_like_x({"grad", arguments.grad}, arguments.x);
  check_writable({"grad", arguments.grad});
}

void check_memory(const BatchNormApplyArguments& arguments) {
  check_given({"x", arguments.x});
  check_given({"out", arguments.out});
  check_no_overlap({{"out", arguments.out}}, {{"x", arguments.x}, {"residual", arguments.residual}});
}

void check_memory(const BatchNormReduceArguments& arguments) {
  check_given({"x", arguments.x});
  check_given({"grad_y", arguments.grad_y});
  check_no_overlap({{"grad", arguments.grad}}, {{"x", arguments.x}, {"grad_y", arguments.grad_y}});
}

template <class Arguments>
bool is_empty(const Arguments& arguments) {
  return arguments.x.device == Device::cpu && arguments.x.elements() == 0;
}

void clear_results(const BatchNormApplyArguments&) {}

void clear_results(const BatchNormReduceArguments& arguments) {
  clear(arguments.sums.grad);
  clear(arguments.sums.grad_times_centered);
}

constexpr Operator<BatchNormApplyArguments> kApply{
    .name = "batch_norm_apply",
    .implementations = apply_implementations,
    .check_problem = check_problem,
    .check_memory = check_memory,
    .is_empty = is_empty,
    .clear_results = clear_results,
};

constexpr Operator<BatchNormReduceArguments> kReduce{
    .name = "batch_norm_reduce",
    .implementations = reduce_implementations,
    .check_problem = check_problem,
    .check_memory = check_memory,
    .is_empty = is_empty,
    .clear_results = clear_results,
    .finish = normalise_sums_of<BatchNormReduceArguments>,
};

}  // namespace

Normaliser normaliser_of(const BatchNormFinalizeArguments& a) {
  return {a.weight, a.bias, a.eps, a.batch_invstd, a.batch_variance, a.scale, a.shift};
}

void batch_norm_finalize(const BatchNormFinalizeArguments& arguments, const Execution& execution) {
  const BatchNormFinalizeArguments& a = arguments;
  const std::int64_t channels = a.mean.size;
  check_channels("m2", a.m2, channels, a.mean.dtype);
  check_channels("weight", a.weight, channels, a.mean.dtype);
  check_channels("bias", a.bias, channels, a.mean.dtype);
  if (!a.m2) check_channels_given("invstd", a.invstd, channels, a.mean.dtype);
  else check_channels_given("batch_invstd", a.batch_invstd, channels, a.mean.dtype);
  check_channels("batch_variance", a.batch_variance, channels, a.mean.dtype);
  check_channels("scale", a.scale, channels, a.mean.dtype);
  check_channels("shift", a.shift, channels, a.mean.dtype);
  if (a.m2) check_count(a.count);
  choose("batch_norm_finalize", finalize_implementations(), arguments)
      .plan_for(arguments, 1)
      .unchecked_run(arguments, execution);
}

BatchNormFinalizeArguments affine_of(const Normalisation& by, ChannelVector scale, ChannelVector shift) {
  BatchNormFinalizeArguments finalize;
  finalize.weight = by.weight;
  finalize.bias = by.bias;
  finalize.mean = by.mean;
  finalize.invstd = by.invstd;
  finalize.scale = scale;
  finalize.shift = shift;
  return finalize;
}

void clear_statistics(ChannelVector mean, ChannelVector variance, ChannelVector invstd, double eps) {
  clear(mean);
  clear(variance);
  clear(invstd);
  BatchNormFinalizeArguments finalize;
  finalize.mean = mean;
  finalize.m2 = invstd;
  finalize.batch_invstd = invstd;
  finalize.count = 1;
  finalize.eps = eps;
  batch_norm_finalize(finalize, {});
}

FUSEDSC_OPERATOR(batch_norm_apply, BatchNormApplyArguments, kApply)
FUSEDSC_OPERATOR(batch_norm_reduce, BatchNormReduceArguments, kReduce)

}  // namespace fusedsc
