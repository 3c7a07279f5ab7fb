#include "fusedsc/common/problem.h"

#include <algorithm>
#include <utility>

#include "fusedsc/common/status.h"

namespace fusedsc {
namespace {

constexpr std::pair<Activation, const char*> kActivationNames[] = {
    {Activation::identity, "identity"}, {Activation::relu, "relu"},           {Activation::relu6, "relu6"},
    {Activation::silu, "silu"},         {Activation::hardswish, "hardswish"}, {Activation::gelu, "gelu"},
};

std::int64_t output_size(const char* axis, std::int64_t input, std::int64_t kernel, std::int64_t stride,
                         std::int64_t dilation, std::int64_t before, std::int64_t after) {
  check(kernel > 0, "kernel: ", axis, " size is ", kernel, "; it must be at least 1");
  check(stride > 0, "stride: ", axis, " stride is ", stride, "; it must be at least 1");
  check(dilation > 0, "dilation: ", axis, " dilation is ", dilation, "; it must be at least 1");
  check(before >= 0 && after >= 0, "padding: ", axis, " padding is (", before, ", ", after,
        "); it must not be negative");
  const std::int64_t reach = dilation * (kernel - 1) + 1;
  const std::int64_t padded = input + before + after;
  check(reach <= padded, "kernel: the ", axis, " reach is ", reach, " (kernel ", kernel, ", dilation ", dilation,
        "), larger than the padded input of ", padded, " (", input, " + padding ", before, " + ", after,
        "); use a smaller kernel or dilation, or more padding");
  return (padded - reach) / stride + 1;
}

std::pair<std::int64_t, std::int64_t> same_padding_1d(std::int64_t input, std::int64_t kernel, std::int64_t stride,
                                                      std::int64_t dilation) {
  check(stride > 0, "stride: it is ", stride, "; it must be at least 1");
  const std::int64_t output = (input + stride - 1) / stride;
  const std::int64_t total = std::max<std::int64_t>((output - 1) * stride + dilation * (kernel - 1) + 1 - input, 0);
  return {total / 2, total - total / 2};
}

}  // namespace

std::int64_t Window::output_height(std::int64_t input_height) const {
  return output_size("vertical", input_height, kernel[0], stride[0], dilation[0], padding.top, padding.bottom);
}

std::int64_t Window::output_width(std::int64_t input_width) const {
  return output_size("horizontal", input_width, kernel[1], stride[1], dilation[1], padding.left, padding.right);
}

Padding same_padding(std::int64_t height, std::int64_t width, const Window& window) {
  const auto [top, bottom] = same_padding_1d(height, window.kernel[0], window.stride[0], window.dilation[0]);
  const auto [left, right] = same_padding_1d(width, window.kernel[1], window.stride[1], window.dilation[1]);
  return {left, right, top, bottom};
}

Activation activation_from_name(const std::string& name) {
  std::string allowed;
  for (const auto& [activation, known] : kActivationNames) {
    if (name == known) return activation;
    allowed += std::string(allowed.empty() ? "" : ", ") + known;
  }
  throw InvalidArgument("activation: unknown name \"" + name + "\"; use one of " + allowed);
}

const char* name_of(Activation activation) {
  for (const auto& [known, name] : kActivationNames) {
    if (activation == known) return name;
  }
  return "unknown";
}

}  // namespace fusedsc
