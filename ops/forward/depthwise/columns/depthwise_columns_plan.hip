#ifdef FUSEDSC_HOPPER
#include "fusedsc/common/divide_up.h"
#include "fusedsc/forward/depthwise/columns/depthwise_columns_plan.h"

#include <algorithm>
#include <limits>

#include "fusedsc/common/gpu/hopper/hopper_host.h"
#include "fusedsc/common/status.h"

namespace fusedsc::gpu::hopper {

std::string why_no_columns(const ConstTensorView& x, const ConstTensorView& y, const Window& window) {
  const std::int64_t kernel = window.kernel[0], stride = window.stride[0];
  using Pair = std::array<std::int64_t, 2>;
  if (!is_hopper()) return "the GPU is not of compute capability 9.0";
  if (x.dtype != DataType::float32) return "it is for float32";
  if ((kernel != 3 && kernel != 5) || stride > 2 || window.kernel != Pair{kernel, kernel} ||
      window.stride != Pair{stride, stride} || window.dilation != Pair{1, 1} || x.sizes[1] != y.sizes[1]) {
    return "it is for windows of 3 x 3 or 5 x 5, of stride 1 or 2, not dilated, without a channel multiplier";
  }
  if (y.elements() == 0) return "there is nothing to compute";
  if (!suits_tma(x) || !suits_tma(y)) return "a tensor does not suit TMA";
  return {};
}

int columns_of_warp(std::int64_t output_width) {
  return divide_up(output_width, 14) * 14 > divide_up(output_width, 7) * 7 ? 7 : 14;
}

DepthwiseColumnsShape columns_shape(const Sizes& x, const Sizes& y, const Window& window, int columns, int stages) {
  DepthwiseColumnsShape shape;
  shape.channels = static_cast<int>(y[1]);
  shape.input_height = static_cast<int>(x[2]);
  shape.output_height = static_cast<int>(y[2]);
  shape.output_width = static_cast<int>(y[3]);
  shape.padding_top = static_cast<int>(window.padding.top);
  shape.padding_left = static_cast<int>(window.padding.left);
  shape.stages = stages;
  shape.by_channel_groups = Divisor(static_cast<std::uint32_t>(channel_groups(shape)));
  shape.column_tiles = Divisor(static_cast<std::uint32_t>(divide_up(y[3], columns)));
  return shape;
}

void cut_strips(DepthwiseColumnsShape& shape, const Sizes& y, const Window& window, int columns, int resident) {
  constexpr std::int64_t kStart = 2;  // rows that a strip costs beyond its own
  const std::int64_t tiles = y[0] * divide_up(y[3], columns), stride = window.stride[0];
  const std::int64_t most_splits = std::max(1, resident / channel_groups(shape));
  std::int64_t best = std::numeric_limits<std::int64_t>::max();
  for (std::int64_t strips = 1; strips <= y[2]; strips += std::max<std::int64_t>(strips / 4, 1)) {
    const std::int64_t rows = divide_up(y[2], strips), items = tiles * divide_up(y[2], rows);
    const std::int64_t rounds = divide_up(items, most_splits * shape.kWarps);
    const std::int64_t cost = rounds * ((rows - 1) * stride + window.kernel[0] + kStart);
    if (cost >= best || items > std::numeric_limits<std::int32_t>::max() / 2) continue;
    best = cost;
    shape.strip_rows = static_cast<int>(rows);
    shape.strips = Divisor(static_cast<std::uint32_t>(divide_up(y[2], rows)));
    shape.items = static_cast<int>(items);
    shape.splits = static_cast<int>(divide_up(divide_up(items, rounds), shape.kWarps));
  }
  if (shape.items == 0) throw Unsupported("depthwise: too many images: split the batch");
}

}  // namespace fusedsc::gpu::hopper
#endif
