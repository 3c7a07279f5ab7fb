#ifdef FUSEDSC_HOPPER
#include <limits>
#include <optional>

#include "fusedsc/backward/sliding_channel/sliding_channel_kernels.h"
#include "fusedsc/backward/sliding_channel/sliding_weight_kernel.h"
#include "fusedsc/common/divide_up.h"
#include "fusedsc/common/gpu/hopper/hopper.h"
#include "fusedsc/forward/sliding_channel/product/sliding_product_launch.h"

namespace fusedsc {
namespace gpu {
namespace {

constexpr const char* kName = "sliding_channel_conv2d_backward";

constexpr int kWarps = 8, kThreads = 32 * kWarps;

template <int kStages>
FUSEDSC_KERNEL(kThreads, 2)
weight_kernel(SlidingWeightParameters p) {
  SlidingWeightProduct<kWarps, kStages>::run(p);
}

FUSEDSC_KERNEL(hopper::kWeightSumThreads, 4)
sum_kernel(hopper::WeightSumParameters<SlidingTiles> p) { hopper::sum_weight_partials<float>(p); }

struct Instance {
  using Kernel = void (*)(SlidingWeightParameters);
  using Bytes = int (*)(const SlidingTiles& tiles, int slices);

  int stages;
  Kernel kernel;
  Bytes memory;
};

template <int kStages>
constexpr Instance instance() {
  return {kStages, weight_kernel<kStages>, SlidingWeightProduct<kWarps, kStages>::memory_bytes};
}

const Instance kWeightInstances[] = {instance<3>(), instance<2>()};

/// How the weight's gradient is cut.
struct WeightPlan {
  const Instance* instance = nullptr;
  SlidingTiles tiles;
  int slices = 1, splits = 1;
  double cost = std::numeric_limits<double>::infinity();
};

/// In microseconds; fitted to the times of the likeliest cuts on DSXplore's layers on an H200.
double cost_of(const WeightPlan& plan, const PlanePieces& pieces, int size) {
  constexpr double kStart = 4, kLatency = 1.93;  // of copies: what stages hide
  constexpr double kCopied = 29.2e3, kProducts = 636e3, kMemory = 3.09e6, kPartials = 3.5e6;  // per microsecond
  const SlidingTiles& tiles = plan.tiles;
  const double beside = std::max(1.0, static_cast<double>(tiles.groups) * plan.splits / size);
  const double rows = tiles.block_rows * SlidingTiles::kSize + tiles.most_eights() * 8;
  const double steps = static_cast<double>(divide_up(divide_up(pieces.all, kGroupPieces * plan.slices), plan.splits));
  const double step =
      std::max({beside * plan.slices * rows * kGroupBytes / kCopied, kLatency / (plan.instance->stages - 1),
                beside * plan.slices * tiles.tiles() * 32 * 32 * 32 / kProducts});
  const double bytes = 16.0 * (tiles.outputs + tiles.channels) * pieces.all;
  return kStart + std::max(steps * step + kLatency, bytes / kMemory) +
         plan.splits * static_cast<double>(tiles.fours()) * 16 / kPartials;
}

WeightPlan plan_weight(const WindowLines& lines, const PlanePieces& pieces) {
  WeightPlan best;
  const int size = multiprocessors();
  for (const bool rows_are_channels : {false, true}) {
    const SlidingBands bands(lines, rows_are_channels);
    const int slots = SlidingTiles(bands, 1, 1).slots(), all_rows = bands.rows() / SlidingTiles::kSize;
    for (int block_rows = 1; block_rows <= all_rows; block_rows *= 2) {
      for (int block_slots = 1; block_slots <= slots && block_rows * block_slots <= kWarps; ++block_slots) {
        const SlidingTiles tiles(bands, block_rows, block_slots);
        for (const Instance& instance : kWeightInstances) {
          int slices = 1;
          while (slices * 2 * tiles.tiles() <= kWarps) slices *= 2;
          const int memory = instance.memory(tiles, slices);
          if (memory > hopper::kMemoryLimit) continue;
          const std::int64_t steps = divide_up(pieces.all, kGroupPieces * slices);
          const int resident = resident_blocks(instance.kernel, kThreads, static_cast<std::size_t>(memory));
          for (int beside = 1; beside <= 2 && beside * size <= resident; ++beside) {
            const std::int64_t splits = std::clamp<std::int64_t>(beside * size / tiles.groups, 1, steps);
            WeightPlan plan{&instance, tiles, slices, static_cast<int>(splits)};
            plan.cost = cost_of(plan, pieces, size);
            if (plan.cost < best.cost) best = plan;
          }
        }
      }
    }
  }
  return best;
}

/// The weight's gradient.
class WeightPass {
 public:
  WeightPass(const WindowLines& lines, const SlidingChannelBackwardArguments& a, Arena& arena) {
    p_.pieces = PlanePieces(a.x.sizes[0], a.x.sizes[2] * a.x.sizes[3]);
    const WeightPlan plan = plan_weight(lines, p_.pieces);
    instance_ = plan.instance;
    p_.tiles = plan.tiles;
    p_.slices = plan.slices;
    p_.splits = plan.splits;
    p_.steps = static_cast<int>(divide_up(p_.pieces.all, kGroupPieces * p_.slices));
    p_.stage_bytes = SlidingWeightProduct<kWarps, 2>::stage_bytes(p_.tiles, p_.slices);
    const PlanesOfImages x{static_cast<const float*>(a.x.data), a.x.strides[0]},
        grad_y{static_cast<const float*>(a.grad_y.data), a.grad_y.strides[0]};
    p_.rows = p_.tiles.bands.rows_are_channels ? x : grad_y;
    p_.depth = p_.tiles.bands.rows_are_channels ? grad_y : x;
    p_.tiles.weight = static_cast<float*>(a.grad_weight.data);
    p_.tiles.filter = a.grad_weight.strides[0];
    p_.tiles.channel = a.grad_weight.strides[1];
    p_.tiles.partials = arena.take<hopper::Four>(std::int64_t{p_.splits} * p_.tiles.fours());
  }

