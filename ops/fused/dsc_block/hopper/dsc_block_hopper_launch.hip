#ifdef FUSEDSC_HOPPER
#include <algorithm>
#include <limits>
#include <vector>

#include "fusedsc/common/divide_up.h"
#include "fusedsc/common/gpu/hopper/hopper_host.h"
#include "fusedsc/common/gpu/hopper/hopper_kernel.h"
#include "fusedsc/forward/depthwise/rows/depthwise_plan.h"
#include "fusedsc/fused/dsc_block/dsc_block_parts.h"
#include "fusedsc/fused/dsc_block/hopper/dsc_block_hopper.h"
#include "fusedsc/fused/dsc_block/hopper/dsc_block_hopper_kernel.h"

namespace fusedsc {
namespace gpu::hopper {

std::string why_not_one_kernel(const DscBlockArguments& block) {
  std::string reason = needs_device(Device::gpu, block.x.device);
  if (!reason.empty()) return reason;
  if (block.training) return "it is for eval mode";
  if (!is_hopper()) return "the GPU is not of compute capability 9.0";
  if (size_of(block.x.dtype) != 2) return "it is for float16 and bfloat16";
  if (block.d) return "d is to be stored, which it keeps to itself";
  reason = needs_dense_pointwise(block);
  if (!reason.empty()) return reason;
  const Window& window = block.window;
  using Pair = std::array<std::int64_t, 2>;
  if (window.kernel != Pair{3, 3} || window.dilation != Pair{1, 1} || window.stride[0] != window.stride[1] ||
      window.stride[0] > 2 || block.x.sizes[1] != block.dw_weight.sizes[0]) {
    return "it is for windows of 3 x 3, of stride 1 or 2, not dilated, without a channel multiplier";
  }
  if (block.y.elements() == 0) return "there is nothing to compute";
  reason = too_large_for_gpu(block.x.sizes, block.y.sizes, window);
  if (!reason.empty()) return reason;
  const ConstTensorView& weight = block.pw_weight;
  if (!suits_tma(block.x) || !suits_tma(block.epilogue.residual) || !suits_tma(ConstTensorView(block.y)) ||
      weight.strides[1] != 1 || weight.strides[0] % 8 != 0 || reinterpret_cast<std::uintptr_t>(weight.data) % 16 != 0) {
    return "channels of x or y are not neighbours, or no multiples of 8, or not aligned to 16 bytes";
  }
  const ConstTensorView& residual = block.epilogue.residual;
  if (residual && residual.strides != block.y.strides) return "the residual does not lie in memory as y does";
  return {};
}

namespace {

constexpr const char* kName = "gpu_hopper";
constexpr int kPatches = 16;  ///< of a tile, at most

/// A kernel that was compiled, and what for.
struct Instance {
  DataType dtype;
  int stride, row_bytes, rows, groups, group_outputs, outputs, threads;
  void (*run)(DscBlockParameters);
  int (*memory_bytes)(const DscBlockParameters&);
};

template <class T, int kStride, int kRowBytes, int kRows, int kGroups, int kGroupRows, int kGroupOutputs>
void append(std::vector<Instance>& to, DataType dtype) {
  using Shape = DscBlockShape<T, kStride, kRowBytes, kRows, kGroups, kGroupRows, kGroupOutputs>;
  to.push_back({dtype, kStride, kRowBytes, kRows, kGroups, kGroupOutputs, Shape::kOutputs, Shape::kThreads,
                hopper_kernel<DscBlockKernel<Shape>, Shape::kThreads>, Shape::memory_bytes});
}

template <class T>
void append_all(std::vector<Instance>& to, DataType dtype) {
  // Stride, bytes of a chunk, rows; groups, their rows and outputs.
  append<T, 1, 128, 4, 1, 4, 32>(to, dtype);
  append<T, 1, 128, 4, 2, 2, 64>(to, dtype);
  append<T, 1, 128, 2, 2, 1, 96>(to, dtype);
  append<T, 2, 64, 2, 1, 2, 32>(to, dtype);
  append<T, 2, 128, 2, 2, 1, 64>(to, dtype);
  append<T, 2, 128, 1, 2, 1, 80>(to, dtype);
}

const std::vector<Instance>& instances() {
  static const std::vector<Instance> all = [] {
    std::vector<Instance> list;
    append_all<Float16>(list, DataType::float16);
    append_all<BFloat16>(list, DataType::bfloat16);
    return list;
  }();
  return all;
}

/// A launch, worked out but for addresses.
struct Pass {
  const Instance* instance = nullptr;
  DscBlockParameters p;
  std::int64_t blocks = 0;
  std::size_t memory = 0;
  double cost = std::numeric_limits<double>::infinity();

