#ifdef FUSEDSC_HOPPER
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "fusedsc/backward/pointwise/hopper_weight/pointwise_hopper_weight.h"
#include "fusedsc/backward/pointwise/hopper_weight/pointwise_hopper_weight_kernel.h"
#include "fusedsc/backward/pointwise/hopper_weight/pointwise_hopper_weight_pass.h"
#include "fusedsc/common/divide_up.h"
#include "fusedsc/common/gpu/hopper/hopper_cluster.h"
#include "fusedsc/common/gpu/hopper/hopper_kernel.h"
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_plan.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_launches.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr const char* kName = "pointwise_conv2d_backward";

template <class T, PointwiseWeightKind kKind, int kRowBlocks, int kColumns, int kSlices, int kDepth>
constexpr PointwiseWeightInstance instance(DataType dtype) {
  using Block = PointwiseWeightBlock<T, kKind, kRowBlocks, kColumns, kSlices, kDepth>;
  constexpr bool kIsWide = Block::kHasCopyWarp, kIsPlain = kKind == PointwiseWeightKind::plain;
  return {dtype,
          kKind,
          Block::kRows,
          kColumns,
          kSlices,
          kDepth,
          Block::kThreads,
          hopper_kernel<PointwiseWeightProduct<Block>>,
          Block::memory_bytes,
          kIsWide ? kRowBlocks * kColumns <= 128 : kRowBlocks == 1 && kColumns == 32 && kIsPlain,
          !kIsWide || kRowBlocks > 1};
}

#define FUSEDSC_BOTH(kind, rows, columns, slices, depth)                                         \
  instance<Float16, PointwiseWeightKind::kind, rows, columns, slices, depth>(DataType::float16), \
      instance<BFloat16, PointwiseWeightKind::kind, rows, columns, slices, depth>(DataType::bfloat16)

const PointwiseWeightInstance kInstances[] = {
    // blocks of 64 outputs, channels; warpgroups with positions of their own, positions that come at a time
    FUSEDSC_BOTH(plain, 1, 32, 4, 64),
    FUSEDSC_BOTH(plain, 1, 64, 4, 64),
    FUSEDSC_BOTH(plain, 1, 128, 4, 64),
    FUSEDSC_BOTH(plain, 1, 192, 3, 32),
    FUSEDSC_BOTH(plain, 2, 32, 4, 64),
    FUSEDSC_BOTH(plain, 2, 64, 4, 64),
    FUSEDSC_BOTH(plain, 3, 32, 4, 32),
    FUSEDSC_BOTH(fused, 1, 32, 4, 64),
    FUSEDSC_BOTH(fused, 1, 64, 4, 64),
    FUSEDSC_BOTH(fused, 1, 128, 2, 64),
    FUSEDSC_BOTH(fused, 1, 192, 2, 32),
    FUSEDSC_BOTH(fused, 2, 32, 4, 32),
    FUSEDSC_BOTH(fused, 2, 64, 2, 64),
    FUSEDSC_BOTH(fused, 3, 32, 3, 32),
    FUSEDSC_BOTH(fused, 3, 64, 2, 32),
    FUSEDSC_BOTH(bias, 1, 64, 4, 64),
    FUSEDSC_BOTH(bias, 1, 128, 2, 64),
    // groups that share positions
    FUSEDSC_BOTH(plain, 2, 64, 1, 64),
    FUSEDSC_BOTH(plain, 2, 96, 1, 64),
    FUSEDSC_BOTH(plain, 3, 64, 1, 64),
    FUSEDSC_BOTH(plain, 1, 32, 1, 64),
    FUSEDSC_BOTH(plain, 1, 64, 1, 64),
    FUSEDSC_BOTH(plain, 1, 96, 1, 64),
};

/// How the positions of a tile are cut.
struct Cut {
  int cluster = 1, splits = 1, stages = 0;
  double cost = std::numeric_limits<double>::infinity();
};

