#include "fusedsc/fused/batch_norm_seam.h"

#include <cmath>
#include <type_traits>

#include "fusedsc/common/checks.h"
#include "fusedsc/common/clear.h"
#include "fusedsc/fused/batch_norm_seam_cpu.h"
#include "fusedsc/runtime/checks.h"

namespace fusedsc {
namespace {

/// Calls body with a value of the type that the vectors have.
template <class Body>
void with_type_of(const ConstChannelVector& vector, const Body& body) {
  vector.dtype == DataType::float64 ? body(double()) : body(float());
}

template <class T>
T value_or(const ConstChannelVector& vector, std::int64_t channel, T missing) {
  return vector ? static_cast<const T*>(vector.data)[channel] : missing;
}

template <class T>
void put(const ChannelVector& vector, std::int64_t channel, T value) {
  if (vector) static_cast<T*>(vector.data)[channel] = value;
}

std::span<const Implementation<BatchNormApplyArguments>> apply_implementations() {
  static const Implementation<BatchNormApplyArguments> list[] = {batch_norm_apply_cpu()};
  return list;
}

std::span<const Implementation<BatchNormReduceArguments>> reduce_implementations() {
  static const Implementation<BatchNormReduceArguments> list[] = {batch_norm_reduce_cpu()};
  return list;
}

void check_affine(const ConstTensorView& x, const ConstChannelVector& scale, const ConstChannelVector& shift) {
  check_readable({"x", x});
  check_channels_given("scale", scale, x.sizes[1], accumulation_type(x.dtype));
  check_channels_given("shift", shift, x.sizes[1], accumulation_type(x.dtype));
}

void check_like_x(const NamedTensor& tensor, const ConstTensorView& x) {
  check_readable(tensor);
  check_sizes(tensor, x.sizes, "those of x");
  check_dtype(tensor, x.dtype, "that of x");
}

void check_problem(const BatchNormApplyArguments& arguments) {
  check_affine(arguments.x, arguments.scale, arguments.shift);
  check_like_x({"out", arguments.out}, arguments.x);
  check_writable({"out", arguments.out});
  if (arguments.residual) check_like_x({"residual", arguments.residual}, arguments.x);
}

void check_problem(const BatchNormReduceArguments& arguments) {
  check_affine(arguments.x, arguments.scale, arguments.shift);
  check_like_x({"grad_y", arguments.grad_y}, arguments.x);
  check(static_cast<bool>(arguments.sums), "sums: they are empty; pass vectors for the two sums");
  check_gradient_sums(arguments.sums, arguments.x);
}

}  // namespace

void batch_norm_affine(ConstChannelVector weight, ConstChannelVector bias, ConstChannelVector mean,
                       ConstChannelVector invstd, ChannelVector scale, ChannelVector shift) {
  check_channels("weight", weight, mean.size, mean.dtype);
  check_channels("bias", bias, mean.size, mean.dtype);
  check_channels_given("invstd", invstd, mean.size, mean.dtype);
  check_channels_given("scale", scale, mean.size, mean.dtype);
  check_channels_given("shift", shift, mean.size, mean.dtype);
  with_type_of(mean, [&]<class T>(T) {
    for (std::int64_t c = 0; c < mean.size; ++c) {
      const T factor = value_or(weight, c, T(1)) * value_or(invstd, c, T(1));
      put(shift, c, value_or(bias, c, T(0)) - value_or(mean, c, T(0)) * factor);
      put(scale, c, factor);
    }
  });
}

void batch_norm_invstd(ConstChannelVector m2, std::int64_t count, double eps, ChannelVector invstd) {
  check_channels_given("invstd", invstd, m2.size, m2.dtype);
  check(count > 0, "count: it is ", count, "; BatchNorm needs at least one value per channel");
  with_type_of(m2, [&]<class T>(T) {
    for (std::int64_t c = 0; c < m2.size; ++c) {
      const double variance = static_cast<double>(value_or(m2, c, T(0))) / static_cast<double>(count);
      put(invstd, c, static_cast<T>(1 / std::sqrt(variance + eps)));
    }
  });
}

void batch_norm_variance(ConstChannelVector m2, std::int64_t count, ChannelVector variance) {
  check_channels_given("variance", variance, m2.size, m2.dtype);
  check(count > 0, "count: it is ", count, "; BatchNorm needs at least one value per channel");
  with_type_of(m2, [&]<class T>(T) {
    for (std::int64_t c = 0; c < m2.size; ++c) put(variance, c, value_or(m2, c, T(0)) / static_cast<T>(count));
  });
}

void batch_norm_backward_coefficients(const BatchNormBackward& arguments) {
  const BatchNormBackward& a = arguments;
  const std::int64_t channels = a.mean.size;
  check(a.count > 0, "count: it is ", a.count, "; BatchNorm needs at least one value per channel");
  check_channels("weight", a.weight, channels, a.mean.dtype);
  check_channels_given("invstd", a.invstd, channels, a.mean.dtype);
  check_channels_given("sum_grad", a.sum_grad, channels, a.mean.dtype);
  check_channels_given("sum_grad_times_centered", a.sum_grad_times_centered, channels, a.mean.dtype);
  check_channels_given("grad_scale", a.grad_scale, channels, a.mean.dtype);
  check_channels_given("output_scale", a.output_scale, channels, a.mean.dtype);
  check_channels_given("offset", a.offset, channels, a.mean.dtype);
  check_channels("grad_weight", a.grad_weight, channels, a.mean.dtype);
  check_channels("grad_bias", a.grad_bias, channels, a.mean.dtype);
  with_type_of(a.mean, [&]<class T>(T) {
    const double inverse_count = 1 / static_cast<double>(a.count);
    for (std::int64_t c = 0; c < channels; ++c) {
      const double invstd = value_or(a.invstd, c, T(1)), scale = invstd * value_or(a.weight, c, T(1));
      const double sum = value_or(a.sum_grad, c, T(0)), centered = value_or(a.sum_grad_times_centered, c, T(0));
      // dx = scale * (g - mean of g - (x - mean) * invstd^2 * mean of g*(x - mean))
      const double output_scale = a.training ? -scale * invstd * invstd * centered * inverse_count : 0;
      const double offset = a.training ? -scale * sum * inverse_count - output_scale * value_or(a.mean, c, T(0)) : 0;
      put(a.grad_scale, c, static_cast<T>(scale));
      put(a.output_scale, c, static_cast<T>(output_scale));
      put(a.offset, c, static_cast<T>(offset));
      put(a.grad_weight, c, static_cast<T>(centered * invstd));
      put(a.grad_bias, c, static_cast<T>(sum));
    }
  });
}

void batch_norm_apply(const BatchNormApplyArguments& arguments, const Execution& execution) {
  check_execution(execution, batch_norm_apply_workspace_bytes(arguments, execution.threads));
  check_given({"x", arguments.x});
  check_given({"out", arguments.out});
  check_no_overlap({{"out", arguments.out}}, {{"x", arguments.x}, {"residual", arguments.residual}});
  if (arguments.x.elements() == 0) return;
  choose("batch_norm_apply", apply_implementations(), arguments).run(arguments, execution);
}

std::size_t batch_norm_apply_workspace_bytes(const BatchNormApplyArguments& arguments, int threads) {
  check_problem(arguments);
  check_threads(threads);
  if (arguments.x.elements() == 0) return 0;
  return choose("batch_norm_apply", apply_implementations(), arguments).workspace_bytes(arguments, threads);
}

void batch_norm_reduce(const BatchNormReduceArguments& arguments, const Execution& execution) {
  check_execution(execution, batch_norm_reduce_workspace_bytes(arguments, execution.threads));
  check_given({"x", arguments.x});
  check_given({"grad_y", arguments.grad_y});
  if (arguments.x.elements() == 0) {
    clear(arguments.sums.grad);
    clear(arguments.sums.grad_times_centered);
    return;
  }
  choose("batch_norm_reduce", reduce_implementations(), arguments).run(arguments, execution);
}

std::size_t batch_norm_reduce_workspace_bytes(const BatchNormReduceArguments& arguments, int threads) {
  check_problem(arguments);
  check_threads(threads);
  if (arguments.x.elements() == 0) return 0;
  return choose("batch_norm_reduce", reduce_implementations(), arguments).workspace_bytes(arguments, threads);
}

}  // namespace fusedsc