  /// `is_behind_own`: a kernel of this operator that waits for all before it.
  void run(void* stream, bool is_behind_own) const {
    const std::int64_t blocks = std::int64_t{p_.tiles.groups} * p_.splits;
    const auto memory = static_cast<std::size_t>(instance_->memory(p_.tiles, p_.slices));
    if (is_behind_own) launch_following(kName, instance_->kernel, blocks, kThreads, stream, p_, memory);
    else launch(kName, instance_->kernel, blocks, kThreads, memory, stream, p_);
    const hopper::WeightSumParameters<SlidingTiles> sum(p_.tiles, p_.splits);
    launch_following(kName, sum_kernel, sum.blocks(), hopper::kWeightSumThreads, stream, sum, hopper::kWeightSumBytes);
  }

 private:
  const Instance* instance_ = nullptr;
  SlidingWeightParameters p_;
};

struct Passes {
  Arena arena;
  std::optional<SlidingProductPass> input;
  std::optional<WeightPass> weight;

  Passes(const SlidingChannelBackwardArguments& a, void* workspace) : arena(workspace) {
    const WindowLines lines(sliding_channels_of(a), a.weight.sizes[0]);
    if (a.grad_x) input.emplace(SlidingBands(lines, true), a.grad_y, a.weight, a.grad_x, arena);
    if (a.grad_weight) weight.emplace(lines, a, arena);
  }

  void run(void* stream) const {
    if (input) input->lay_out(kName, stream);
    if (weight) weight->run(stream, input.has_value());
    if (input) input->multiply(kName, stream);
  }
};

std::string why_not(const SlidingChannelBackwardArguments& a) {
  if (a.prologue || a.gradient_prologue || a.sums || a.grad_add || a.grad_bias)
    return "there is a bias, a prologue or an epilogue";
  const ConstTensorView x = a.x, grad_y = a.grad_y;
  std::string reason = why_not_sliding_planes(x, grad_y, sliding_channels_of(a), a.allow_tf32);
  if (!reason.empty()) return reason;
  if (a.grad_x) reason = why_not_sliding_planes(a.grad_x, grad_y, sliding_channels_of(a), a.allow_tf32);
  if (!reason.empty()) return reason;
  const WindowLines lines(sliding_channels_of(a), a.weight.sizes[0]);
  const PlanePieces pieces(a.x.sizes[0], a.x.sizes[2] * a.x.sizes[3]);
  return plan_weight(lines, pieces).instance != nullptr ? "" : "no tile of the weight's gradient fits shared memory";
}

}  // namespace
}  // namespace gpu

Implementation<SlidingChannelBackwardArguments> sliding_channel_backward_tf32_planes() {
  return {.name = "hopper_tf32_planes",
          .why_not = gpu::why_not,
          .workspace_bytes = [](const SlidingChannelBackwardArguments& a,
                                int) { return gpu::Passes(a, nullptr).arena.used(); },
          .run = [](const SlidingChannelBackwardArguments& a,
                    const Execution& execution) { gpu::Passes(a, execution.workspace).run(execution.stream); }};
}

}  // namespace fusedsc
#endif
