#ifdef FUSEDSC_HOPPER
#include "fusedsc/common/gpu/depthwise_hopper_plan.h"

#include <algorithm>

namespace fusedsc::gpu::hopper {

DepthwiseTilesShape cut_tiles(const Sizes& x, const Sizes& y, const Window& window, const DepthwiseTiling& t) {
  const int kernel = static_cast<int>(window.kernel[0]), stride = static_cast<int>(window.stride[0]);
  const auto size = [](std::int64_t value) { return static_cast<int>(value); };
  DepthwiseTilesShape p;
  p.batch = size(y[0]);
  p.channels = size(y[1]);
  p.input_height = size(x[2]);
  p.input_width = size(x[3]);
  p.output_height = size(y[2]);
  p.output_width = size(y[3]);
  p.padding_top = size(window.padding.top);
  p.padding_left = size(window.padding.left);

  p.box_bytes = 2 * t.box_channels;
  p.boxes = t.boxes;
  p.rows = t.rows;
  p.image_parts = t.image_parts;
  p.images = t.images * t.image_parts;
  p.stages = t.stages;
  p.tile_columns = p.out_pitch = p.halves_are_images() ? 8 : p.products_are_images() ? 16 : 16 * t.products;
  const int column_tiles = divide_up(p.output_width, p.tile_columns);
  const int last = (std::min(p.tile_columns, p.output_width) - 1) * stride + kernel;  // columns that windows see
  p.pitch = round_up(last, 8);
  // A window may see the next row's padding in place of its own at the right.
  if (column_tiles == 1) {
    p.pitch = std::min(p.pitch, round_up(std::max(p.input_width + p.padding_left, last - p.padding_left), 8));
  }
  p.tile_bytes = round_up(p.boxes * p.images * p.image_bytes(), 1024) + (p.pitch < last ? 1024 : 0);
  p.half_bytes = p.halves_are_images() ? p.image_bytes() : 8 * stride * p.box_bytes;
  p.product_bytes = p.halves_are_images()     ? 2 * p.image_bytes()
                    : p.products_are_images() ? p.image_bytes()
                                              : 2 * p.half_bytes;

  // As many rows that tiles and pieces come out even; images that fit a few tiles are not cut.
  const int rows = p.rows / stride;
  p.grain = p.output_height <= 16 ? p.output_height : std::max(rows, round_up(4, rows));
  const int strips = divide_up(p.output_height, p.grain);
  p.units = divide_up(p.batch, p.images) * column_tiles * strips;
  p.by_channel_groups = Divisor(static_cast<std::uint32_t>(channel_groups(p)));
  p.strips = Divisor(static_cast<std::uint32_t>(strips));
  p.column_tiles = Divisor(static_cast<std::uint32_t>(column_tiles));
  return p;
}

void share_out(DepthwiseTilesShape& shape, int resident) {
  shape.splits = std::max(1, std::min(shape.units, resident / channel_groups(shape)));
}

std::string why_no_tiles(const Sizes& x, const Sizes& y, const Window& window) {
  if (window.kernel[0] != window.kernel[1] || (window.kernel[0] != 3 && window.kernel[0] != 5) ||
      window.stride[0] != window.stride[1] || window.stride[0] > 2 ||
      window.dilation != std::array<std::int64_t, 2>{1, 1} || x[1] != y[1]) {
    return "it is for windows of 3 x 3 or 5 x 5, of stride 1 or 2, not dilated, without a channel multiplier";
  }
  return {};
}

}  // namespace fusedsc::gpu::hopper
#endif
