#ifdef FUSEDSC_HOPPER
#include "fusedsc/forward/depthwise/hopper/depthwise_hopper_plan.h"

#include <algorithm>
#include <initializer_list>

namespace fusedsc::gpu::hopper {
namespace {

/// Rows of the output, in tiles of so many, of which fewer are not worth a block's beginning.
int least_grain(int rows) { return round_up(4, rows); }

}  // namespace

tuning::Config config_of(const DepthwiseTiling& t) {
  using enum tuning::Knob;
  return {{products, t.products}, {box, t.box_channels},        {rows, t.rows},   {images, t.images},
          {stages, t.stages},     {image_parts, t.image_parts}, {grain, t.grain}, {segments, t.in_segments ? 1 : 0}};
}

DepthwiseTiling tiling_of(const tuning::Config& config) {
  using enum tuning::Knob;
  return {config[products],      config[box],  1, config[rows], config[images], config[image_parts], config[stages],
          config[segments] != 0, config[grain]};
}

tuning::Config config_of(const DepthwisePatching& t) {
  using enum tuning::Knob;
  return {{runs, t.runs},
          {box_runs, t.box_runs},
          {rows, t.rows},
          {image_parts, t.image_parts},
          {stages, t.stages},
          {grain, t.grain},
          {segments, t.in_segments ? 1 : 0}};
}

DepthwisePatching patching_of(const tuning::Config& config) {
  using enum tuning::Knob;
  return {config[runs],   config[box_runs],      config[rows], config[image_parts],
          config[stages], config[segments] != 0, config[grain]};
}

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
  p.group_runs = t.boxes * t.box_channels / 8;
  p.rows = t.rows;
  p.image_parts = t.image_parts;
  p.images = t.images * t.image_parts;
  p.stages = t.stages;
  p.tile_columns = p.out_pitch = p.halves_are_images() ? 8 : p.products_are_images() ? 16 : 16 * t.products;
  const int column_tiles = int_divide_up(p.output_width, p.tile_columns);
  const int last = (std::min(p.tile_columns, p.output_width) - 1) * stride + kernel;  // columns that windows see
  p.pitch = round_up(last, 8);
  // A window may see the next row's padding in place of its own at the right.
  if (column_tiles == 1) {
    p.pitch = std::min(p.pitch, round_up(std::max(p.input_width + p.padding_left, last - p.padding_left), 8));
  }
  // Positions that an image does not have read on behind a row: behind the last one there shall be zeros, and nothing
  // that makes outputs beside them be computed again.
  const int reach = (p.tile_columns - 1) * stride + kernel;
  p.tile_bytes = round_up(p.boxes * p.images * p.image_bytes() + std::max(0, reach - p.pitch) * p.box_bytes, 1024);
  p.half_bytes = p.halves_are_images() ? p.image_bytes() : 8 * stride * p.box_bytes;
  p.product_bytes = p.halves_are_images()     ? 2 * p.image_bytes()
                    : p.products_are_images() ? p.image_bytes()
                                              : 2 * p.half_bytes;
  if (t.in_segments) {  // of which the halves of products are whole ones
    const int half = 8 * stride * p.box_bytes;
    p.segment_bytes = segment_of(half);
    p.segments = int_divide_up(reach * p.box_bytes, p.segment_bytes);
    const int image_bytes = p.rows * p.segment_bytes;
    p.tile_bytes = round_up(p.segments * p.images * image_bytes, 1024);
    p.half_bytes = half / p.segment_bytes * p.images * image_bytes;
    p.product_bytes = 2 * p.half_bytes;
  }

  // As many rows that tiles and pieces come out even; images that fit a few tiles are not cut.
  const int rows = p.rows / stride;
  p.grain = t.grain > 0 ? t.grain : p.output_height <= 16 ? p.output_height : least_grain(rows);
  const int strips = int_divide_up(p.output_height, p.grain);
  p.units = int_divide_up(p.batch, p.images) * column_tiles * strips;
  p.by_channel_groups = Divisor(static_cast<std::uint32_t>(channel_groups(p)));
  p.strips = Divisor(static_cast<std::uint32_t>(strips));
  p.column_tiles = Divisor(static_cast<std::uint32_t>(column_tiles));
  return p;
}

