#include "fusedsc/forward/depthwise_matrix_launch.h"

#include "fusedsc/common/divide_up.h"
#include "fusedsc/common/gpu/depthwise_plan.h"
#include "fusedsc/common/gpu/following_kernel.h"
#include "fusedsc/forward/depthwise_matrix_kernel.h"

namespace fusedsc::gpu {
namespace {

constexpr int kAhead = 3;   // rows
constexpr int kBlocks = 2;  // that shall fit a multiprocessor

template <class T, int kKernel>
FUSEDSC_KERNEL(DepthwiseMatrixTile::kThreads, kBlocks)
depthwise_matrix_kernel(DepthwiseMatrixParameters parameters) {
  wait_for_previous_kernel();
  DepthwiseMatrixRows<T, kKernel, kAhead>::run(parameters);
}

struct Instance {
  DataType dtype;
  int kernel;
  void (*run)(DepthwiseMatrixParameters);
  std::size_t memory;
};

template <class T, int kKernel>
constexpr Instance instance(DataType dtype) {
  Instance instance{dtype, kKernel, nullptr, DepthwiseMatrixRows<T, kKernel, kAhead>::kBytes};
  if constexpr (kWaveProducts) instance.run = depthwise_matrix_kernel<T, kKernel>;
  return instance;
}

/// 3x3 windows are too little work to pay for two passes through block memory.
const Instance kInstances[] = {
    instance<Float16, 5>(DataType::float16),
    instance<BFloat16, 5>(DataType::bfloat16),
};

const Instance* choose(const DepthwiseArguments& a) {
  using Pair = std::array<std::int64_t, 2>;
  if (!kWaveProducts || a.prologue || a.epilogue || a.statistics) return nullptr;
  if (a.window.stride != Pair{1, 1} || a.window.dilation != Pair{1, 1} || a.x.sizes[1] != a.y.sizes[1]) return nullptr;
  if (!channels_join(8, {a.x, a.y})) return nullptr;
  // Lines are as long as a tile, and a block has 16 of them.
  const std::int64_t width = a.y.sizes[3], tiles = divide_up(width, DepthwiseMatrixTile::kColumns);
  const bool is_filled = 4 * width >= 3 * tiles * DepthwiseMatrixTile::kColumns;
  if (!is_filled || a.y.sizes[0] * tiles * divide_up(a.y.sizes[2], 8) < DepthwiseMatrixTile::kLines) return nullptr;
  for (const Instance& instance : kInstances) {
    if (instance.dtype == a.x.dtype && a.window.kernel == Pair{instance.kernel, instance.kernel}) return &instance;
  }
  return nullptr;
}

/// The launch's parameters but for addresses; no lines where there are too many.
struct MatrixPass {
  const Instance& instance;
  DepthwiseMatrixParameters parameters;
  std::int64_t blocks = 0;

  MatrixPass(const DepthwiseArguments& a, const Instance& instance_) : instance(instance_) {
    constexpr int kLines = DepthwiseMatrixTile::kLines;
    const int resident = resident_blocks(instance.run, DepthwiseMatrixTile::kThreads, instance.memory);
    const std::int64_t channel_blocks = divide_up(a.y.sizes[1], DepthwiseMatrixTile::kChannels);
    const std::int64_t tiles = divide_up(a.y.sizes[3], DepthwiseMatrixTile::kColumns), height = a.y.sizes[2];
    // Of a strip, in rows: those that are loaded twice, and latency.
    const std::int64_t start = instance.kernel - 1 + 4;
    std::int64_t rows = height, cost = std::numeric_limits<std::int64_t>::max();
    for (std::int64_t strips = 1; strips <= divide_up(height, 4); ++strips) {
      const std::int64_t trial_rows = divide_up(height, strips);
      const std::int64_t lines = a.y.sizes[0] * divide_up(height, trial_rows) * tiles;
      const std::int64_t trial_blocks = divide_up(lines, kLines) * channel_blocks;
      // Blocks that share a multiprocessor hide some of each other's latency, which is about 1.5 times what they issue.
      const std::int64_t each = divide_up(trial_blocks, multiprocessors());
      const std::int64_t rounds = divide_up(trial_blocks, resident);
      const std::int64_t trial_cost = (2 * each + 3 * rounds) * (trial_rows + start);
      if (trial_cost >= cost) continue;
      cost = trial_cost;
      rows = trial_rows;
      blocks = trial_blocks;
    }
    const std::int64_t strips = divide_up(height, rows), lines = a.y.sizes[0] * strips * tiles;
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    if (lines > kMost || blocks > kMost) return;
    parameters.shape = depthwise_shape(a.x.sizes, a.y.sizes, a.window);
    parameters.channel_blocks = Divisor(static_cast<std::uint32_t>(channel_blocks));
    parameters.column_tiles = Divisor(static_cast<std::uint32_t>(tiles));
    parameters.strips = Divisor(static_cast<std::uint32_t>(strips));
    parameters.lines = static_cast<std::uint32_t>(lines);
    parameters.strip_rows = static_cast<int>(rows);
  }

  void run(const DepthwiseArguments& a, const Execution& execution) const {
    DepthwiseMatrixParameters p = parameters;
    p.x = a.x;
    p.weight = a.weight;
    p.bias = a.bias.data;
    p.y = a.y;
    launch_following("depthwise_conv2d", instance.run, blocks, DepthwiseMatrixTile::kThreads, execution.stream, p,
                     instance.memory);
  }
};

}  // namespace

std::optional<Plan<DepthwiseArguments>> plan_depthwise_matrix(const DepthwiseArguments& a) {
  const Instance* instance = choose(a);
  if (instance == nullptr) return {};
  const MatrixPass pass(a, *instance);
  if (pass.parameters.lines == 0) return {};
  return Plan<DepthwiseArguments>{
      0, [pass](const DepthwiseArguments& like, const Execution& execution) { pass.run(like, execution); }};
}

}  // namespace fusedsc::gpu
