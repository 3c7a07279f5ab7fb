/// Depthwise, pointwise and sliding-channel convolution and their gradients, as plain loops. Prologues, epilogues and
/// statistics are separate steps: fusion.h.
#pragma once

#include "fusedsc/common/problem.h"
#include "reference/array.h"

namespace fusedsc::reference {

/// `weight` is [C*m, 1, Kh, Kw]; an empty `bias` stands for 0.
Array depthwise(const Precision& precision, const Array& x, const Array& weight, const Vector& bias,
                const Window& window);
Array depthwise_input_gradient(const Precision& precision, const Array& grad_y, const Array& weight,
                               const Window& window, const Sizes& x_sizes);
Array depthwise_weight_gradient(const Precision& precision, const Array& grad_y, const Array& x, const Window& window,
                                const Sizes& weight_sizes);

/// `weight` is [M, C/groups, 1, 1].
Array pointwise(const Precision& precision, const Array& x, const Array& weight, const Vector& bias,
                std::int64_t groups = 1);
Array pointwise_input_gradient(const Precision& precision, const Array& grad_y, const Array& weight,
                               const Sizes& x_sizes, std::int64_t groups = 1);
Array pointwise_weight_gradient(const Precision& precision, const Array& grad_y, const Array& x,
                                const Sizes& weight_sizes, std::int64_t groups = 1);

/// 1x1 convolutions whose output channel m reads as many input channels as `weight` [M, K, 1, 1] has, cyclically from
/// first[m] on.
using FirstChannels = std::vector<std::int64_t>;
Array channel_windows(const Precision& precision, const Array& x, const Array& weight, const Vector& bias,
                      const FirstChannels& first);
Array channel_windows_input_gradient(const Precision& precision, const Array& grad_y, const Array& weight,
                                     const Sizes& x_sizes, const FirstChannels& first);
Array channel_windows_weight_gradient(const Precision& precision, const Array& grad_y, const Array& x,
                                      const Sizes& weight_sizes, const FirstChannels& first);

/// The first channel of each filter's group, of `reach` channels.
FirstChannels first_of_groups(std::int64_t outputs, std::int64_t reach, std::int64_t groups);

/// Algorithm 1 of DSXplore as it is printed, but that it goes on to the last filter: the windows of all filters, and
/// how many there were before the first that had been met already.
struct ChannelMap {
  FirstChannels first;
  std::int64_t width = 0;
  std::int64_t cyclic_dist = 0;
};
ChannelMap channel_map(std::int64_t channels, std::int64_t filters, std::int64_t groups, double overlap);

}  // namespace fusedsc::reference
