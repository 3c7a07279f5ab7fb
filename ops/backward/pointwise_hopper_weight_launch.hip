#ifdef FUSEDSC_HOPPER
#include <algorithm>
#include <cstdlib>
#include <cstdio>
#include <limits>

#include "fusedsc/backward/pointwise_hopper_weight.h"
#include "fusedsc/backward/pointwise_hopper_weight_sum.h"
#include "fusedsc/common/gpu/pointwise_hopper_plan.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr const char* kName = "pointwise_conv2d_backward";

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

template <class Product>
__global__ void __launch_bounds__(Product::kThreads, 1)
    weight_kernel(const __grid_constant__ PointwiseWeightParameters p) {
  Product::run(p);
}

template <class T>
__global__ void __launch_bounds__(kWeightSumThreads) sum_kernel(const WeightSumParameters p) {
  sum_weight_partials<T>(p);
}

template <class T, bool kSeams, int kRowBlocks, int kColumns, int kGroups, int kDepth>
constexpr PointwiseWeightInstance instance(DataType dtype) {
  using Product = PointwiseWeightProduct<T, kRowBlocks, kColumns, kGroups, kDepth, kSeams>;
  return {dtype,  kSeams,  kRowBlocks * 64, kColumns, kGroups, kDepth, weight_kernel<Product>,
          Product::memory_bytes};
}

#ifndef ONLY_HALF
#define FUSEDSC_BOTH(seams, rows, columns, groups, depth)                         \
  instance<Float16, seams, rows, columns, groups, depth>(DataType::float16), \
      instance<BFloat16, seams, rows, columns, groups, depth>(DataType::bfloat16)
#else
#define FUSEDSC_BOTH(seams, rows, columns, groups, depth)                         \
  instance<Float16, seams, rows, columns, groups, depth>(DataType::float16)
#endif

const PointwiseWeightInstance kInstances[] = {
    // seams; blocks of 64 outputs, channels, groups of warps, positions
    FUSEDSC_BOTH(false, 1, 32, 4, 64), FUSEDSC_BOTH(false, 1, 64, 4, 64), FUSEDSC_BOTH(false, 1, 128, 4, 64),
    FUSEDSC_BOTH(false, 1, 192, 3, 32), FUSEDSC_BOTH(false, 1, 256, 2, 32), FUSEDSC_BOTH(false, 2, 32, 4, 64),
    FUSEDSC_BOTH(false, 2, 64, 4, 64), FUSEDSC_BOTH(false, 2, 128, 2, 64), FUSEDSC_BOTH(false, 3, 32, 4, 32),
    FUSEDSC_BOTH(false, 3, 64, 3, 32), FUSEDSC_BOTH(false, 4, 64, 2, 32),
    FUSEDSC_BOTH(true, 1, 32, 4, 64), FUSEDSC_BOTH(true, 1, 64, 4, 64), FUSEDSC_BOTH(true, 1, 128, 3, 64),
    FUSEDSC_BOTH(true, 1, 192, 3, 32), FUSEDSC_BOTH(true, 1, 256, 2, 32), FUSEDSC_BOTH(true, 2, 32, 4, 32),
    FUSEDSC_BOTH(true, 2, 64, 3, 32), FUSEDSC_BOTH(true, 2, 128, 2, 32), FUSEDSC_BOTH(true, 3, 32, 3, 32),
    FUSEDSC_BOTH(true, 3, 64, 2, 32), FUSEDSC_BOTH(true, 4, 64, 2, 32),
};

struct Cut {
  int cluster = 1, splits = 1, stages = 0;
  double cost = std::numeric_limits<double>::infinity();
};

Cut cut(const PointwiseWeightInstance& instance, const PointwiseWeightParameters& p, int size) {
  constexpr int kMostStages = 8;
  Cut best;
  int stages = kMostStages;
  while (stages >= 2 && instance.memory(stages, p.has_output) > static_cast<int>(kBlockMemoryLimit)) --stages;
  if (stages < 2) return best;
  const std::int64_t tiles = divide_up(p.outputs, instance.rows) * divide_up(p.channels, instance.columns);
  const std::int64_t steps = divide_up(p.pixels, instance.depth * instance.groups);
  for (const int cluster : {1, 2, 4, 8}) {
    const std::int64_t most = std::max<std::int64_t>(1, size / tiles / cluster);
    for (const std::int64_t splits : {std::int64_t{1}, std::min(most, divide_up(steps, cluster))}) {
      const std::int64_t blocks = tiles * cluster * splits;
      const double rounds = static_cast<double>(divide_up(blocks, size));
      const double step_bytes = (instance.rows * (p.has_output ? 2.0 : 1.0) + instance.columns) * instance.depth * 2 * instance.groups;
      double cost = rounds * (3000 + static_cast<double>(divide_up(steps, cluster * splits)) * (200 + step_bytes / 24));
      cost += instance.rows * instance.columns * (instance.groups + cluster + 2) / 128.0;
      if (splits > 1) cost += 2500 + static_cast<double>(splits) * p.outputs * p.channels * 8 / 2000;
      if (const char* wanted = getenv("FUSEDSC_WG")) {
        int r, c, k, s;
        sscanf(wanted, "%d,%d,%d,%d", &r, &c, &k, &s);
        if (r == instance.rows && c == instance.columns && k == cluster && (s == 1) == (splits == 1)) cost = -1;
      }
      if (cost < best.cost) best = {cluster, static_cast<int>(splits), stages, cost};
    }
  }
  return best;
}

