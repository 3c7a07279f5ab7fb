#ifdef FUSEDSC_HOPPER
#include "fusedsc/forward/depthwise/planes/depthwise_planes_plan.h"

#include <algorithm>
#include <limits>

#include "fusedsc/common/divide_up.h"
#include "fusedsc/common/gpu/hopper/hopper_host.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr int kRun = 16;  // bytes, that TMA copies wholes of

bool is_contiguous(const ConstTensorView& tensor) {
  const Sizes& size = tensor.sizes;
  const Sizes strides{size[1] * size[2] * size[3], size[2] * size[3], size[3], 1};
  for (int axis = 0; axis < 4; ++axis) {
    if (size[axis] > 1 && tensor.strides[axis] != strides[axis]) return false;
  }
  return reinterpret_cast<std::uintptr_t>(tensor.data) % kRun == 0;
}

}  // namespace

bool lanes_have(std::int64_t width, int columns) {
  return columns > 0 && width % columns == 0 && width <= std::int64_t{32} * columns;
}

int lane_columns_of(std::int64_t width, int most) {
  for (const int columns : {4, 2, 1}) {
    if (columns <= most && lanes_have(width, columns)) return columns;
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
  const auto rounded = [](int bytes) { return int_divide_up(bytes, 128) * 128; };
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
  shape.strip_rows = int_divide_up(x.height, int_divide_up(x.height, rows));
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

DepthwisePlanesParts share_out_parts(DepthwisePlanesShape& shape, int stride, int reach, int resident_blocks) {
  constexpr double kStart = 6;   // rows that a part costs beyond those that it sees
  constexpr double kHidden = 8;  // warps of a multiprocessor that take as long as one
  constexpr int kLeastRows = 4;  // of a part: the rows before the last one see none behind the image
  const std::int64_t tiles = (shape.all_planes + shape.planes - 1) / shape.planes;
  const bool divides = shape.strip_rows < shape.input_height;
  DepthwisePlanesParts best;
  double least = std::numeric_limits<double>::infinity();
  for (int parts = 1; parts == 1 || (divides && kLeastRows * parts <= shape.output_height); ++parts) {
    const int rows = int_divide_up(shape.output_height, parts), count = int_divide_up(shape.output_height, rows);
    if (count != parts || (parts > 1 && shape.output_height - (parts - 1) * rows < kLeastRows)) continue;
    const std::int64_t items = tiles * parts, wanted = (items + shape.warps - 1) / shape.warps;
    if (items > std::numeric_limits<std::int32_t>::max()) break;
    const auto blocks = static_cast<int>(std::min<std::int64_t>(wanted, resident_blocks));
    const std::int64_t warps = std::int64_t{blocks} * shape.warps, rounds = (items + warps - 1) / warps;
    const double busy = int_divide_up(blocks, multiprocessors()) * shape.warps;
    const int seen = parts == 1 ? shape.input_height : rows * stride + 2 * reach;
    const double cost = static_cast<double>(rounds) * (seen + kStart) * std::max(busy, kHidden);
    if (cost >= least) continue;
    least = cost;
    best = {parts, rows, Divisor(static_cast<std::uint32_t>(parts))};
    shape.blocks = blocks;
  }
  return best;
}

DepthwisePlanesGroups share_out_groups(DepthwisePlanesShape& shape, std::int64_t images, int resident_blocks) {
  DepthwisePlanesGroups result;
  result.groups = int_divide_up(shape.channels, shape.planes);
  result.by_groups = Divisor(static_cast<std::uint32_t>(result.groups));
  const std::int64_t warps = std::int64_t{resident_blocks} * shape.warps;
  const std::int64_t most = std::clamp<std::int64_t>(warps / result.groups, 1, images),
                     each = (images + most - 1) / most;
  result.splits = static_cast<int>((images + each - 1) / each);
  shape.blocks = int_divide_up(result.splits * result.groups, shape.warps);
  return result;
}

/// Constants as measured on an H200, in rows that a warp goes down with one column to a lane.
double share_out_blocks(DepthwisePlanesShape& shape, DepthwisePlanesGroups& result, std::int64_t images,
                        int lane_columns, int most_warps, const DepthwisePlanesForced& forced,
                        const std::function<int(const DepthwisePlanesShape&)>& resident_blocks) {
  constexpr double kStart = 10;        // that a plane costs beyond its own
  constexpr double kHidden = 12;       // warps of a multiprocessor that take as long as one
  constexpr double kColumn = 0.5;      // that another column costs
  constexpr double kSecondPass = 300;  // times warps: adding up what blocks leave, and
  constexpr double kSums = 10;         // each of them;
  constexpr double kWarp = 2;          // and a warp of a block
  result.groups = int_divide_up(shape.channels, shape.planes);
  result.by_groups = Divisor(static_cast<std::uint32_t>(result.groups));
  const double row = 1 + kColumn * (lane_columns - 1);
  // Large planes are bound by memory, which wants all multiprocessors.
  const bool is_large = shape.strip_rows < shape.input_height;
  const int size = multiprocessors(), count = static_cast<int>(images);
  DepthwisePlanesShape trial = shape;
  double best = std::numeric_limits<double>::infinity();
  const auto consider = [&](int warps) {
    trial.warps = warps;
    if (static_cast<std::size_t>(trial.memory_bytes()) > shared_memory_limit()) return;
    const int resident = resident_blocks(trial);
    const int most = std::min(std::max(resident / result.groups, 1), int_divide_up(count, warps));
    for (int blocks = 1; blocks <= most; blocks *= 2) {
      const int each = int_divide_up(count, forced.splits > 0 ? forced.splits : std::min(blocks * warps, count));
      const int splits = int_divide_up(count, each);
      trial.blocks = int_divide_up(splits, warps) * result.groups;
      DepthwisePlanesGroups groups;
      groups.splits = splits;
      const int rows = rows_of_sums(trial, groups), at_once = std::min(trial.blocks, resident);
      const double busy = int_divide_up(at_once, size) * warps;
      const double idle = is_large ? std::max(1.0, static_cast<double>(size) / trial.blocks) : 1;
      const double cost = int_divide_up(trial.blocks, resident) * each * (shape.input_height + kStart) * row *
                              std::max(busy, kHidden) * idle +
                          (rows > 1 ? kSecondPass + kSums * rows : 0) + kWarp * warps;
      if (cost > best) continue;
      best = cost;
      shape.warps = warps;
      shape.blocks = trial.blocks;
      result.splits = splits;
    }
  };
  if (forced.warps > 0) {
    if (forced.warps <= most_warps && forced.splits <= count) consider(forced.warps);
    return best;
  }
  for (int warps = 1; warps <= std::min(most_warps, count); warps *= 2) consider(warps);
  if (count < most_warps) consider(count);
  return best;
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
  if (x.elements() == 0) return "there is nothing to compute";
  return {};
}

}  // namespace fusedsc::gpu::hopper
#endif
