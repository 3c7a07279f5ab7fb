#include "fusedsc/fused/batch_norm_merge.h"

#include "fusedsc/common/checks/checks.h"
#include "fusedsc/fused/batch_norm/batch_norm_merge_cpu.h"
#include "fusedsc/fused/batch_norm/batch_norm_merge_gpu.h"

namespace fusedsc {
namespace {

std::span<const Implementation<BatchNormMergeArguments>> implementations() {
  static const Implementation<BatchNormMergeArguments> list[] = {
#ifdef FUSEDSC_GPU
      batch_norm_merge_gpu(),
#endif
      batch_norm_merge_cpu(),
  };
  return list;
}

std::span<const Implementation<BatchNormMergeGradientArguments>> gradient_implementations() {
  static const Implementation<BatchNormMergeGradientArguments> list[] = {
#ifdef FUSEDSC_GPU
      batch_norm_merge_gradient_gpu(),
#endif
      batch_norm_merge_gradient_cpu(),
  };
  return list;
}

}  // namespace

void batch_norm_merge(const BatchNormMergeArguments& arguments, const Execution& execution) {
  const BatchNormMergeArguments& a = arguments;
  const std::int64_t channels = a.mean.size;
  const DataType dtype = a.mean.dtype;
  check(static_cast<bool>(a.mean), "mean: it is not given; pass memory for one value per channel");
  check(a.count > 0 && a.parts && a.parts.size == a.count * (2 * channels + 1), "parts: it has ", a.parts.size,
        " values, but must have ", 2 * channels + 1, " for each of ", a.count,
        " parts, of which there is at least one");
  check_channels("parts", a.parts, a.parts.size, dtype);
  check_channels("weight", a.weight, channels, dtype);
  check_channels("bias", a.bias, channels, dtype);
  check_channels_given("invstd", a.invstd, channels, dtype);
  check_channels("variance", a.variance, channels, dtype);
  check_channels("scale", a.scale, channels, dtype);
  check_channels("shift", a.shift, channels, dtype);
  check(a.eps >= 0, "eps: it is ", a.eps, "; it must not be negative");
  choose("batch_norm_merge", implementations(), a).plan_for(a, 1).unchecked_run(a, execution);
}

void batch_norm_merge_gradient(const BatchNormMergeGradientArguments& arguments, const Execution& execution) {
  const BatchNormMergeGradientArguments& a = arguments;
  const std::int64_t channels = a.mean.size;
  const DataType dtype = a.mean.dtype;
  check(static_cast<bool>(a.mean), "mean: it is not given; pass one value per channel");
  check(a.sums && a.sums.size == 2 * channels + 1, "sums: it has ", a.sums.size, " values, but must have ",
        2 * channels + 1, ", two per channel and their count");
  check_channels("sums", a.sums, a.sums.size, dtype);
  check_channels("weight", a.weight, channels, dtype);
  check_channels_given("invstd", a.invstd, channels, dtype);
  check_channels_given("grad_scale", a.grad_scale, channels, dtype);
  check_channels_given("output_scale", a.output_scale, channels, dtype);
  check_channels_given("offset", a.offset, channels, dtype);
  choose("batch_norm_merge_gradient", gradient_implementations(), a).plan_for(a, 1).unchecked_run(a, execution);
}

}  // namespace fusedsc