/// Fitted to the times of all tiles and cuts on the layers of mobile networks on an H200, in microseconds.
struct CostModel {
  double start, step;                 ///< a kernel; each time that positions come
  double bytes, changed_bytes, macs;  ///< a multiprocessor's, per microsecond: copied; of x, changed; multiplied
  double sums;                        ///< of a tile, put together by a block, per microsecond
  double cluster, cluster_sums;       ///< a cluster's end; of a tile, times blocks, per microsecond
  double second, partial_bytes;       ///< the second kernel; what goes through memory for it, per microsecond
  double all;         ///< where all multiprocessors have blocks, and nothing else can start: of what follows
  double memory = 0;  ///< bytes of x and grad_y, per microsecond, or 0: loads hide it
};
constexpr double kNothing = 1e12;  ///< per microsecond: costs nothing
constexpr CostModel kPlainCost{0.0526, 0.0527, 191.5e3, kNothing, 13.26e6, 20530,
                               1.234,  23630,  0.2442,  902.3e3,  3.545,   4.312e6};
constexpr CostModel kWideCost{0.108,  0.0436,  297.2e3, kNothing, kNothing, 5144,
                              0.8707, 185.7e3, 0.0167,  58e6,     3.692,    5.6e6};
/// Where wide tiles are not worth their sums: of a small weight.
constexpr CostModel kFewSumsCost{0.836, 0.0258, 118e3, 1780e3, 43.3e6, 5200, 1.29, 12.1e3, 0.703, 0.957e6, 2.31};
constexpr int kManyPositions = 2048, kSmallWeight = 10'000;
constexpr CostModel kFusedCost{3.68, 0.248, 110e3, 35.7e3, 66e6, 9460, 0.98, 12.9e3, 1.64, 1.88e6, 0};

/// Whether groups share positions, so that a tile may be wider than a group's sums.
bool is_wide(const PointwiseWeightInstance& instance) { return instance.slices == 1; }

bool has_few_sums(const PointwiseWeightParameters& p) { return p.tiles.outputs * p.tiles.channels < kSmallWeight; }

const CostModel& model_of(const PointwiseWeightInstance& instance, const PointwiseWeightParameters& p) {
  if (instance.kind != PointwiseWeightKind::plain) return kFusedCost;
  if (is_wide(instance)) return kWideCost;
  return has_few_sums(p) ? kFewSumsCost : kPlainCost;
}

/// Of little work, where latencies and second kernels are most of the time. Fitted likewise, to batches 1 to 64.
struct LatencyCost {
  double start, step;            ///< a kernel; each time that positions come
  double bytes;                  ///< thousands, that go to and from a multiprocessor's shared memory, per microsecond
  double end;                    ///< of 64x64 sums, from the last product on
  double cluster, cluster_sums;  ///< a cluster's end; of 64x64 sums of each of its blocks
  double second, doubling, partial_bytes;  ///< the second kernel; each doubling of splits; millions, per microsecond
  double memory, cache;  ///< millions of bytes of the tensors, and copied from the cache, per microsecond
  double used;           ///< where all multiprocessors have blocks, and nothing else can start
};
constexpr LatencyCost kLatencyCost{0.8963,  0.12,   193.3,  1.41,  1.796, 0.007825,
                                   0.02898, 0.1323, 0.8822, 7.808, 6.656, 0.06709};
constexpr LatencyCost kLatencyWideCost{1.116, 0.1268,  219,   0.2196, 1.307, 0.0008104,
                                       1.221, 0.08921, 3.038, 3.092,  11.86, 0.6134};

bool is_little(const PointwiseWeightParameters& p) {
  constexpr int kMorePositions = 7000, kLargeWeight = 80'000;
  return p.pixels < kManyPositions || (p.pixels < kMorePositions && p.tiles.outputs * p.tiles.channels < kLargeWeight);
}

/// Of blocks that go through few positions: how many a multiprocessor has beside each other.
int beside(const PointwiseWeightInstance& instance, int stages) {
  constexpr int kMemory = 227 * 1024, kReserve = 1024, kThreads = 1024;  // at the 64 registers that small tiles take
  return std::max(1, std::min(kMemory / (instance.memory(stages) + kReserve), kThreads / instance.threads));
}

