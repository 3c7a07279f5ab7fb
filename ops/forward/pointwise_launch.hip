#include "fusedsc/common/gpu/following_kernel.h"
#include "fusedsc/common/gpu/partials_launch.h"
#include "fusedsc/common/gpu/pointwise_plan.h"
#include "fusedsc/forward/pointwise_element_sink.h"
#include "fusedsc/forward/pointwise_gpu.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc {
namespace gpu {
namespace {

constexpr const char* kName = "pointwise_conv2d";

using Instance = PointwiseInstance<PointwiseParameters>;

template <class T, class Tile, bool kChannelsInner, int kBlocks, bool kSeams>
FUSEDSC_MATRIX_KERNEL(kMatrixThreads, kBlocks)
forward_kernel(PointwiseParameters parameters) {
  pointwise_forward<T, Tile, kChannelsInner, kSeams>(parameters);
}

template <class T, class Tile, bool kChannelsInner, int kBlocks, bool kSeams>
FUSEDSC_MATRIX_KERNEL(kMatrixThreads, kBlocks)
forward_elements_kernel(PointwiseParameters parameters) {
  pointwise_forward_elements<T, Tile, kChannelsInner, kSeams>(parameters);
}

template <class T, bool kChannelsInner, int kRows, int kCols, int kDepth, int kParts = 1, int kBlocks = 3,
          bool kTf32 = false>
constexpr Instance instance(DataType dtype) {
  using Tile = MatrixTile<kRows, kCols, kDepth, kParts, kTf32>;
  return {dtype,
          kChannelsInner,
          {kRows, kCols, kDepth, kParts, kTf32},
          forward_kernel<T, Tile, kChannelsInner, kBlocks, false>,
          forward_kernel<T, Tile, kChannelsInner, 2, true>,
          forward_memory_bytes<T, Tile, kChannelsInner, false>,
          forward_memory_bytes<T, Tile, kChannelsInner, true>};
}

/// Of products of TensorFloat-32.
template <bool kChannelsInner, int kRows, int kCols, int kDepth, int kParts = 1, int kBlocks = 3>
constexpr Instance tf32_instance() {
  return instance<float, kChannelsInner, kRows, kCols, kDepth, kParts, kBlocks, true>(DataType::float32);
}

/// Of tensors with elements that are no runs.
template <class T, bool kChannelsInner, int kRows, int kCols, int kDepth, int kParts = 1, bool kTf32 = false>
constexpr Instance elements(DataType dtype) {
  using Tile = MatrixTile<kRows, kCols, kDepth, kParts, kTf32>;
  constexpr auto kKernel = forward_elements_kernel<T, Tile, kChannelsInner, 3, true>;
  constexpr auto kMemory = forward_elements_memory_bytes<T, Tile, kChannelsInner, true>;
  return {dtype, kChannelsInner, {kRows, kCols, kDepth, kParts, kTf32, true}, kKernel, kKernel, kMemory, kMemory};
}

/// Likewise, with a kernel of their own for products without seams.
template <class T, bool kChannelsInner, int kRows, int kCols, int kDepth, int kParts = 1, int kBlocks = 3>
constexpr Instance plain_elements(DataType dtype) {
  using Tile = MatrixTile<kRows, kCols, kDepth, kParts>;
  return {dtype,
          kChannelsInner,
          {kRows, kCols, kDepth, kParts, false, true},
          forward_elements_kernel<T, Tile, kChannelsInner, kBlocks, false>,
          forward_elements_kernel<T, Tile, kChannelsInner, 2, true>,
          forward_elements_memory_bytes<T, Tile, kChannelsInner, false>,
          forward_elements_memory_bytes<T, Tile, kChannelsInner, true>};
}

/// Every kernel there is; a problem gets the cheapest. Rows are positions where channels are neighbours, else channels.
const Instance kInstances[] = {
    // channels inner; rows, columns, depth, parts; blocks that shall fit a multiprocessor
    instance<Float16, true, 128, 32, 32>(DataType::float16),
    instance<Float16, true, 64, 64, 64>(DataType::float16),
    instance<Float16, true, 32, 32, 128, 4>(DataType::float16),
    instance<Float16, false, 64, 64, 32>(DataType::float16),
    instance<Float16, false, 32, 128, 32>(DataType::float16),
    instance<Float16, false, 32, 32, 128, 4>(DataType::float16),
    instance<BFloat16, true, 128, 32, 32>(DataType::bfloat16),
    instance<BFloat16, true, 64, 64, 64>(DataType::bfloat16),
    instance<BFloat16, true, 32, 32, 128, 4>(DataType::bfloat16),
    instance<BFloat16, false, 64, 64, 32>(DataType::bfloat16),
    instance<BFloat16, false, 32, 128, 32>(DataType::bfloat16),
    instance<BFloat16, false, 32, 32, 128, 4>(DataType::bfloat16),
    instance<float, true, 64, 64, 16, 1, 4>(DataType::float32),
    instance<float, true, 128, 32, 16, 1, 4>(DataType::float32),
    instance<float, true, 64, 32, 32, 2, 4>(DataType::float32),
    instance<float, true, 32, 32, 32, 4, 4>(DataType::float32),
    instance<float, false, 64, 64, 16, 1, 4>(DataType::float32),
    instance<float, false, 32, 128, 16>(DataType::float32),
    instance<float, false, 32, 64, 32, 2, 4>(DataType::float32),
    instance<float, false, 32, 32, 32, 4, 4>(DataType::float32),
#ifdef FUSEDSC_TF32
    tf32_instance<true, 128, 64, 32>(),
    tf32_instance<true, 64, 64, 32>(),
    tf32_instance<true, 128, 32, 32>(),
    tf32_instance<true, 32, 32, 32, 4>(),
    tf32_instance<false, 64, 128, 32>(),
    tf32_instance<false, 64, 64, 32>(),
    tf32_instance<false, 32, 128, 32>(),
    tf32_instance<false, 32, 32, 32, 4>(),
#endif
    instance<double, true, 32, 32, 16>(DataType::float64),
    instance<double, false, 32, 32, 16>(DataType::float64),
    // of elements
    elements<Float16, true, 64, 64, 64>(DataType::float16),
    elements<Float16, true, 128, 32, 32>(DataType::float16),
    elements<Float16, true, 32, 32, 128, 4>(DataType::float16),
    elements<Float16, false, 64, 64, 32>(DataType::float16),
    elements<Float16, false, 32, 128, 32>(DataType::float16),
    elements<Float16, false, 32, 32, 128, 4>(DataType::float16),
    elements<BFloat16, true, 64, 64, 64>(DataType::bfloat16),
    elements<BFloat16, true, 128, 32, 32>(DataType::bfloat16),
    elements<BFloat16, true, 32, 32, 128, 4>(DataType::bfloat16),
    elements<BFloat16, false, 64, 64, 32>(DataType::bfloat16),
    elements<BFloat16, false, 32, 128, 32>(DataType::bfloat16),
    elements<BFloat16, false, 32, 32, 128, 4>(DataType::bfloat16),
    plain_elements<float, true, 64, 64, 16, 1, 4>(DataType::float32),
    plain_elements<float, true, 32, 32, 32, 4, 4>(DataType::float32),
    plain_elements<float, false, 64, 64, 16, 1, 4>(DataType::float32),
    plain_elements<float, false, 32, 64, 32, 2, 4>(DataType::float32),
    plain_elements<float, false, 32, 32, 32, 4, 4>(DataType::float32),
#ifdef FUSEDSC_TF32
    elements<float, true, 64, 64, 32, 1, true>(DataType::float32),
    elements<float, true, 128, 32, 32, 1, true>(DataType::float32),
    elements<float, true, 32, 32, 32, 4, true>(DataType::float32),
    elements<float, false, 64, 64, 32, 1, true>(DataType::float32),
    elements<float, false, 32, 128, 32, 1, true>(DataType::float32),
    elements<float, false, 32, 32, 32, 4, true>(DataType::float32),
#endif
    elements<double, true, 32, 32, 16>(DataType::float64),
    elements<double, false, 32, 32, 16>(DataType::float64),
};

/// A launch, worked out.
struct Pass {
  const Instance* instance = nullptr;
  PointwiseParameters parameters;
  PointwiseMemoryUse use;
  std::size_t workspace_bytes = 0;