  bool fits() const { return memory > 0; }
  /// Products that are nearly empty win on paper only: by being many.
  bool is_well_used() const { return fits() && p.tile_rows * p.tile_columns >= 0.6 * 64 * instance->rows; }
};

/// In cycles of a multiprocessor; estimates, of which only the order matters.
double cost_of(const Pass& pass) {
  const DscBlockParameters& p = pass.p;
  const Instance& instance = *pass.instance;
  const int stride = instance.stride, rows = instance.rows;
  const double copied_rows = p.input_rows * p.pitch + instance.outputs;
  const double copies = p.chunks * copied_rows * (instance.row_bytes == 128 ? 6.6 : 4.0);
  const double instructions = 60 + ((rows - 1) * stride + 3) * (14 + 12 * stride) + rows * (70 + 12 * stride);
  const double depthwise = p.runs() * instructions / (instance.groups == 1 ? 2.4 : 1.8);
  return static_cast<double>(divide_up(p.tiles, multiprocessors())) * std::max(copies, depthwise);
}

/// Tiles of `tile_rows` rows, of so many patches of four columns side by side. They fit, or do not.
Pass cut(const Instance& instance, const DscBlockParameters& problem, std::int64_t images, int lines, int tile_rows) {
  constexpr int kMostStages = 6;
  const int strips = static_cast<int>(divide_up(tile_rows, instance.rows));
  Pass pass;
  if (lines < 1 || tile_rows < 1 || lines * strips > kPatches) return pass;
  pass.instance = &instance;
  DscBlockParameters& p = pass.p;
  p = problem;
  p.lines = lines;
  p.strips = strips;
  p.tile_rows = tile_rows;
  p.tile_columns = std::min(4 * lines, p.output_width);
  const int columns = (p.tile_columns - 1) * instance.stride + 3;
  p.input_rows = (tile_rows - 1) * instance.stride + 3;
  p.pitch = static_cast<int>(divide_up(columns, 8) * 8);
  if (p.pitch > 256 || p.input_rows > 256) return pass;
  p.chunks = static_cast<int>(divide_up(p.channels * 2, instance.row_bytes));
  p.stages = kMostStages;
  while (p.stages > 1 && instance.memory_bytes(p) > kMemoryLimit) --p.stages;
  if (p.stages < 2) return pass;
  const std::int64_t column_tiles = divide_up(p.output_width, p.tile_columns),
                     row_tiles = divide_up(p.output_height, tile_rows);
  const std::int64_t tiles = images * row_tiles * column_tiles;
  if (tiles > std::numeric_limits<std::int32_t>::max()) return pass;
  p.tiles = static_cast<int>(tiles);
  p.by_row_tiles = Divisor(static_cast<std::uint32_t>(row_tiles));
  p.by_column_tiles = Divisor(static_cast<std::uint32_t>(column_tiles));
  p.by_lines = Divisor(static_cast<std::uint32_t>(lines));
  p.by_stages = Divisor(static_cast<std::uint32_t>(p.stages));
  p.by_chunks = Divisor(static_cast<std::uint32_t>(p.chunks));
  pass.memory = static_cast<std::size_t>(instance.memory_bytes(p));
  pass.cost = cost_of(pass);
  return pass;
}

/// Whether a kernel is for the block's type and stride, and has room for its outputs.
bool is_for(const Instance& instance, const DscBlockArguments& block) {
  return instance.dtype == block.x.dtype && instance.stride == block.window.stride[0] &&
         instance.outputs >= block.y.sizes[1];
}

std::int64_t most_lines(const DscBlockArguments& block) {
  return std::min<std::int64_t>(kPatches, divide_up(block.y.sizes[3], 4));
}

/// Of tiles of so many strips, of about the same height.
int even_rows(const Instance& instance, const DscBlockArguments& block, std::int64_t strips) {
  const std::int64_t height = block.y.sizes[2];
  return static_cast<int>(divide_up(height, divide_up(height, strips * instance.rows)));
}

/// visit(a pass that fits) until it is true, and whether it was: of every kernel that has room for the outputs, and
/// tiles of any width and height.
template <class Visit>
bool any_pass(const DscBlockArguments& block, const Visit& visit) {
  DscBlockParameters problem;
  problem.set_sizes(block);
  const Sizes& y = block.y.sizes;
  for (const Instance& instance : instances()) {
    if (!is_for(instance, block)) continue;
    for (int lines = 1; lines <= most_lines(block); ++lines) {
      const std::int64_t most_strips = std::min<std::int64_t>(kPatches / lines, divide_up(y[2], instance.rows));
      int before = 0;
      for (int strips = 1; strips <= most_strips; ++strips) {
        const int rows = even_rows(instance, block, strips);
        if (rows == before) continue;
        before = rows;
        if (const Pass pass = cut(instance, problem, y[0], lines, rows); pass.fits() && visit(pass)) return true;
      }
    }
  }
  return false;
}

/// The cheapest; without an instance: there is none that fills its products.
Pass cheapest(const DscBlockArguments& block) {
  const Sizes& y = block.y.sizes;
  Pass best;
  any_pass(block, [&](const Pass& pass) {
    // With one row the weight would come anew for every 64 positions.
    const bool is_useful = pass.is_well_used() && (pass.instance->rows > 1 || y[2] * y[3] <= 64);
    if (is_useful && pass.cost < best.cost) best = pass;
    return false;
  });
  return best;
}

using tuning::Config;
using tuning::Knob;

Config config_of(const Pass& pass) {
  return {{Knob::channels, pass.instance->outputs},
          {Knob::rows, pass.p.tile_rows},
          {Knob::columns, std::int64_t{4} * pass.p.lines}};
}

tuning::Configs configs(const DscBlockArguments& block) {
  tuning::Configs list;
  any_pass(block, [&](const Pass& pass) {
    list.push_back(config_of(pass));
    return false;
  });
  return list;
}

Pass pass_of(const DscBlockArguments& block, const Config& config) {
  DscBlockParameters problem;
  problem.set_sizes(block);
  const int lines = config[Knob::columns] / 4, rows = config[Knob::rows];
  Pass found;
  for (const Instance& instance : instances()) {
    if (!is_for(instance, block) || lines > most_lines(block) || rows < 1 || rows > block.y.sizes[2]) continue;
    if (rows != even_rows(instance, block, divide_up(rows, instance.rows))) continue;
    const Pass pass = cut(instance, problem, block.y.sizes[0], lines, rows);
    if (pass.fits() && config_of(pass) == config) found = pass;
  }
  if (!found.fits()) {
    throw Unsupported(std::string("dsc_block: ") + kName + ": there is no kernel with " + tuning::printed(config) +
                      ", or its tiles do not fit shared memory");
  }
  found.blocks = std::min<std::int64_t>(found.p.tiles,
                                        resident_blocks(found.instance->run, found.instance->threads, found.memory));
  return found;
}

void run(const Pass& pass, const DscBlockArguments& block, const Execution& execution) {
  DscBlockParameters p = pass.p;
  const Instance& instance = *pass.instance;
  const int chunk = instance.row_bytes / 2;
  p.x = map_of_images(block.x, chunk, p.pitch, p.input_rows, 1, true);
  p.pw_weight = map_of(block.pw_weight.data, block.pw_weight.dtype, p.channels, p.outputs, block.pw_weight.strides[0],
                       chunk, instance.group_outputs);
  p.set_tensors(block);
  p.has_residual = static_cast<bool>(block.epilogue.residual);
  if (p.has_residual) {
    p.residual_distance = (reinterpret_cast<std::intptr_t>(block.epilogue.residual.data) -
                           reinterpret_cast<std::intptr_t>(block.y.data)) /
                          static_cast<std::intptr_t>(size_of(block.y.dtype));
  }
  launch_following("dsc_block", instance.run, pass.blocks, instance.threads, execution.stream, p, pass.memory);
}

std::string unsupported(const DscBlockArguments& block) {
  const std::string reason = why_not_one_kernel(block);
  if (!reason.empty()) return reason;
  const bool any = any_pass(block, [](const Pass&) { return true; });
  return any ? "" : "there are too many outputs, or no tiles that fit shared memory";
}

Plan<DscBlockArguments> plan(const DscBlockArguments& block, const Config& config, int /*threads*/) {
  return {0, [pass = pass_of(block, config)](const DscBlockArguments& like, const Execution& execution) {
            run(pass, like, execution);
          }};
}

}  // namespace
}  // namespace gpu::hopper

tuning::Kernel<DscBlockArguments> dsc_block_hopper() {
  using namespace gpu::hopper;
  return {.name = kName, .unsupported = unsupported, .configs = configs, .plan = plan};
}

tuning::Config dsc_block_hopper_prior(const DscBlockArguments& block) {
  const gpu::hopper::Pass pass = gpu::hopper::cheapest(block);
  return pass.instance != nullptr ? gpu::hopper::config_of(pass) : gpu::hopper::configs(block).at(0);
}

std::optional<tuning::Config> dsc_block_hopper_suiting(const DscBlockArguments& block) {
  // Measured (docs/log/performance_gpu.md): otherwise two kernels are as fast, or faster.
  constexpr int kNarrow = 32;
  if (block.window.stride[0] == 1 && block.x.sizes[1] <= kNarrow) return {};
  const gpu::hopper::Pass pass = gpu::hopper::cheapest(block);
  if (pass.instance == nullptr || 4 * pass.p.tiles < 3 * gpu::multiprocessors()) return {};
  return gpu::hopper::config_of(pass);
}

}  // namespace fusedsc
#endif
