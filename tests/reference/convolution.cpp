#include "reference/convolution.h"

#include <set>
#include <utility>

#include "reference/memory.h"

namespace fusedsc::reference {
namespace {

/// Calls body(output index h, w; input index h, w; tap kh, kw) wherever a window covers an element of the input.
template <class Body>
void for_each_tap(const Window& window, const Sizes& x, const Sizes& y, const Body& body) {
  for (std::int64_t oh = 0; oh < y[2]; ++oh) {
    for (std::int64_t ow = 0; ow < y[3]; ++ow) {
      for (std::int64_t kh = 0; kh < window.kernel[0]; ++kh) {
        for (std::int64_t kw = 0; kw < window.kernel[1]; ++kw) {
          const std::int64_t h = oh * window.stride[0] + kh * window.dilation[0] - window.padding.top;
          const std::int64_t w = ow * window.stride[1] + kw * window.dilation[1] - window.padding.left;
          if (h >= 0 && h < x[2] && w >= 0 && w < x[3]) body(oh, ow, h, w, kh, kw);
        }
      }
    }
  }
}

/// Sums that many terms are added to in an order of the caller's.
class SumArray {
 public:
  explicit SumArray(const Sizes& sizes) : result_(sizes), sums_(result_.elements.size()) {}

  Sum& at(std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
    return sums_[static_cast<std::size_t>(&result_.at(n, c, h, w) - result_.elements.data())];
  }

  Array result(const Precision& precision) {
    for (std::size_t i = 0; i < sums_.size(); ++i) result_.elements[i] = sums_[i].result(precision);
    return std::move(result_);
  }

