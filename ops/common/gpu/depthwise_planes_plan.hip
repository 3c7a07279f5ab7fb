#ifdef FUSEDSC_HOPPER
#include "fusedsc/common/gpu/depthwise_planes_plan.h"

#include <algorithm>
#include <limits>

#include "fusedsc/common/gpu/hopper_host.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr int kRun = 16;  // bytes, that the copy engine copies wholes of

int divide_up(int a, int b) { return (a + b - 1) / b; }

bool is_contiguous(const ConstTensorView& tensor) {
  const Sizes& size = tensor.sizes;
  const Sizes strides{size[1] * size[2] * size[3], size[2] * size[3], size[3], 1};
  for (int axis = 0; axis < 4; ++axis) {
    if (size[axis] > 1 && tensor.strides[axis] != strides[axis]) return false;
  }
  return reinterpret_cast<std::uintptr_t>(tensor.data) % kRun == 0;
}

}  // namespace

int lane_columns_of(std::int64_t width, int most) {
  for (const int columns : {4, 2, 1}) {
    if (columns <= most && width % columns == 0 && width <= 32 * columns) return columns;
  }
  return 0;
}

DepthwisePlanesShape planes_shape(const Sizes& x, const Sizes& y) {
  DepthwisePlanesShape shape;
  shape.channels = static_cast<int>(x[1]);
  shape.input_height = static_cast<int>(x[2]);
  shape.input_width = static_cast<int>(x[3]);
  shape.output_height = static_cast<int>(y[2]);
  shape.output_width = static_cast<int>(y[3]);
  shape.all_planes = x[0] * x[1];
  shape.by_channels = Divisor(static_cast<std::uint32_t>(x[1]));
  return shape;
}

std::string cut_planes(DepthwisePlanesShape& shape, int element_bytes, const DepthwisePlanesSource& x,
                       const DepthwisePlanesSource& other, int lane_columns, bool may_repeat,
                       const DepthwisePlanesTiling& tiling) {
  shape.lanes = shape.output_width / lane_columns;
  shape.side_planes = shape.planes = 32 / shape.lanes;
  shape.stages = tiling.stages;
  shape.warps = tiling.warps;
  const auto whole = [&](int bytes) { return bytes % kRun == 0; };
  const int plane_bytes = element_bytes * x.width * x.height, other_bytes = element_bytes * other.width * other.height;
  const auto all_bytes = [&](int bytes) { return static_cast<std::int64_t>(bytes) * shape.channels; };
  const auto rounded = [](int bytes) { return divide_up(bytes, 128) * 128; };
  if (shape.side_planes * (plane_bytes + other_bytes) <= tiling.whole_bytes) {
    shape.strip_rows = x.height;
    if (all_bytes(plane_bytes) % kRun != 0 || all_bytes(other_bytes) % kRun != 0) {
      return "images are no whole runs of 16 bytes";
    }
    if (may_repeat) {
      // Whole runs, and enough of them.
      while (!whole(shape.planes * plane_bytes) || !whole(shape.planes * other_bytes) ||
             shape.planes * (plane_bytes + other_bytes) < tiling.tile_bytes / 2) {
        shape.planes += shape.side_planes;
      }
    }
    const auto kept = [&](int bytes) {
      return rounded(shape.planes * bytes + (whole(shape.planes * bytes) ? 0 : kRun));
    };
    shape.other_place = kept(plane_bytes);
    shape.stage_bytes = shape.other_place + kept(other_bytes);
    return {};
  }
  const int row_bytes = element_bytes * x.width, other_row_bytes = element_bytes * other.width;
  if (!whole(row_bytes) || !whole(other_row_bytes)) return "rows are no whole runs of 16 bytes";
  const int stride = other.width > 0 ? std::max(1, x.width / other.width) : 1;
  const int rows = std::max(2, tiling.tile_bytes / (shape.planes * (row_bytes + other_row_bytes / stride)));
  shape.strip_rows = divide_up(x.height, divide_up(x.height, rows));
  shape.other_place = rounded(shape.planes * (shape.strip_rows + x.spare) * row_bytes);
  shape.stage_bytes =
      shape.other_place + rounded(shape.planes * (shape.strip_rows / stride + other.spare) * other_row_bytes);
  return {};
}

bool are_whole_runs(const DepthwisePlanesShape& shape, int element_bytes) {
  const int plane_bytes = element_bytes * shape.input_height * shape.input_width;
  return shape.strip_rows < shape.input_height || plane_bytes % kRun == 0 ||
         (shape.planes * plane_bytes % kRun == 0 && shape.channels % shape.planes == 0);
}

void share_out(DepthwisePlanesShape& shape, int resident_blocks) {
  const std::int64_t items = (shape.all_planes + shape.planes - 1) / shape.planes;
  const std::int64_t wanted = (items + shape.warps - 1) / shape.warps;
  shape.blocks = static_cast<int>(std::min<std::int64_t>(wanted, resident_blocks));
  shape.first_step = shape.planes;
  shape.item_step = std::int64_t{shape.planes} * shape.warps * shape.blocks;
}

DepthwisePlanesGroups share_out_groups(DepthwisePlanesShape& shape, std::int64_t images, int resident_blocks) {
  DepthwisePlanesGroups result;
  result.groups = divide_up(shape.channels, shape.planes);
  result.by_groups = Divisor(static_cast<std::uint32_t>(result.groups));
  const std::int64_t warps = std::int64_t{resident_blocks} * shape.warps;
  const std::int64_t most = std::clamp<std::int64_t>(warps / result.groups, 1, images),
                     each = (images + most - 1) / most;
  result.splits = static_cast<int>((images + each - 1) / each);
  shape.blocks = divide_up(result.splits * result.groups, shape.warps);
  return result;
}

std::string why_no_planes(const ConstTensorView& x, const ConstTensorView& y, const Window& window) {
  const std::int64_t kernel = window.kernel[0], stride = window.stride[0], dilation = window.dilation[0],
                     reach = kernel / 2 * dilation;
  using Pair = std::array<std::int64_t, 2>;
  if (!is_hopper()) return "the GPU is not of compute capability 9.0";
  if (x.dtype == DataType::float64) return "it is not for float64";
  if ((kernel != 3 && kernel != 5) || stride > 2 || window.kernel != Pair{kernel, kernel} ||
      window.stride != Pair{stride, stride} || window.dilation != Pair{dilation, dilation} ||
      dilation > (kernel == 3 && stride == 1 ? 2 : 1) || x.sizes[1] != y.sizes[1]) {
    return "it is for windows of 3 x 3 or 5 x 5, of stride 1 or 2, of dilation 2 with 3 x 3 of stride 1 alone, without "
           "a channel multiplier";
  }
  if (window.padding.left != reach || window.padding.top != reach || x.sizes[3] != y.sizes[3] * stride ||
      y.sizes[2] != (x.sizes[2] + stride - 1) / stride) {
    return "it is for as much padding as keeps the size";
  }
  if (!is_contiguous(x) || !is_contiguous(y)) return "x or y is not contiguous, or not aligned to 16 bytes";
  if (lane_columns_of(y.sizes[3], stride == 2 ? 2 : 4) == 0) return "rows are too long for a warp, or of odd lengths";
  if (x.sizes[0] * x.sizes[1] > std::numeric_limits<std::int32_t>::max()) return "there are too many planes";
  // Measured: with less there is nothing to hide the copies' latency behind.
  if (x.elements() < std::int64_t{4096} * multiprocessors()) return "there is too little work for it";
  return {};
}

}  // namespace fusedsc::gpu::hopper
#endif
