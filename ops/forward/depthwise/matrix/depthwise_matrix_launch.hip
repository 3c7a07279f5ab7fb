#include "fusedsc/common/divide_up.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/depthwise/depthwise_kernels.h"
#include "fusedsc/forward/depthwise/matrix/depthwise_matrix_kernel.h"
#include "fusedsc/forward/depthwise/rows/depthwise_plan.h"

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

/// 3x3 windows are too little work to pay for two passes through shared memory.
const Instance kInstances[] = {
    instance<Float16, 5>(DataType::float16),
    instance<BFloat16, 5>(DataType::bfloat16),
};

const Instance* instance_for(const DepthwiseArguments& a) {
  for (const Instance& instance : kInstances) {
    if (instance.dtype == a.x.dtype && instance.kernel == a.window.kernel[0]) return &instance;
  }
  return nullptr;
}

std::int64_t tiles_of(const DepthwiseArguments& a) { return divide_up(a.y.sizes[3], DepthwiseMatrixTile::kColumns); }

std::int64_t lines_of(const DepthwiseArguments& a, std::int64_t rows) {
  return a.y.sizes[0] * divide_up(a.y.sizes[2], rows) * tiles_of(a);
}

std::int64_t blocks_of(const DepthwiseArguments& a, std::int64_t rows) {
  return divide_up(lines_of(a, rows), DepthwiseMatrixTile::kLines) *
         divide_up(a.y.sizes[1], DepthwiseMatrixTile::kChannels);
}

bool fits(const DepthwiseArguments& a, std::int64_t rows) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  return lines_of(a, rows) <= kMost && blocks_of(a, rows) <= kMost;
}

/// Calls visit(rows) with every height of strips that there may be, the tallest first.
template <class Visit>
void for_each_height(const DepthwiseArguments& a, const Visit& visit) {
  const std::int64_t height = a.y.sizes[2];
  for (std::int64_t strips = 1; strips <= divide_up(height, 4); ++strips) {
    const std::int64_t rows = divide_up(height, strips);
    if (divide_up(height, rows) == strips) visit(rows);
  }
}

std::string unsupported(const DepthwiseArguments& a) {
  using Pair = std::array<std::int64_t, 2>;
  const std::string elsewhere = why_not_on_gpu(a);
  if (!elsewhere.empty()) return elsewhere;
  if (!kWaveProducts) return "this build's GPUs have no products of matrices for it";
  if (a.prologue || a.epilogue || a.statistics) return "nothing can be fused with it";
  if (instance_for(a) == nullptr || a.window.kernel[1] != a.window.kernel[0] || a.window.stride != Pair{1, 1} ||
      a.window.dilation != Pair{1, 1} || a.x.sizes[1] != a.y.sizes[1]) {
    return "it is for windows of 5 x 5 of 16 bits, of stride 1, not dilated, without a channel multiplier";
  }
  if (a.y.elements() == 0) return "there is nothing to compute";
  if (!channels_join(8, {a.x, a.y})) return "8 neighbouring channels of x or y cannot be loaded at once";
  return fits(a, a.y.sizes[2]) ? "" : "there are too many images";
}

Configs configs(const DepthwiseArguments& a) {
  Configs list;
  for_each_height(a, [&](std::int64_t rows) {
    if (fits(a, rows)) list.push_back({{Knob::rows, rows}});
  });
  return list;
}

Plan<DepthwiseArguments> plan(const DepthwiseArguments& a, const Config& config, int /*threads*/) {
  const Instance& instance = *instance_for(a);
  const std::int64_t rows = config[Knob::rows];
  if (rows < 1 || rows > a.y.sizes[2] || !fits(a, rows)) {
    throw Unsupported("depthwise_conv2d: gpu_matrix: there are no strips of " + std::to_string(rows) + " rows");
  }
  DepthwiseMatrixParameters planned;
  planned.shape = depthwise_shape(a.x.sizes, a.y.sizes, a.window);
  planned.channel_blocks = Divisor(static_cast<std::uint32_t>(divide_up(a.y.sizes[1], DepthwiseMatrixTile::kChannels)));
  planned.column_tiles = Divisor(static_cast<std::uint32_t>(tiles_of(a)));
  planned.strips = Divisor(static_cast<std::uint32_t>(divide_up(a.y.sizes[2], rows)));
  planned.lines = static_cast<std::uint32_t>(lines_of(a, rows));
  planned.strip_rows = static_cast<int>(rows);
  return {
      0, [planned, &instance, blocks = blocks_of(a, rows)](const DepthwiseArguments& like, const Execution& execution) {
        DepthwiseMatrixParameters p = planned;
        p.x = like.x;
        p.weight = like.weight;
        p.bias = like.bias.data;
        p.y = like.y;
        launch_following("depthwise_conv2d", instance.run, blocks, DepthwiseMatrixTile::kThreads, execution.stream, p,
                         instance.memory);
      }};
}

}  // namespace

Kernel<DepthwiseArguments> depthwise_matrix() { return {"gpu_matrix", unsupported, configs, plan}; }

bool suits_depthwise_matrix(const DepthwiseArguments& a) {
  // Lines are as long as a tile, and a block has 16 of them.
  const std::int64_t width = a.y.sizes[3], tiles = tiles_of(a);
  return 4 * width >= 3 * tiles * DepthwiseMatrixTile::kColumns && lines_of(a, 8) >= DepthwiseMatrixTile::kLines;
}

Config depthwise_matrix_prior(const DepthwiseArguments& a) {
  const Instance& instance = *instance_for(a);
  const int resident = resident_blocks(instance.run, DepthwiseMatrixTile::kThreads, instance.memory);
  // Of a strip, in rows: those that are loaded twice, and latency.
  const std::int64_t start = instance.kernel - 1 + 4;
  std::int64_t best = a.y.sizes[2], cost = std::numeric_limits<std::int64_t>::max();
  for_each_height(a, [&](std::int64_t rows) {
    // Blocks that share a multiprocessor hide some of each other's latency, which is about 1.5 times what they issue.
    if (!fits(a, rows)) return;
    const std::int64_t blocks = blocks_of(a, rows);
    const std::int64_t trial =
        (2 * divide_up(blocks, multiprocessors()) + 3 * divide_up(blocks, resident)) * (rows + start);
    if (trial >= cost) return;
    cost = trial;
    best = rows;
  });
  return {{Knob::rows, best}};
}

}  // namespace fusedsc::gpu