  Pass(const PointwiseArguments& a, void* workspace) {
    const bool inner = channels_inner(a.x, a.y);
    const std::int64_t outputs = a.y.sizes[1];
    PointwiseProductParameters& product = parameters.product;
    product.activations = activation_matrix(a.x, a.groups, inner);
    product.weight = weight_matrix(a.weight, a.groups);
    parameters.residual = activation_matrix(a.epilogue.residual, a.groups, inner);
    parameters.y = output_matrix(a.y, a.groups, inner);
    use.seams = a.prologue || a.epilogue || a.statistics;
    use.elements = has_elements(product.activations.run_bytes, a.x.sizes[1], parameters.y.run_bytes, outputs);
    const PointwiseProblem problem{
        a.x.dtype,          inner,   a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3], a.x.sizes[1] / a.groups,
        outputs / a.groups, a.groups};
    const int size = multiprocessors();
    const auto plan = [&](const Instance& candidate) {
      const int resident = resident_blocks(kernel_of(candidate, use), kMatrixThreads, memory_of(candidate, use));
      return plan_product(problem, candidate.tile, resident, size, product);
    };
    instance = &cheapest(kInstances, a.x.dtype, uses_tf32(a.x.dtype, a.allow_tf32), inner, use, plan);
    plan(*instance);
    product.seam = {a.prologue.scale.data, a.prologue.shift.data, nullptr, a.prologue.activation, {}};
    parameters.bias = a.bias.data;
    parameters.epilogue = {a.epilogue.scale.data, a.epilogue.shift.data, a.epilogue.activation};
    Arena arena(workspace);
    if (a.statistics) {
      const auto bytes = static_cast<std::int64_t>(size_of(accumulation_type(a.x.dtype)));
      parameters.partials = arena.take<char>(3 * product.splits * outputs * bytes);
    }
    workspace_bytes = arena.used();
  }

  void run(const PointwiseArguments& a, void* stream) const {
    launch_following(kName, kernel_of(*instance, use), parameters.product.blocks(), kMatrixThreads, stream, parameters,
                     memory_of(*instance, use));
    if (!a.statistics) return;
    launch_merge_moments(kName, accumulation_type(a.x.dtype), parameters.partials, parameters.product.splits,
                         a.statistics, a.y.sizes[0] * a.y.sizes[2] * a.y.sizes[3], stream);
  }
};

}  // namespace
}  // namespace gpu

Implementation<PointwiseArguments> pointwise_gpu() {
  return {
      .name = "gpu",
      .why_not =
          [](const PointwiseArguments& a) {
            const std::string elsewhere = needs_device(Device::gpu, a.x.device);
            return !elsewhere.empty() ? elsewhere : gpu::too_large_for_pointwise(a.x.sizes, a.y.sizes);
          },
      .workspace_bytes = [](const PointwiseArguments& a, int) { return gpu::Pass(a, nullptr).workspace_bytes; },
      .run = [](const PointwiseArguments& a,
                const Execution& execution) { gpu::Pass(a, execution.workspace).run(a, execution.stream); },
  };
}

}  // namespace fusedsc
