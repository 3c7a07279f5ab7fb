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
#include "fusedsc/fused/dsc_block/hopper/dsc_block_hopper_narrow_kernel.h"

namespace fusedsc {
namespace gpu::hopper {
namespace {

constexpr const char* kName = "gpu_hopper_narrow";

/// A kernel that was compiled, and what for.
struct Instance {
  DataType dtype;
  int stride, rows, outputs;  ///< rows: of a warp; outputs: at most
  int warps;                  ///< that compute, at most
  void (*run)(DscTilesParameters);
  int (*memory_bytes)(const DscTilesParameters&);
};

template <class T, int kStride, int kRows, int kOutputs, int kWarps>
void append(std::vector<Instance>& to, DataType dtype) {
  using Tiles = DscTiles<T, kStride, kRows, kOutputs>;
  to.push_back({dtype, kStride, kRows, kOutputs, kWarps, hopper_kernel<Tiles, (kWarps + 1) * 32>, Tiles::memory_bytes});
}

template <class T>
void append_all(std::vector<Instance>& to, DataType dtype) {
  // Rows, outputs, warps.
  append<T, 1, 4, 16, 11>(to, dtype);
  append<T, 1, 4, 32, 11>(to, dtype);
  append<T, 1, 2, 32, 15>(to, dtype);
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
  DscTilesParameters p;
  std::int64_t blocks = 0;
  std::size_t memory = 0;
  double cost = std::numeric_limits<double>::infinity();

  bool fits() const { return memory > 0; }
  std::int64_t threads() const { return (p.warps() + 1) * 32; }
};

/// In cycles of a multiprocessor; estimates, of which only the order matters.
double cost_of(const Pass& pass, int stride) {
  constexpr double kBytes = 16, kLeast = 300;  // from memory per cycle; what 8 channels of a warp take, if it is alone
  const DscTilesParameters& p = pass.p;
  const int rows = pass.instance->rows;
  const double instructions = 45 + rows * (26 + pass.instance->outputs / 8) + 4 * ((rows - 1) * stride + 3);
  const double runs = p.channels / 8.0;
  const double columns = std::min((p.strips * 16 - 1) * stride + 3, p.input_width);
  const double load = std::min(p.input_rows, p.input_height) * columns * p.channels * 2 / kBytes;
  const double compute = runs * std::max(instructions * p.warps() / 3, kLeast);
  return static_cast<double>(divide_up(p.tiles, multiprocessors())) * std::max(load, compute);
}

Pass cut(const Instance& instance, const DscTilesParameters& problem, std::int64_t images, int strips, int row_groups) {
  constexpr int kMostStages = 4;
  Pass pass;
  pass.instance = &instance;
  DscTilesParameters& p = pass.p;
  p = problem;
  p.strips = strips;
  p.row_groups = row_groups;
  if (p.warps() > instance.warps) return pass;
  const int columns = std::min(strips * 16, p.output_width), rows = row_groups * instance.rows;
  p.pitch = static_cast<int>(divide_up((columns - 1) * instance.stride + 3, 8) * 8);
  p.input_rows = (rows - 1) * instance.stride + 3;
  p.box_bytes = p.channels <= 32 ? 64 : 128;
  p.boxes = static_cast<int>(divide_up(p.channels * 2, p.box_bytes));
  if (p.pitch > 256 || p.input_rows > 256) return pass;
  p.stages = kMostStages;
  while (p.stages > 1 && instance.memory_bytes(p) > kMemoryLimit) --p.stages;
  if (p.stages < 2) return pass;
  const std::int64_t column_tiles = divide_up(p.output_width, strips * 16),
                     row_tiles = divide_up(p.output_height, rows);
  const std::int64_t tiles = images * row_tiles * column_tiles;
  if (tiles > std::numeric_limits<std::int32_t>::max()) return pass;
  p.tiles = static_cast<int>(tiles);
  p.by_row_tiles = Divisor(static_cast<std::uint32_t>(row_tiles));
  p.by_column_tiles = Divisor(static_cast<std::uint32_t>(column_tiles));
  pass.memory = static_cast<std::size_t>(instance.memory_bytes(p));
  pass.cost = cost_of(pass, instance.stride);
  return pass;
}

/// Whether a kernel is for the block's type and stride, and has room for its outputs.
bool is_for(const Instance& instance, const DscBlockArguments& block) {
  return instance.dtype == block.x.dtype && instance.stride == block.window.stride[0] &&
         instance.outputs >= block.y.sizes[1];
}

/// A tile's strips of 16 columns and groups of rows, at most.
int most_strips(const Instance& instance, const DscBlockArguments& block) {
  return std::min(static_cast<int>(divide_up(block.y.sizes[3], 16)), instance.warps);
}
int most_groups(const Instance& instance, const DscBlockArguments& block) {
  return std::min(static_cast<int>(divide_up(block.y.sizes[2], instance.rows)), instance.warps);
}

/// visit(a pass that fits) until it is true, and whether it was: of every kernel that has room for the outputs, and
/// tiles of any width and height.
template <class Visit>
bool any_pass(const DscBlockArguments& block, const Visit& visit) {
  DscTilesParameters problem;
  problem.set_sizes(block);
  for (const Instance& instance : instances()) {
    if (!is_for(instance, block)) continue;
    for (int strips = 1; strips <= most_strips(instance, block); ++strips) {
      for (int groups = 1; groups <= most_groups(instance, block); ++groups) {
        const Pass pass = cut(instance, problem, block.x.sizes[0], strips, groups);
        if (pass.fits() && visit(pass)) return true;
      }
    }
  }
  return false;
}

/// Of the kernels with the fewest outputs.
Pass cheapest(const DscBlockArguments& block) {
  Pass best;
  any_pass(block, [&](const Pass& pass) {
    const bool is_larger = best.instance != nullptr && best.instance->outputs < pass.instance->outputs;
    if (!is_larger && pass.cost < best.cost) best = pass;
    return false;
  });
  return best;
}

using tuning::Config;
using tuning::Knob;

Config config_of(const Pass& pass) {
  return {{Knob::channels, pass.instance->outputs},
          {Knob::rows, std::int64_t{pass.p.row_groups} * pass.instance->rows},
          {Knob::columns, std::int64_t{16} * pass.p.strips},
          {Knob::groups, pass.p.row_groups}};
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
  DscTilesParameters problem;
  problem.set_sizes(block);
  const int strips = config[Knob::columns] / 16, groups = config[Knob::groups];
  Pass found;
  for (const Instance& instance : instances()) {
    if (!is_for(instance, block) || strips < 1 || strips > most_strips(instance, block)) continue;
    if (groups < 1 || groups > most_groups(instance, block)) continue;
    const Pass pass = cut(instance, problem, block.x.sizes[0], strips, groups);
    if (pass.fits() && config_of(pass) == config) found = pass;
  }
  if (!found.fits()) {
    throw Unsupported(std::string("dsc_block: ") + kName + ": there is no kernel with " + tuning::printed(config) +
                      ", or its tiles do not fit shared memory");
  }
  found.blocks = std::min<std::int64_t>(
      found.p.tiles, resident_blocks(found.instance->run, static_cast<int>(found.threads()), found.memory));
  return found;
}

void run(const Pass& pass, const DscBlockArguments& block, const Execution& execution) {
  DscTilesParameters p = pass.p;
  p.x = map_of_images(block.x, p.box_bytes / 2, p.pitch, p.input_rows, 1, true);
  p.set_tensors(block);
  p.pw_weight = block.pw_weight;
  p.residual = block.epilogue.residual;
  launch_following("dsc_block", pass.instance->run, pass.blocks, static_cast<int>(pass.threads()), execution.stream, p,
                   pass.memory);
}

std::string unsupported(const DscBlockArguments& block) {
  const std::string reason = why_not_one_kernel(block);
  if (!reason.empty()) return reason;
  const bool any = any_pass(block, [](const Pass&) { return true; });
  return any ? "" : "it is for 32 outputs at most, at stride 1";
}

Plan<DscBlockArguments> plan(const DscBlockArguments& block, const Config& config, int /*threads*/) {
  return {0, [pass = pass_of(block, config)](const DscBlockArguments& like, const Execution& execution) {
            run(pass, like, execution);
          }};
}

}  // namespace
}  // namespace gpu::hopper

tuning::Kernel<DscBlockArguments> dsc_block_hopper_narrow() {
  using namespace gpu::hopper;
  return {.name = kName, .unsupported = unsupported, .configs = configs, .plan = plan};
}

bool suits_dsc_block_hopper_narrow(const DscBlockArguments& block) {
  // Measured (docs/log/performance_gpu.md): otherwise another kernel, or two, are as fast, or faster.
  constexpr int kMostChannels = 32, kLeastWidth = 28;
  const Sizes& y = block.y.sizes;
  return block.x.sizes[1] <= kMostChannels && y[3] >= kLeastWidth &&
         y[0] * block.x.sizes[1] * y[2] * y[3] >= std::int64_t{65536} * gpu::multiprocessors();
}

tuning::Config dsc_block_hopper_narrow_prior(const DscBlockArguments& block) {
  return gpu::hopper::config_of(gpu::hopper::cheapest(block));
}

}  // namespace fusedsc
#endif