double cost_of(const PointwiseWeightInstance& instance, const PointwiseWeightParameters& p, std::int64_t tiles,
               std::int64_t steps, int cluster, std::int64_t splits, int size) {
  const bool plain = instance.kind == PointwiseWeightKind::plain;
  const CostModel& model = model_of(instance, p);
  const int parts = plain ? 1 : 2;
  const double rounds = static_cast<double>(divide_up(tiles * cluster * splits, size));
  const double block_steps = static_cast<double>(divide_up(steps, cluster * splits));
  const double pixels = block_steps * instance.depth * instance.slices, area = instance.rows * instance.columns;
  const double loop =
      block_steps * model.step + pixels * ((instance.rows * parts + instance.columns) * 2 / model.bytes +
                                           instance.columns * 2 / model.changed_bytes + area * parts / model.macs);
  const double used = std::min(1.0, static_cast<double>(tiles * cluster * splits) / size);
  double cost = model.start + rounds * (loop + area / model.sums) + used * model.all;
  if (model.memory > 0) cost += p.pixels * (p.tiles.outputs + p.tiles.channels) * 2.0 / model.memory;
  if (cluster > 1) cost += model.cluster + area * cluster / model.cluster_sums;
  if (splits > 1) cost += model.second + static_cast<double>(tiles * splits) * area * 4 / model.partial_bytes;
  return cost;
}

double latency_bound_cost(const PointwiseWeightInstance& instance, const PointwiseWeightParameters& p,
                          std::int64_t tiles, std::int64_t steps, const Cut& cut, int size) {
  const LatencyCost& cost = is_wide(instance) ? kLatencyWideCost : kLatencyCost;
  const std::int64_t blocks = tiles * cut.cluster * cut.splits, room = beside(instance, cut.stages);
  const double rounds = static_cast<double>(divide_up(blocks, size * room)),
               together = static_cast<double>(std::min(room, divide_up(blocks, size))),
               block_steps = static_cast<double>(divide_up(steps, std::int64_t{cut.cluster} * cut.splits));
  const double area = instance.rows * instance.columns / 4096.0, positions = instance.slices * instance.depth;
  const double copied = positions * (instance.rows + instance.columns) * 2e-3;
  const double columns_at_once = is_wide(instance) ? instance.columns : 64;
  const double read = positions * instance.rows / 64 * (64 + columns_at_once) * 2e-3;
  const double loop = rounds * block_steps * std::max(cost.step, together * (copied + read) / cost.bytes);
  const double tensors = 2e-6 * p.pixels * (p.tiles.outputs + p.tiles.channels) / cost.memory,
               all_copied = 1e-3 * static_cast<double>(blocks) * block_steps * copied / cost.cache;
  double sum = cost.start +
               std::cbrt(loop * loop * loop + tensors * tensors * tensors + all_copied * all_copied * all_copied) +
               rounds * area * cost.end + std::min(1.0, static_cast<double>(blocks) / size) * cost.used;
  if (cut.cluster > 1) sum += cost.cluster + area * cut.cluster * cost.cluster_sums;
  if (cut.splits > 1) {
    sum += cost.second + std::log(cut.splits) / std::log(2.0) * cost.doubling +
           static_cast<double>(tiles * cut.splits) * area * 4096 * 4e-6 / cost.partial_bytes;
  }
  return sum;
}

constexpr int kClustersOfCuts[] = {1, 2, 4, 8};

std::int64_t tiles_of(const PointwiseWeightInstance& instance, const PointwiseWeightParameters& p) {
  return divide_up(p.tiles.outputs, instance.rows) * divide_up(p.tiles.channels, instance.columns);
}

std::int64_t steps_of(const PointwiseWeightInstance& instance, const PointwiseWeightParameters& p) {
  return divide_up(p.pixels, instance.depth * instance.slices);
}