bool are_runs(const ConstTensorView& x, const DepthwisePatching& t) {
  const int all = int_divide_up(x.sizes[1], 8);
  if (t.runs < 1 || t.runs > 32) return false;
  if (t.in_segments) return t.runs == all && t.box_runs == 0;
  if (!t.swizzles()) return t.runs == all || t.runs % 2 == 1;
  return (t.box_runs == 4 || t.box_runs == 8) && (t.runs < t.box_runs || t.runs % t.box_runs == 0);
}

std::vector<DepthwisePatching> patchings_of(const ConstTensorView& x) {
  const int all = int_divide_up(x.sizes[1], 8);
  std::vector<DepthwisePatching> list = {{4, 4}, {8, 8}, {12, 4}};
  if (all > 4 && all < 8) list.push_back({all, 8});
  if (all <= 32) list.push_back({all, 0});
  if (all % 9 == 0 && all > 9) list.push_back({9, 0});
  if (all <= 32) list.push_back({.runs = all, .in_segments = true});
  std::vector<DepthwisePatching> all_of_them;
  for (DepthwisePatching t : list) {
    for (const int rows : {1, 2, 3, 4, 5, 6}) {
      for (const int parts : {1, 2, 3}) {
        for (const int stages : {2, 3, 4, 5}) {
          for (const int grain : {0, 2, 5, 7, 28}) {
            t.rows = rows;
            t.image_parts = parts;
            t.stages = stages;
            t.grain = grain;
            all_of_them.push_back(t);
          }
        }
      }
    }
  }
  return all_of_them;
}

namespace {

/// Of x, as lines see it: columns of a row of a tile.
int pitch_of(const DepthwiseTilesShape& p, int kernel, int stride, int column_tiles) {
  const int last = (std::min(p.tile_columns, p.output_width) - 1) * stride + kernel;  // columns that windows see
  // A window may see the next row's padding in place of its own at the right.
  const int pitch =
      column_tiles > 1 ? last : std::min(last, std::max(p.input_width + p.padding_left, last - p.padding_left));
  return p.swizzles ? round_up(pitch, 8) : pitch;
}

/// Rows of the output that are not divided between blocks: `grain`, or as many fewer as it takes for most
/// multiprocessors to have a block. rows: of a tile.
int grain_for_all(const DepthwiseTilesShape& p, int grain, int rows, int column_tiles) {
  const int least = least_grain(rows);
  const std::int64_t columns = std::int64_t{int_divide_up(p.batch, p.images)} * column_tiles * channel_groups(p);
  while (grain > least && 4 * columns * int_divide_up(p.output_height, grain) < 3 * std::int64_t{multiprocessors()}) {
    grain = std::max(least, round_up(int_divide_up(grain, 2), rows));
  }
  return grain;
}

}  // namespace

