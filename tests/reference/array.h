/// What the reference computes on: dense [N, C, H, W] arrays of bounded numbers, whatever the tensors' layouts.
#pragma once

#include <cstdint>
#include <vector>

#include "fusedsc/common/tensor_view.h"
#include "reference/bounded.h"

namespace fusedsc::reference {

using Vector = std::vector<Bounded>;  ///< one number per channel; empty: not given

struct Array {
  Sizes sizes{};
  std::vector<Bounded> elements;

  Array() = default;
  explicit Array(const Sizes& sizes_)
      : sizes(sizes_), elements(static_cast<std::size_t>(sizes[0] * sizes[1] * sizes[2] * sizes[3])) {}

  Bounded& at(std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
    return elements[static_cast<std::size_t>(((n * sizes[1] + c) * sizes[2] + h) * sizes[3] + w)];
  }
  const Bounded& at(std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) const {
    return const_cast<Array*>(this)->at(n, c, h, w);
  }
  std::int64_t channels() const { return sizes[1]; }
  std::int64_t elements_per_channel() const { return sizes[0] * sizes[2] * sizes[3]; }
};

/// Calls body(n, c, h, w) for every index.
template <class Body>
void for_each_index(const Sizes& sizes, const Body& body) {
  for (std::int64_t n = 0; n < sizes[0]; ++n) {
    for (std::int64_t c = 0; c < sizes[1]; ++c) {
      for (std::int64_t h = 0; h < sizes[2]; ++h) {
        for (std::int64_t w = 0; w < sizes[3]; ++w) body(n, c, h, w);
      }
    }
  }
}

/// f(element, c) of every element.
template <class Function>
Array map(const Array& x, const Function& f) {
  Array y(x.sizes);
  for_each_index(x.sizes, [&](std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
    y.at(n, c, h, w) = f(x.at(n, c, h, w), static_cast<std::size_t>(c));
  });
  return y;
}

/// f(element of a, element of b, c) of every pair.
template <class Function>
Array zip(const Array& a, const Array& b, const Function& f) {
  Array y(a.sizes);
  for_each_index(a.sizes, [&](std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
    y.at(n, c, h, w) = f(a.at(n, c, h, w), b.at(n, c, h, w), static_cast<std::size_t>(c));
  });
  return y;
}

/// Per channel, the sum over n, h and w of f(n, c, h, w).
template <class Function>
Vector channel_sums(const Precision& precision, const Sizes& sizes, const Function& f) {
  std::vector<Sum> sums(static_cast<std::size_t>(sizes[1]));
  for_each_index(sizes, [&](std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
    sums[static_cast<std::size_t>(c)].add(f(n, c, h, w));
  });
  Vector result;
  for (const Sum& sum : sums) result.push_back(sum.result(precision));
  return result;
}

inline Vector channel_sums(const Precision& precision, const Array& x) {
  return channel_sums(precision, x.sizes, [&](auto... index) { return x.at(index...); });
}

}  // namespace fusedsc::reference