/// The cuts that are worth a try: blocks for all multiprocessors, fewer, or twice as many.
template <class Visit>
void for_each_cut(const PointwiseWeightInstance& instance, const PointwiseWeightParameters& p, int size,
                  const Visit& visit) {
  const std::int64_t tiles = tiles_of(instance, p), steps = steps_of(instance, p);
  for (const int cluster : kClustersOfCuts) {
    const std::int64_t room = cluster > 1 ? room_for_clusters(size) : size;
    if (cluster > 1 && (cluster > steps || tiles * cluster > room)) break;
    const std::int64_t most = std::min(std::max<std::int64_t>(1, room / tiles / cluster), divide_up(steps, cluster));
    for (const std::int64_t splits : {std::int64_t{1}, (most + 2) / 4, (most + 1) / 2, most, 2 * most}) {
      if (splits < 1 || (splits > most && (cluster > 1 || splits > steps))) continue;
      const std::int64_t block_steps = divide_up(steps, cluster * splits);
      const int stages = most_stages(instance), few = static_cast<int>(std::min<std::int64_t>(stages, block_steps));
      visit(Cut{cluster, static_cast<int>(splits), stages});
      if (tiles * cluster * splits > size && few < stages) visit(Cut{cluster, static_cast<int>(splits), few});
    }
  }
}

/// Of little work: one tile's positions to a block, or to any number of them.
Cut few_cut(const PointwiseWeightInstance& instance, const PointwiseWeightParameters& p, int size) {
  Cut best;
  if (!instance.for_few) return best;
  const std::int64_t tiles = tiles_of(instance, p), steps = steps_of(instance, p);
  for_each_cut(instance, p, size, [&](Cut candidate) {
    const std::int64_t blocks = std::int64_t{candidate.cluster} * candidate.splits;  // of a tile
    // Blocks that are more than the multiprocessors have no more memory than they need.
    if (tiles * blocks > size) {
      candidate.stages = static_cast<int>(std::min<std::int64_t>(candidate.stages, divide_up(steps, blocks)));
    }
    candidate.cost = latency_bound_cost(instance, p, tiles, steps, candidate, size);
    if (candidate.cost < best.cost) best = candidate;
  });
  return best;
}

Cut cut(const PointwiseWeightInstance& instance, const PointwiseWeightParameters& p, int size) {
  if (instance.kind == PointwiseWeightKind::plain && is_little(p)) return few_cut(instance, p, size);
  Cut best;
  if (!instance.for_many) return best;
  best.stages = most_stages(instance);
  const std::int64_t tiles = tiles_of(instance, p), steps = steps_of(instance, p);
  if (is_wide(instance)) {  // in clusters of one size, as many of them as a GPU's parts have room for at once
    constexpr unsigned kCluster = 4;
    best.cluster = static_cast<int>(std::bit_floor(std::min(kCluster, static_cast<unsigned>(size))));
    best.splits =
        static_cast<int>(std::min(room_for_clusters(size) / (tiles * best.cluster), divide_up(steps, best.cluster)));
    if (best.splits > 0 && !has_few_sums(p)) {
      best.cost = cost_of(instance, p, tiles, steps, best.cluster, best.splits, size);
    }
    return best;
  }
  for (const int cluster : kClustersOfCuts) {
    const std::int64_t most = std::min(std::max<std::int64_t>(1, size / tiles / cluster), divide_up(steps, cluster));
    for (const std::int64_t splits : {std::int64_t{1}, (most + 1) / 2, most}) {
      if (splits > 1 && cluster > 2) continue;  // a GPU's parts have no room for so many large clusters
      const double cost = cost_of(instance, p, tiles, steps, cluster, splits, size);
      if (cost >= best.cost) continue;
      best = {cluster, static_cast<int>(splits), best.stages, cost};
    }
  }
  return best;
}

bool has_windows(const PointwiseBackwardArguments& a) { return a.windows.channels > 0; }