DepthwiseTilesShape cut_patches(const Sizes& x, const Sizes& y, const Window& window, const DepthwisePatching& t,
                                PatchesOf of) {
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

  p.swizzles = t.swizzles();
  p.boxes = p.swizzles ? int_divide_up(t.runs, t.box_runs) : 1;
  p.box_bytes = 16 * (p.swizzles ? t.box_runs : t.in_segments ? t.runs : t.runs | 1);
  p.group_runs = t.runs;
  p.rows = t.rows;
  p.stages = t.stages;
  p.image_parts = t.image_parts;
  const bool whole = of == PatchesOf::both, transposed = of == PatchesOf::gradient;
  const int columns = whole ? weight_patch_columns(kernel) : 4;  // of a patch
  p.image_lines = 8 / columns;
  while (p.image_lines < 16 && columns * p.image_lines < p.output_width) p.image_lines *= 2;
  p.images = p.product_images() * p.image_parts;
  const int column_tiles = int_divide_up(p.output_width, 16 * columns);
  p.tile_columns =
      whole ? columns * p.image_lines : round_up(int_divide_up(p.output_width, column_tiles), p.swizzles ? 8 : 4);
  p.out_pitch = column_tiles > 1 || p.swizzles ? p.tile_columns : p.output_width;
  const int patches =  // of a row that are read
      whole ? p.image_lines : int_divide_up(std::min(p.tile_columns, p.output_width), 4);
  const int patch_step = transposed ? 2 : columns * stride;
  const int patch_reach = whole ? 8 : transposed ? 4 : 4 * patch_groups(kernel, stride);  // columns that each reads
  const int reach = (patches - 1) * patch_step + patch_reach;
  p.pitch = !transposed ? pitch_of(p, kernel, stride, column_tiles) : p.swizzles ? round_up(reach, 8) : reach;
  p.tile_bytes = round_up(p.boxes * p.images * p.image_bytes() + std::max(0, reach - p.pitch) * p.box_bytes, 1024);
  p.half_bytes = p.image_lines == 16 ? 8 * patch_step * p.box_bytes : 8 / p.image_lines * p.image_bytes();
  if (t.in_segments) {  // of which the halves of products are whole ones
    const int half = 8 * patch_step * p.box_bytes;
    p.segment_bytes = segment_of(half);
    p.segments = int_divide_up(reach * p.box_bytes, p.segment_bytes);
    const int image_bytes = p.rows * p.segment_bytes;
    p.tile_bytes = round_up(p.segments * p.images * image_bytes, 1024);
    p.half_bytes =
        p.image_lines == 16 ? half / p.segment_bytes * p.images * image_bytes : 8 / p.image_lines * image_bytes;
  }

  const int rows = transposed ? 2 * p.rows : p.rows / stride;  // of the output
  const int grain = t.grain > 0 ? t.grain : p.output_height <= 16 ? round_up(p.output_height, 2) : least_grain(rows);
  p.grain = grain_for_all(p, grain, rows, column_tiles);
  const int strips = int_divide_up(p.output_height, p.grain);
  p.units = int_divide_up(p.batch, p.images) * column_tiles * strips;
  p.by_channel_groups = Divisor(static_cast<std::uint32_t>(channel_groups(p)));
  p.strips = Divisor(static_cast<std::uint32_t>(strips));
  p.column_tiles = Divisor(static_cast<std::uint32_t>(column_tiles));
  return p;
}

void share_out(DepthwiseTilesShape& shape, int resident, bool even) {
  int splits = std::max(1, std::min(shape.units, resident / channel_groups(shape)));
  if (even) splits = int_divide_up(shape.units, int_divide_up(shape.units, splits));
  share_out_among(shape, splits);
}

void share_out_among(DepthwiseTilesShape& shape, int splits) {
  shape.splits = splits;
  shape.share = shape.units / splits;
  shape.longer = shape.units % splits;
}

namespace {

/// Whether it is square, of such a size, and moves by 1 or 2.
bool is_plain_window(const Sizes& x, const Sizes& y, const Window& window,
                     std::initializer_list<std::int64_t> kernels) {
  return window.kernel[0] == window.kernel[1] && window.stride[0] == window.stride[1] && window.stride[0] <= 2 &&
         window.dilation == std::array<std::int64_t, 2>{1, 1} && x[1] == y[1] &&
         std::find(kernels.begin(), kernels.end(), window.kernel[0]) != kernels.end();
}

}  // namespace

std::string why_no_tiles(const Sizes& x, const Sizes& y, const Window& window) {
  if (is_plain_window(x, y, window, {3, 5})) return {};
  return "it is for windows of 3 x 3 or 5 x 5, of stride 1 or 2, not dilated, without a channel multiplier";
}

std::string why_no_patches(const Sizes& x, const Sizes& y, const Window& window) {
  if (is_plain_window(x, y, window, {3, 5}) || (is_plain_window(x, y, window, {7}) && window.stride[0] == 1)) return {};
  return "it is for windows of 3 x 3 or 5 x 5, of stride 1 or 2, and 7 x 7 of stride 1, not dilated, without a channel "
         "multiplier";
}

}  // namespace fusedsc::gpu::hopper
#endif
