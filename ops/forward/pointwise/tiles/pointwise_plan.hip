#include "fusedsc/forward/pointwise/tiles/pointwise_plan.h"

#include <algorithm>

#include "fusedsc/common/divide_up.h"

namespace fusedsc::gpu {
namespace {

/// Bytes of the runs that can be copied at once: 16, 8, or 0 if neither.
template <class Multiple>
int run_bytes(const void* data, DataType dtype, const Multiple& is_multiple) {
  const auto size = static_cast<int>(size_of(dtype));
  for (const int bytes : {16, 8}) {
    if (bytes <= size) break;
    if (reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(bytes) != 0) continue;
    if (is_multiple(bytes / size)) return bytes;
  }
  return 0;
}

template <class Void>
BasicPointwiseMatrix<Void> activations(const BasicTensorView<Void*>& view, std::int64_t groups, bool channels_inner) {
  BasicPointwiseMatrix<Void> matrix;
  if (!view) return matrix;
  const std::int64_t images = view.sizes[0], channels = view.sizes[1], height = view.sizes[2], width = view.sizes[3];
  // Strides of axes with one element say nothing.
  const std::int64_t image = view.strides[0], channel = view.strides[1],
                     row = height > 1  ? view.strides[2]
                           : width > 1 ? width * view.strides[3]
                                       : image,
                     column = width > 1 ? view.strides[3] : row;
  matrix.data = view.data;
  matrix.first = column;
  matrix.second = channel;
  matrix.group = channels / groups * channel;
  matrix.row_skip = row - width * column;
  matrix.image_skip = images > 1 ? image - height * row : 0;
  matrix.is_linear = matrix.row_skip == 0 && matrix.image_skip == 0;
  matrix.by_width = Divisor(static_cast<std::uint32_t>(std::max<std::int64_t>(width, 1)));
  matrix.by_area = Divisor(static_cast<std::uint32_t>(std::max<std::int64_t>(height * width, 1)));
  matrix.run_bytes = run_bytes(view.data, view.dtype, [&](std::int64_t run) {
    if (channels_inner) {
      return channel == 1 && channels / groups % run == 0 && (width == 1 || column % run == 0) &&
             (height == 1 || row % run == 0) && (images == 1 || image % run == 0);
    }
    return column == 1 && row == width && height * width % run == 0 && channel % run == 0 &&
           (images == 1 || image % run == 0);
  });
  return matrix;
}

template <class Void>
BasicPointwiseMatrix<Void> weights(const BasicTensorView<Void*>& view, std::int64_t groups) {
  BasicPointwiseMatrix<Void> matrix;
  if (!view) return matrix;
  matrix.data = view.data;
  matrix.first = view.strides[0];
  matrix.second = view.strides[1];
  matrix.group = view.sizes[0] / groups * view.strides[0];
  matrix.run_bytes = run_bytes(view.data, view.dtype, [&](std::int64_t run) {
    return view.strides[1] == 1 && view.sizes[1] % run == 0 && view.strides[0] % run == 0;
  });
  return matrix;
}

/// What a tile of a product costs, in cycles of a multiprocessor.
struct TileCost {
  double latency;  ///< from its begin to its end, if nothing else runs
  double work;     ///< if others run beside it
};

/// Its parts: latencies of the tile, of each of its steps and of each value of k there; multiply-adds and copied bytes
/// per cycle; cycles per element that is stored, and bytes of them per cycle.
struct TileRates {
  double start, step, step_depth, multiply_adds, copied_bytes, store, stored_bytes;
};

// Fitted to the times of all tiles on the layers of mobile networks on an H200; only their order matters.
constexpr TileRates kRates16{3000, 700, 14, 670, 16, 0.15, 16}, kRatesTf32{1100, 290, 6, 140, 16, 0.8, 16},
    kRates32{3000, 700, 14, 108, 16, 0.15, 16}, kRates64{3000, 700, 14, 27, 16, 0.15, 16},
    kWeightRates32{0, 500, 12, 236, 54, 0.3, 11};

bool multiplies_floats(const PointwiseTile& tile, DataType dtype) { return dtype == DataType::float32 && !tile.tf32; }

const TileRates& rates_of(const PointwiseTile& tile, DataType dtype) {
  return size_of(dtype) == 2 ? kRates16 : tile.tf32 ? kRatesTf32 : size_of(dtype) == 4 ? kRates32 : kRates64;
}

TileCost tile_cost(const PointwiseTile& tile, std::int64_t depth, DataType dtype, const TileRates& rates) {
  const double bytes = static_cast<double>(size_of(dtype)), all_depth = static_cast<double>(depth);
  const double steps = static_cast<double>(divide_up(depth, tile.depth));
  const double elements = static_cast<double>(tile.rows) * tile.cols;
  const double product = elements * all_depth / rates.multiply_adds;
  const double copies = (tile.rows + tile.cols) * all_depth * bytes / rates.copied_bytes;
  const double stores = elements * (rates.store + bytes / rates.stored_bytes);
  return {rates.start + (rates.step + rates.step_depth * tile.depth / tile.parts) * steps + product,
          product + copies + stores};
}

/// Of `tiles` tiles, of which `resident` run at the same time on `multiprocessors`.
double cost_of(const TileCost& tile, std::int64_t tiles, int resident, int multiprocessors) {
  const double rounds = static_cast<double>(divide_up(tiles, resident));
  const double each = static_cast<double>(divide_up(tiles, multiprocessors));
  return std::max(rounds * tile.latency, tile.latency + (each - 1) * tile.work);
}

/// Of blocks that have `tiles` tiles each, one after the other; `start`: the part of a tile's latency that others
/// beside it do not hide.
double cost_of_blocks(const TileCost& tile, double start, std::int64_t blocks, std::int64_t tiles, int resident,
                      int multiprocessors) {
  const double rounds = static_cast<double>(divide_up(blocks, resident)), each = static_cast<double>(tiles);
  const double beside = static_cast<double>(divide_up(std::min<std::int64_t>(blocks, resident), multiprocessors));
  return rounds * std::max(tile.latency * each, start * tile.latency + beside * each * tile.work);
}

}  // namespace

tuning::Config config_of(const PointwiseTile& tile) {
  using enum tuning::Knob;
  return {{rows, tile.rows}, {columns, tile.cols}, {depth, tile.depth}, {groups, tile.parts}};
}

PointwiseMatrix activation_matrix(const ConstTensorView& view, std::int64_t groups, bool channels_inner) {
  return activations(view, groups, channels_inner);
}
OutputMatrix output_matrix(const TensorView& view, std::int64_t groups, bool channels_inner) {
  return activations(view, groups, channels_inner);
}
PointwiseMatrix weight_matrix(const ConstTensorView& view, std::int64_t groups) { return weights(view, groups); }
OutputMatrix weight_output_matrix(const TensorView& view, std::int64_t groups) { return weights(view, groups); }

bool channels_inner(const ConstTensorView& in, const ConstTensorView& out) {
  // A tensor of one channel is what the other one is.
  const auto is_contiguous = [](const ConstTensorView& view) {
    return layout_of(view.sizes, view.strides) == Layout::contiguous;
  };
  const auto may_be = [&](const ConstTensorView& view) {
    return is_contiguous(view) || (view.sizes[1] == 1 && view.sizes[2] * view.sizes[3] > 1 && view.strides[3] == 1);
  };
  return !may_be(in) || !may_be(out) || !(is_contiguous(in) || is_contiguous(out));
}

std::string too_large_for_pointwise(const Sizes& x, const Sizes& y) {
  constexpr std::int64_t kMost = 1 << 30;  // what is added to reach the end of a tile stays below 2^31
  const std::int64_t pixels = x[0] * x[2] * x[3];
  for (const std::int64_t size : {pixels, x[1], y[1]}) {
    if (size > kMost) {
      return std::to_string(pixels) + " positions, " + std::to_string(x[1]) + " and " + std::to_string(y[1]) +
             " channels: the GPU kernels take at most " + std::to_string(kMost) + " of each";
    }
  }
  return {};
}

double plan_product(const PointwiseProblem& problem, const PointwiseTile& tile, int resident, int multiprocessors,
                    PointwiseProductParameters& product) {
  const int pixels = problem.channels_inner ? tile.rows : tile.cols;
  const int channels = problem.channels_inner ? tile.cols : tile.rows;
  const std::int64_t pixel_tiles = divide_up(problem.pixels, pixels);
  const std::int64_t channel_tiles = divide_up(problem.channels, channels);
  const std::int64_t most = std::max<std::int64_t>(resident / (channel_tiles * problem.groups), 1);
  // Equal shares; at least one, which leaves the sums of an empty batch.
  const std::int64_t splits =
      pixel_tiles > 0 ? divide_up(pixel_tiles, divide_up(pixel_tiles, std::min(most, pixel_tiles))) : 1;
  product.pixels = static_cast<int>(problem.pixels);
  product.depth = static_cast<int>(problem.depth);
  product.channels = static_cast<int>(problem.channels);
  product.groups = static_cast<int>(problem.groups);
  product.pixel_tiles = static_cast<int>(pixel_tiles);
  product.channel_tiles = static_cast<int>(channel_tiles);
  product.splits = static_cast<int>(splits);
  product.by_channel_tiles = Divisor(static_cast<std::uint32_t>(channel_tiles));
  product.by_splits = Divisor(static_cast<std::uint32_t>(splits));
  const TileCost each = tile_cost(tile, problem.depth, problem.dtype, rates_of(tile, problem.dtype));
  if (!multiplies_floats(tile, problem.dtype)) {
    return cost_of(each, pixel_tiles * channel_tiles * problem.groups, resident, multiprocessors);
  }
  constexpr double kStart = 0.1;
  return cost_of_blocks(each, kStart, product.blocks(), divide_up(pixel_tiles, splits), resident, multiprocessors);
}

WeightGradientPlan plan_weight_gradient(const PointwiseProblem& problem, const PointwiseTile& tile, int resident,
                                        int multiprocessors) {
  // The start of tiles beside others; a second kernel, and the bytes of the partial sums, which stay in cache.
  const bool floats = multiplies_floats(tile, problem.dtype);
  constexpr double kStart = 0.5;
  const double second_kernel = floats ? 1000 : 3000, cache_bytes = floats ? 15000 : 2500;
  const std::int64_t output_tiles = divide_up(problem.channels, tile.rows);
  const std::int64_t channel_tiles = divide_up(problem.depth, tile.cols);
  const std::int64_t tiles = output_tiles * channel_tiles * problem.groups;
  const std::int64_t steps = divide_up(problem.pixels, tile.depth);
  const double weight = static_cast<double>(problem.channels * problem.groups * problem.depth);
  WeightGradientPlan best{static_cast<int>(output_tiles), static_cast<int>(channel_tiles), 1, static_cast<int>(steps),
                          std::numeric_limits<double>::infinity()};
  const std::int64_t most = std::clamp<std::int64_t>(resident / tiles, 1, std::max<std::int64_t>(steps, 1));
  for (std::int64_t trial = 1; trial <= most; trial = trial == most ? most + 1 : std::min(2 * trial, most)) {
    const std::int64_t split_steps = divide_up(steps, trial);
    const std::int64_t splits = steps > 0 ? divide_up(steps, split_steps) : 1;
    TileCost each = tile_cost(tile, split_steps * tile.depth, problem.dtype,
                              floats ? kWeightRates32 : rates_of(tile, problem.dtype));
    if (tile.tf32) {
      // Measured with one block to a multiprocessor: a step takes as long for any tile, waiting for memory.
      each.latency = tile.wait * static_cast<double>(split_steps);
      each.work /= 2;
    }
    double cost = floats ? cost_of_blocks(each, kStart, tiles * splits, 1, resident, multiprocessors)
                         : cost_of(each, tiles * splits, resident, multiprocessors);
    if (splits > 1) cost += second_kernel + static_cast<double>(splits) * weight * 8 / cache_bytes;
    if (cost >= best.cost) continue;
    best.splits = static_cast<int>(splits);
    best.split_steps = static_cast<int>(split_steps);
    best.cost = cost;
  }
  return best;
}

}  // namespace fusedsc::gpu
