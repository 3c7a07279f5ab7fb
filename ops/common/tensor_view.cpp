#include "fusedsc/common/tensor_view.h"

#include <functional>
#include <ostream>

namespace fusedsc {
namespace {

/// One past the last byte that the view touches.
const char* end_of(const ConstTensorView& view) {
  std::int64_t last = 0;
  for (int axis = 0; axis < 4; ++axis) last += (view.sizes[axis] - 1) * view.strides[axis];
  return static_cast<const char*>(view.data) + (last + 1) * static_cast<std::int64_t>(size_of(view.dtype));
}

}  // namespace

Sizes dense_strides(const Sizes& sizes, Layout layout) {
  const auto [n, c, h, w] = sizes;
  static_cast<void>(n);
  if (layout == Layout::channels_last) return {h * w * c, 1, w * c, c};
  return {c * h * w, h * w, w, 1};
}

Layout layout_of(const Sizes& sizes, const Sizes& strides) {
  if (strides[1] == 1 || sizes[1] == 1) return Layout::channels_last;
  if (sizes[2] * sizes[3] == 1) return Layout::strided;  // one position per channel: no row to run along
  if (strides[3] == 1 || sizes[3] == 1) return Layout::contiguous;
  return Layout::strided;
}

std::ostream& operator<<(std::ostream& out, const Printed& printed) {
  const auto& [n, c, h, w] = printed.sizes;
  return out << '[' << n << ", " << c << ", " << h << ", " << w << ']';
}

bool overlap(const ConstTensorView& a, const ConstTensorView& b) {
  if (!a || !b || a.elements() == 0 || b.elements() == 0) return false;
  const std::less<const char*> before;
  return before(static_cast<const char*>(a.data), end_of(b)) && before(static_cast<const char*>(b.data), end_of(a));
}

}  // namespace fusedsc