 private:
  Array result_;
  std::vector<Sum> sums_;
};

void add_bias(const Vector& bias, const Sizes& sizes, SumArray& y) {
  if (bias.empty()) return;
  for_each_index(sizes,
                 [&](auto n, auto c, auto h, auto w) { y.at(n, c, h, w).add(bias[static_cast<std::size_t>(c)]); });
}

/// Calls body(n, m, c, k, h, w) for each product of a convolution whose output channel m reads the input channels
/// first[m], first[m] + 1..., behind the last one the first: c is the k-th of them. Positions innermost, as they lie in
/// memory.
template <class Body>
void for_each_product(const Sizes& y, std::int64_t channels, std::int64_t reach, const FirstChannels& first,
                      const Body& body) {
  for_each_index({y[0], y[1], reach, 1}, [&](auto n, auto m, auto k, auto) {
    const std::int64_t c = (first[static_cast<std::size_t>(m)] + k) % channels;
    for_each_index({1, 1, y[2], y[3]}, [&](auto, auto, auto h, auto w) { body(n, m, c, k, h, w); });
  });
}

/// What a matrix product reads: on a GPU, elements of the tensors' type, to which what a prologue has computed is
/// rounded.
Array operand(const Precision& precision, const Array& x) {
  if (memory().device == Device::cpu) return x;
  return map(x, [&](const Bounded& element, std::size_t) {
    return element.error == 0 ? element : stored(precision, element);
  });
}

}  // namespace

Array depthwise(const Precision& precision, const Array& input, const Array& weight, const Vector& bias,
                const Window& window) {
  const Array x = operand(precision, input);
  const Sizes sizes = {x.sizes[0], weight.sizes[0], window.output_height(x.sizes[2]), window.output_width(x.sizes[3])};
  SumArray y(sizes);
  for (std::int64_t n = 0; n < sizes[0]; ++n) {
    for (std::int64_t c = 0; c < sizes[1]; ++c) {
      const std::int64_t from = c * x.channels() / sizes[1];
      for_each_tap(window, x.sizes, sizes, [&](auto oh, auto ow, auto h, auto w, auto kh, auto kw) {
        y.at(n, c, oh, ow).add(product(x.at(n, from, h, w), weight.at(c, 0, kh, kw)));
      });
    }
  }
  add_bias(bias, sizes, y);
  return y.result(precision);
}

Array depthwise_input_gradient(const Precision& precision, const Array& grad_y, const Array& weight,
                               const Window& window, const Sizes& x_sizes) {
  SumArray grad_x(x_sizes);
  for (std::int64_t n = 0; n < grad_y.sizes[0]; ++n) {
    for (std::int64_t c = 0; c < grad_y.channels(); ++c) {
      const std::int64_t to = c * x_sizes[1] / grad_y.channels();
      for_each_tap(window, x_sizes, grad_y.sizes, [&](auto oh, auto ow, auto h, auto w, auto kh, auto kw) {
        grad_x.at(n, to, h, w).add(product(grad_y.at(n, c, oh, ow), weight.at(c, 0, kh, kw)));
      });
    }
  }
  return grad_x.result(precision);
}

Array depthwise_weight_gradient(const Precision& precision, const Array& grad_y, const Array& x, const Window& window,
                                const Sizes& weight_sizes) {
  SumArray grad_weight(weight_sizes);
  for (std::int64_t n = 0; n < grad_y.sizes[0]; ++n) {
    for (std::int64_t c = 0; c < grad_y.channels(); ++c) {
      const std::int64_t from = c * x.channels() / grad_y.channels();
      for_each_tap(window, x.sizes, grad_y.sizes, [&](auto oh, auto ow, auto h, auto w, auto kh, auto kw) {
        grad_weight.at(c, 0, kh, kw).add(product(grad_y.at(n, c, oh, ow), x.at(n, from, h, w)));
      });
    }
  }
  return grad_weight.result(precision);
}

Array pointwise(const Precision& precision, const Array& x, const Array& weight, const Vector& bias,
                std::int64_t groups) {
  return channel_windows(precision, x, weight, bias, first_of_groups(weight.sizes[0], weight.sizes[1], groups));
}

Array pointwise_input_gradient(const Precision& precision, const Array& grad_y, const Array& weight,
                               const Sizes& x_sizes, std::int64_t groups) {
  const FirstChannels first = first_of_groups(weight.sizes[0], weight.sizes[1], groups);
  return channel_windows_input_gradient(precision, grad_y, weight, x_sizes, first);
}

Array pointwise_weight_gradient(const Precision& precision, const Array& grad_y, const Array& x,
                                const Sizes& weight_sizes, std::int64_t groups) {
  const FirstChannels first = first_of_groups(weight_sizes[0], weight_sizes[1], groups);
  return channel_windows_weight_gradient(precision, grad_y, x, weight_sizes, first);
}

Array channel_windows(const Precision& precision, const Array& x, const Array& weight, const Vector& bias,
                      const FirstChannels& first) {
  const Sizes sizes = {x.sizes[0], weight.sizes[0], x.sizes[2], x.sizes[3]};
  const Array operand_x = operand(precision, x);
  SumArray y(sizes);
  for_each_product(sizes, x.channels(), weight.sizes[1], first, [&](auto n, auto m, auto c, auto k, auto h, auto w) {
    y.at(n, m, h, w).add(product(operand_x.at(n, c, h, w), weight.at(m, k, 0, 0)));
  });
  add_bias(bias, sizes, y);
  return y.result(precision);
}

Array channel_windows_input_gradient(const Precision& precision, const Array& grad_y, const Array& weight,
                                     const Sizes& x_sizes, const FirstChannels& first) {
  const Array operand_grad = operand(precision, grad_y);
  SumArray grad_x(x_sizes);
  for_each_product(grad_y.sizes, x_sizes[1], weight.sizes[1], first,
                   [&](auto n, auto m, auto c, auto k, auto h, auto w) {
                     grad_x.at(n, c, h, w).add(product(operand_grad.at(n, m, h, w), weight.at(m, k, 0, 0)));
                   });
  return grad_x.result(precision);
}

Array channel_windows_weight_gradient(const Precision& precision, const Array& grad_y, const Array& x,
                                      const Sizes& weight_sizes, const FirstChannels& first) {
  const Array operand_x = operand(precision, x), operand_grad = operand(precision, grad_y);
  SumArray grad_weight(weight_sizes);
  for_each_product(grad_y.sizes, x.channels(), weight_sizes[1], first,
                   [&](auto n, auto m, auto c, auto k, auto h, auto w) {
                     grad_weight.at(m, k, 0, 0).add(product(operand_grad.at(n, m, h, w), operand_x.at(n, c, h, w)));
                   });
  return grad_weight.result(precision);
}

FirstChannels first_of_groups(std::int64_t outputs, std::int64_t reach, std::int64_t groups) {
  FirstChannels first;
  for (std::int64_t m = 0; m < outputs; ++m) first.push_back(m / (outputs / groups) * reach);
  return first;
}

ChannelMap channel_map(std::int64_t channels, std::int64_t filters, std::int64_t groups, double overlap) {
  ChannelMap map;
  std::set<std::pair<std::int64_t, std::int64_t>> items;
  const std::int64_t group_width = channels / groups;
  std::int64_t start = 0, end = group_width, start_v = start, end_v = end;
  bool all_are_new = true;
  for (std::int64_t oid = 0; oid < filters; ++oid) {
    all_are_new &= items.insert({start, end}).second;
    map.cyclic_dist += all_are_new;
    map.first.push_back(start);
    start_v = end_v - static_cast<std::int64_t>(overlap * static_cast<double>(group_width));
    end_v = start_v + group_width;
    start = start_v % channels;
    end = end_v % channels;
  }
  map.width = group_width;
  return map;
}

}  // namespace fusedsc::reference