PointwiseWeightKind kind_of(const PointwiseBackwardArguments& a) {
  if (a.grad_bias) return PointwiseWeightKind::bias;
  return a.prologue || a.gradient_prologue ? PointwiseWeightKind::fused : PointwiseWeightKind::plain;
}

/// The problem, as far as a cut depends on it.
PointwiseWeightParameters problem_of(const PointwiseBackwardArguments& a) {
  PointwiseWeightParameters p;
  p.pixels = static_cast<int>(a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3]);
  p.tiles.outputs = static_cast<int>(a.grad_y.sizes[1]);
  p.tiles.channels = static_cast<int>(a.x.sizes[1]);
  return p;
}

/// Calls with each kernel that was compiled for the problem.
template <class Visit>
void for_each_instance(const PointwiseBackwardArguments& a, const Visit& visit) {
  for (const PointwiseWeightInstance& instance : kInstances) {
    if (instance.dtype == a.x.dtype && instance.kind == kind_of(a)) visit(instance);
  }
}

tuning::Config config_of(const PointwiseWeightInstance& instance, const Cut& cut) {
  using enum tuning::Knob;
  return {{rows, instance.rows}, {columns, instance.columns}, {groups, instance.slices}, {stages, cut.stages},
          {splits, cut.splits},  {cluster, cut.cluster},      {depth, instance.depth}};
}

/// Instance and cut.
struct Launch {
  const PointwiseWeightInstance* instance = nullptr;
  Cut cut;
};

Launch cheapest(const PointwiseBackwardArguments& a, const PointwiseWeightParameters& p) {
  Launch best;
  for_each_instance(a, [&, size = multiprocessors()](const PointwiseWeightInstance& instance) {
    const Cut candidate = cut(instance, p, size);
    if (candidate.cost < best.cut.cost) best = {&instance, candidate};
  });
  return best;
}

Launch configured(const PointwiseBackwardArguments& a, const PointwiseWeightParameters& p,
                  const tuning::Config& config) {
  using enum tuning::Knob;
  const Cut wanted{config[cluster], config[splits], config[stages]};
  Launch found;
  for_each_instance(a, [&](const PointwiseWeightInstance& instance) {
    const bool can = std::find(std::begin(kClustersOfCuts), std::end(kClustersOfCuts), wanted.cluster) !=
                         std::end(kClustersOfCuts) &&
                     wanted.splits >= 1 && wanted.splits <= divide_up(steps_of(instance, p), wanted.cluster) &&
                     wanted.stages >= 1 && wanted.stages <= most_stages(instance);
    if (can && config_of(instance, wanted) == config) found = {&instance, wanted};
  });
  if (found.instance == nullptr) throw_no_tile(kName, "the weight gradient", config);
  return found;
}

}  // namespace

bool PointwiseWeightPass::suits(const PointwiseBackwardArguments& a) {
  const auto suits_tensor = [](const ConstTensorView& view) {
    return !view || suits_tma(activation_matrix(view, 1, true));
  };
  const std::int64_t row = a.grad_weight ? a.grad_weight.strides[0] : 0;
  return size_of(a.x.dtype) == 2 && a.groups == 1 && a.x.elements() > 0 && a.grad_y.elements() > 0 &&
         suits_tensor(a.x) && suits_tensor(a.grad_y) && suits_tensor(a.gradient_prologue.output) &&
         a.x.sizes[1] % 8 == 0 && a.grad_y.sizes[1] % 8 == 0 &&
         (!a.grad_weight || has_windows(a) ||
          (a.grad_weight.strides[1] == 1 && row % 4 == 0 &&
           reinterpret_cast<std::uintptr_t>(a.grad_weight.data) % 8 == 0));
}

tuning::Configs PointwiseWeightPass::configs(const PointwiseBackwardArguments& a) {
  tuning::Configs configs;
  const PointwiseWeightParameters p = problem_of(a);
  for_each_instance(a, [&, size = multiprocessors()](const PointwiseWeightInstance& instance) {
    for_each_cut(instance, p, size, [&](const Cut& cut) {
      const tuning::Config config = config_of(instance, cut);
      if (std::find(configs.begin(), configs.end(), config) == configs.end()) configs.push_back(config);
    });
  });
  return configs;
}

