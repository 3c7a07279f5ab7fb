#include "arguments.h"

#include <algorithm>

#include "fusedsc/common/status.h"
#include "fusedsc/forward/depthwise.h"
#include "fusedsc/forward/pointwise.h"
#include "fusedsc/forward/sliding_channel.h"
#include "fusedsc/fused/conv_bn_act.h"
#include "new_tensor.h"

namespace fusedsc::aten {
namespace {

void check_device(const char* name, const at::Tensor& tensor, const at::Tensor& x) {
  check(tensor.device() == x.device(), name, ": it is on ", tensor.device(), ", but x is on ", x.device(),
        "; move one of them with .to(device)");
}

void check_dtype(const char* name, const at::Tensor& tensor, const at::Tensor& x,
                 WeightTypes types = WeightTypes::of_x) {
  const auto is_cast = [](at::ScalarType dtype) { return c10::isFloatingType(dtype) && dtype != at::kDouble; };
  if (types == WeightTypes::cast_too && is_cast(tensor.scalar_type()) && is_cast(x.scalar_type())) return;
  check(tensor.scalar_type() == x.scalar_type(), name, ": its dtype is ", tensor.scalar_type(), ", but x has ",
        x.scalar_type(), "; convert one of them with .to(dtype), or use torch.autocast");
}

void check_floating(const char* name, const at::Tensor& tensor) {
  check(tensor.is_floating_point() && tensor.element_size() >= 2, name, ": its dtype is ", tensor.scalar_type(),
        "; use float32, float64, float16 or bfloat16 (for example ", name, ".float())");
}

void check_vector(const char* name, const at::Tensor& vector, const c10::SymInt& channels) {
  check(vector.dim() == 1 && vector.sym_size(0) == channels, name, ": its sizes are ", vector.sym_sizes(),
        "; give one number per channel, [", channels, "]");
}

Padding padding_of(at::IntArrayRef numbers) {
  if (numbers.size() == 4) return {numbers[0], numbers[1], numbers[2], numbers[3]};
  check(numbers.size() == 1 || numbers.size() == 2, "padding: ", numbers.size(),
        " numbers given; give one, two (vertical, horizontal) or four (left, right, top, bottom)");
  return {numbers.back(), numbers.back(), numbers.front(), numbers.front()};
}

bool is_concrete(c10::SymIntArrayRef sizes) {
  return std::none_of(sizes.begin(), sizes.end(), [](const c10::SymInt& size) { return size.is_symbolic(); });
}

Sizes concrete(c10::SymIntArrayRef sizes) {
  Sizes numbers{};
  for (std::size_t axis = 0; axis < 4; ++axis) numbers[axis] = sizes[axis].guard_int(__FILE__, __LINE__);
  return numbers;
}

SymSizes symbolic(const Sizes& sizes) { return {sizes[0], sizes[1], sizes[2], sizes[3]}; }

/// As Window::output_height and output_width: 0 or less where the window does not fit.
c10::SymInt output_size(const c10::SymInt& input, std::int64_t padding, std::int64_t kernel, std::int64_t stride,
                        std::int64_t dilation) {
  return (input + (padding - dilation * (kernel - 1) - 1)) / stride + 1;
}

/// Those of a convolution whose channels fit; nothing where the window does not.
std::optional<SymSizes> symbolic_output_sizes(c10::SymIntArrayRef x, c10::SymIntArrayRef weight, const Window& window) {
  const auto& [kernel, stride, dilation, padding] = window;
  const auto positive = [](const std::array<std::int64_t, 2>& pair) { return pair[0] > 0 && pair[1] > 0; };
  if (!positive(kernel) || !positive(stride) || !positive(dilation) ||
      std::min({padding.left, padding.right, padding.top, padding.bottom}) < 0) {
    return std::nullopt;
  }
  const auto height = output_size(x[2], padding.top + padding.bottom, kernel[0], stride[0], dilation[0]);
  const auto width = output_size(x[3], padding.left + padding.right, kernel[1], stride[1], dilation[1]);
  if (height <= 0 || width <= 0) return std::nullopt;
  return SymSizes{x[0], weight[0], height, width};
}

}  // namespace

void check_activation(const char* name, const at::Tensor& x) {
  check(x.dim() == 4, name, ": its sizes are ", x.sym_sizes(), "; give four, [N, C, H, W] (a single image: ", name,
        ".unsqueeze(0))");
  check_floating(name, x);
}

void check_weight(const char* name, const at::Tensor& weight, const at::Tensor& x, WeightTypes types) {
  check(weight.dim() == 4, name, ": its sizes are ", weight.sym_sizes(),
        "; give four, [out channels, in channels / groups, kernel height, kernel width]");
  check_device(name, weight, x);
  check_dtype(name, weight, x, types);
}

void check_bias(const char* name, const std::optional<at::Tensor>& bias, const at::Tensor& x,
                const c10::SymInt& channels, WeightTypes types) {
  if (!bias) return;
  check_vector(name, *bias, channels);
  check_device(name, *bias, x);
  check_dtype(name, *bias, x, types);
}

void check_batch_norm_vector(const char* name, const std::optional<at::Tensor>& vector, const at::Tensor& x,
                             const c10::SymInt& channels) {
  if (!vector) return;
  check_vector(name, *vector, channels);
  check_device(name, *vector, x);
  check_floating(name, *vector);
}

void check_batch_size(const SymSizes& sizes) {
  check(sizes[0] * sizes[2] * sizes[3] != 1, "x: expected more than 1 value per channel when training, got sizes ",
        c10::SymIntArrayRef(sizes), " at a BatchNorm; use a larger batch or image, or eval mode");
}

void check_statistics(const std::optional<at::Tensor>& statistics, const at::Tensor& x, const c10::SymInt& channels) {
  if (!statistics) return;
  check(statistics->dim() == 2 && statistics->sym_size(0) >= 2 && statistics->sym_size(1) == channels,
        "statistics: its sizes are ", statistics->sym_sizes(), "; give [2, ", channels, "]");
  check_device("statistics", *statistics, x);
  check_floating("statistics", *statistics);
}

void check_gradient(const at::Tensor& grad_y, const SymSizes& y, const at::Tensor& x) {
  check(grad_y.sym_sizes() == c10::SymIntArrayRef(y), "grad_y: its sizes are ", grad_y.sym_sizes(),
        "; they must be those of the result, ", c10::SymIntArrayRef(y));
  check_device("grad_y", grad_y, x);
  check_dtype("grad_y", grad_y, x);
}

std::array<std::int64_t, 2> pair_of(const char* name, at::IntArrayRef numbers) {
  check(numbers.size() == 1 || numbers.size() == 2, name, ": ", numbers.size(),
        " numbers given; give one, or two (vertical, horizontal)");
  return {numbers.front(), numbers.back()};
}

Window window_of(const at::Tensor& weight, at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation) {
  Window window;
  window.kernel = {weight.sym_size(2).guard_int(__FILE__, __LINE__), weight.sym_size(3).guard_int(__FILE__, __LINE__)};
  window.stride = pair_of("stride", stride);
  window.dilation = pair_of("dilation", dilation);
  window.padding = padding_of(padding);
  return window;
}

SymSizes depthwise_output_sizes(c10::SymIntArrayRef x, c10::SymIntArrayRef weight, const Window& window) {
  if (!is_concrete(x) || !is_concrete(weight)) {
    if (x[1] > 0 && weight[1] == 1 && weight[0] % x[1] == 0) {
      if (const auto sizes = symbolic_output_sizes(x, weight, window)) return *sizes;
    }
  }
  return symbolic(fusedsc::depthwise_output_sizes(concrete(x), concrete(weight), window));
}

SymSizes conv_output_sizes(c10::SymIntArrayRef x, c10::SymIntArrayRef weight, const Window& window) {
  if (!is_concrete(x) || !is_concrete(weight)) {
    if (x[1] > 0 && weight[1] == x[1]) {
      if (const auto sizes = symbolic_output_sizes(x, weight, window)) return *sizes;
    }
  }
  return symbolic(fusedsc::conv_output_sizes(concrete(x), concrete(weight), window));
}

SymSizes pointwise_output_sizes(c10::SymIntArrayRef x, c10::SymIntArrayRef weight, std::int64_t groups) {
  const bool fits =
      groups > 0 && x[1] == weight[1] * groups && weight[0] % groups == 0 && weight[2] == 1 && weight[3] == 1;
  if (!fits) fusedsc::pointwise_output_sizes(concrete(x), concrete(weight), groups);
  return {x[0], weight[0], x[2], x[3]};
}

SymSizes sliding_channel_output_sizes(c10::SymIntArrayRef x, c10::SymIntArrayRef weight, std::int64_t groups,
                                      double overlap) {
  const bool fits = groups > 0 && x[1] >= groups && weight[0] > 0 && weight[1] == x[1] / groups && weight[2] == 1 &&
                    weight[3] == 1 && overlap >= 0 && overlap < 1;
  if (!fits) fusedsc::sliding_channel_output_sizes(concrete(x), concrete(weight), groups, overlap);
  return {x[0], weight[0], x[2], x[3]};
}

at::Tensor empty_activation(c10::SymIntArrayRef sizes, const at::Tensor& x) {
  return new_tensor(sizes, x, x.scalar_type(), x.suggest_memory_format());
}

at::Tensor empty_gradient(const std::optional<at::Tensor>& parameter, bool wanted) {
  return parameter && wanted ? new_like(*parameter) : at::Tensor();
}

}  // namespace fusedsc::aten