/// Launches with what <<<>>> cannot say.
template <class Parameters>
void launch_with(void (*kernel)(Parameters), std::int64_t blocks, int threads, int memory, void* stream, const cudaLaunchAttribute& attribute,
                 const Parameters& parameters, int pdl = 0) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(memory);
  config.stream = static_cast<Stream>(stream);
  cudaLaunchAttribute attributes[] = {attribute, {}};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  config.attrs = attributes;
  config.numAttrs = 1 + pdl;
  allow_block_memory(kernel, config.dynamicSmemBytes);
  check_vendor(cudaLaunchKernelEx(&config, kernel, parameters), kName);
}

}  // namespace

bool PointwiseWeightPass::suits(const PointwiseBackwardArguments& a) {
  const auto suits_tensor = [](const ConstTensorView& view) {
    return !view || suits_copy_engine(activation_matrix(view, 1, true));
  };
  const std::int64_t row = a.grad_weight ? a.grad_weight.strides[0] : 0;
  return size_of(a.x.dtype) == 2 && a.groups == 1 && a.x.elements() > 0 && a.grad_y.elements() > 0 && suits_tensor(a.x) && suits_tensor(a.grad_y) &&
         suits_tensor(a.gradient_prologue.output) && a.x.sizes[1] % 8 == 0 && a.grad_y.sizes[1] % 8 == 0 &&
         (!a.grad_weight || (a.grad_weight.strides[1] == 1 && row % 4 == 0 &&
                             reinterpret_cast<std::uintptr_t>(a.grad_weight.data) % 8 == 0));
}

PointwiseWeightPass::PointwiseWeightPass(const PointwiseBackwardArguments& a, Arena& arena) {
  const GradientPrologue& gradient = a.gradient_prologue;
  p_.pixels = static_cast<int>(a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3]);
  p_.outputs = static_cast<int>(a.grad_y.sizes[1]);
  p_.channels = static_cast<int>(a.x.sizes[1]);
  p_.grad_scale = static_cast<const float*>(gradient.grad_scale.data);
  p_.output_scale = static_cast<const float*>(gradient.output_scale.data);
  p_.offset = static_cast<const float*>(gradient.offset.data);
  p_.has_output = static_cast<bool>(gradient);
  p_.scale = static_cast<const float*>(a.prologue.scale.data);
  p_.shift = static_cast<const float*>(a.prologue.shift.data);
  p_.activation = a.prologue.activation;
  p_.has_prologue = static_cast<bool>(a.prologue);
  const bool seams = a.prologue || gradient || a.grad_bias;
  const int size = multiprocessors();
  Cut best;
  for (const PointwiseWeightInstance& instance : kInstances) {
    if (instance.dtype != a.x.dtype || instance.seams != seams) continue;
    const Cut candidate = cut(instance, p_, size);
    if (candidate.cost >= best.cost) continue;
    best = candidate;
    instance_ = &instance;
  }
  p_.pixel_tiles = static_cast<int>(divide_up(p_.pixels, instance_->depth));
  p_.output_tiles = static_cast<int>(divide_up(p_.outputs, instance_->rows));
  p_.channel_tiles = static_cast<int>(divide_up(p_.channels, instance_->columns));
  p_.cluster = best.cluster;
  p_.splits = best.splits;
  p_.stages = best.stages;
  p_.weight = a.grad_weight.data;
  p_.weight_row = a.grad_weight.strides[0];
  p_.bias = a.grad_bias.data;
  if (p_.splits > 1) {
    p_.partials = arena.take<float>(static_cast<std::int64_t>(p_.splits) * p_.outputs * (p_.channels + 4));
  }
}

void PointwiseWeightPass::run(const PointwiseBackwardArguments& a, void* stream) const {
  PointwiseWeightParameters p = p_;
  const auto map = [&](const ConstTensorView& view, int columns) {
    if (!view) return CUtensorMap{};
    const PointwiseMatrix matrix = activation_matrix(view, 1, true);
    return map_of(matrix.data, a.x.dtype, view.sizes[1], p.pixels, matrix.first, columns, instance_->depth);
  };
  p.x = map(a.x, std::min(instance_->columns, 64));
  p.grad_y = map(a.grad_y, 64);
  p.output = map(a.gradient_prologue.output, 64);
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(p.cluster);
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  const std::int64_t blocks = std::int64_t{p.output_tiles} * p.channel_tiles * p.cluster * p.splits;
  const int debug = getenv("FUSEDSC_DEBUG") ? atoi(getenv("FUSEDSC_DEBUG")) : 0;
  p.debug = debug;
  launch_with(instance_->kernel, blocks, instance_->groups * 128, instance_->memory(p.stages, p.has_output), stream, attribute, p, debug & 8 ? 0 : 1);
  if (p.splits == 1 || (debug & 1)) return;

  WeightSumParameters sum{p.partials, p.splits, p.outputs, p.channels, 1, p.weight, p.bias, p.weight_row};
  while (sum.lanes < 32 && sum.lanes * 4 < sum.splits) sum.lanes *= 2;
  attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  const std::int64_t threads = std::int64_t{p.outputs} * (p.channels / 4 + 1) * sum.lanes;
  launch_with(a.x.dtype == DataType::float16 ? sum_kernel<Float16> : sum_kernel<BFloat16>,
              divide_up(threads, kWeightSumThreads), kWeightSumThreads, 0, stream, attribute, sum);
}

}  // namespace fusedsc::gpu::hopper
#endif