tuning::Config PointwiseWeightPass::config() const { return config_of(*instance_, {p_.cluster, p_.splits, p_.stages}); }

PointwiseWeightPass::PointwiseWeightPass(const PointwiseBackwardArguments& a, const tuning::Config& config)
    : p_(problem_of(a)) {
  const auto [instance, cut] = config == tuning::Config() ? cheapest(a, p_) : configured(a, p_, config);
  instance_ = instance;
  GroupTiles& tiles = p_.tiles;
  p_.activation = a.prologue.activation;
  p_.has_prologue = static_cast<bool>(a.prologue);
  p_.pixel_tiles = static_cast<int>(divide_up(p_.pixels, instance_->depth));
  p_.cluster = cut.cluster;
  p_.splits = cut.splits;
  p_.stages = cut.stages;
  tiles.rows = instance_->rows;
  tiles.columns = instance_->columns;
  tiles.output_tiles = static_cast<int>(divide_up(tiles.outputs, tiles.rows));
  tiles.channel_tiles = static_cast<int>(divide_up(tiles.channels, tiles.columns));
  tiles.weight_row = a.grad_weight.strides[0];
}

PointwiseWeightPass::Memory PointwiseWeightPass::take_memory(const PointwiseBackwardArguments& a, Arena& arena) const {
  if (p_.splits == 1 && !(a.grad_weight && has_windows(a))) return {};
  return {arena.take<Four>(std::int64_t{p_.splits} * p_.tiles.fours()),
          a.grad_bias ? arena.take<float>(std::int64_t{p_.splits} * p_.tiles.outputs) : nullptr};
}

void PointwiseWeightPass::run(const PointwiseBackwardArguments& a, Arena& arena, void* stream) const {
  PointwiseWeightParameters p = p_;
  const GradientPrologue& gradient = a.gradient_prologue;
  p.grad_scale = static_cast<const float*>(gradient.grad_scale.data);
  p.output_scale = static_cast<const float*>(gradient.output_scale.data);
  p.offset = static_cast<const float*>(gradient.offset.data);
  p.scale = static_cast<const float*>(a.prologue.scale.data);
  p.shift = static_cast<const float*>(a.prologue.shift.data);
  GroupTiles& tiles = p.tiles;
  tiles.weight = a.grad_weight.data;
  tiles.bias = a.grad_bias.data;
  if (a.grad_weight && has_windows(a)) tiles.windows = WeightSource(a.grad_weight, a.windows);
  const Memory memory = take_memory(a, arena);
  tiles.partials = memory.partials;
  tiles.bias_partials = memory.bias_partials;
  p.stores_runs = tiles.partials == nullptr && tiles.weight_row % 8 == 0 &&
                  reinterpret_cast<std::uintptr_t>(tiles.weight) % 16 == 0;
  const auto map = [&](const ConstTensorView& view, int columns) {
    const PointwiseMatrix matrix = activation_matrix(view, 1, true);
    return map_of(matrix.data, a.x.dtype, view.sizes[1], p.pixels, matrix.first, columns, instance_->depth);
  };
  p.x = map(a.x, instance_->columns % 64 == 0 ? 64 : 32);
  p.grad_y = map(a.grad_y, 64);
  p.output = gradient ? map(gradient.output, 64) : p.grad_y;
  const std::int64_t blocks = std::int64_t{tiles.output_tiles} * tiles.channel_tiles * p.cluster * p.splits;
  launch_clusters(kName, instance_->kernel, blocks, instance_->threads, stream, p,
                  static_cast<std::size_t>(instance_->memory(p.stages)), p.cluster);
  if (tiles.partials == nullptr) return;
  launch_weight_sum<false>(kName, a.x.dtype, tiles, p.splits, stream);
}

}  // namespace fusedsc::gpu::hopper
#endif
