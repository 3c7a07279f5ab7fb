#ifdef FUSEDSC_HOPPER
#include "fusedsc/common/gpu/launch.h"
#include "fusedsc/common/gpu/partials_launch.h"
#include "fusedsc/common/gpu/pointwise_hopper_plan.h"
#include "fusedsc/forward/pointwise_gpu.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc {
namespace gpu::hopper {
namespace {

constexpr const char* kName = "pointwise_conv2d";

template <class Product>
__global__ void __launch_bounds__(Product::kThreads, 1) forward_kernel(const __grid_constant__ PointwiseParameters p) {
  Product::run(p);
}

template <class T, int kChannels, int kTileDepth, int kGroups, bool kPrologue, EpilogueKind kKind>
constexpr PointwiseInstance instance(DataType dtype) {
  using Product = PointwiseProduct<T, kChannels, kTileDepth, kGroups, kPrologue, false, kKind>;
  return {dtype, kChannels, kTileDepth, kGroups, kPrologue, kKind, forward_kernel<Product>, Product::memory_bytes};
}

const PointwiseInstance kInstances[] = {
#define F(c, d, g, p, k) instance<Float16, c, d, g, p, EpilogueKind::k>(DataType::float16)
    F(32, 32, 8, false, plain), F(32, 64, 4, false, plain), F(32, 64, 8, false, plain), F(32, 64, 2, false, plain), F(32, 64, 1, false, plain),
    F(64, 32, 4, false, plain), F(64, 32, 8, false, plain), F(64, 64, 1, false, plain), F(64, 64, 2, false, plain), F(64, 64, 3, false, plain), F(64, 64, 4, false, plain),
    F(128, 32, 4, false, plain), F(128, 64, 3, false, plain), F(128, 64, 2, false, plain), F(192, 32, 4, false, plain), F(192, 64, 3, false, plain), F(256, 64, 2, false, plain), F(256, 64, 3, false, plain),
    F(32, 32, 6, true, statistics), F(32, 64, 4, true, statistics), F(32, 64, 6, true, statistics), F(32, 64, 2, true, statistics), F(64, 64, 2, true, statistics), F(64, 64, 4, true, statistics), F(64, 32, 4, true, statistics), F(128, 64, 2, true, statistics), F(128, 32, 2, true, statistics),
    F(32, 32, 6, false, statistics), F(64, 32, 6, false, statistics), F(64, 64, 4, false, statistics), F(128, 64, 2, false, statistics), F(128, 32, 3, false, statistics),
};

struct Pass {
  PointwiseLaunch launch;
  PointwiseParameters parameters;
  std::size_t workspace_bytes = 0;

  Pass(const PointwiseArguments& a, void* workspace) {
    PointwiseParameters& p = parameters;
    const PointwiseProblem problem{a.x.dtype,    true,         a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3],
                                   a.x.sizes[1], a.y.sizes[1], 1};
    const EpilogueKind kind = a.statistics ? EpilogueKind::statistics
                              : a.epilogue ? EpilogueKind::inference
                                           : EpilogueKind::plain;
    const PointwiseMatrix residual = activation_matrix(a.epilogue.residual, 1, true);
    p.epilogue.has_added = residual.data != nullptr;
    launch = plan(kInstances, std::size(kInstances), problem, static_cast<bool>(a.prologue), kind, p);
    if (launch.kernel == nullptr) return;
    p.scale = static_cast<const float*>(a.prologue.scale.data);
    p.shift = static_cast<const float*>(a.prologue.shift.data);
    p.activation = a.prologue.activation;
    p.epilogue.bias = a.bias.data;
    p.epilogue.scale = static_cast<const float*>(a.epilogue.scale.data);
    p.epilogue.shift = static_cast<const float*>(a.epilogue.shift.data);
    p.epilogue.activation = a.epilogue.activation;
    Arena arena(workspace);
    if (a.statistics) p.epilogue.partials = arena.take<float>(3 * p.splits * problem.channels);
    workspace_bytes = arena.used();
    if (workspace == nullptr && a.statistics) return;
    const PointwiseMatrix x = activation_matrix(a.x, 1, true);
    const OutputMatrix y = output_matrix(a.y, 1, true);
    p.activations = map_of(x, problem.dtype, problem.depth, problem.pixels, launch.depth);
    p.output = map_of(y, problem.dtype, problem.channels, problem.pixels, launch.columns);
    p.added = map_of(residual, problem.dtype, problem.channels, problem.pixels, launch.columns);
    p.weight = map_of(a.weight.data, problem.dtype, problem.depth, problem.channels, a.weight.strides[0], launch.depth,
                      launch.weight_channels);
  }

  void run(const PointwiseArguments& a, void* stream) const {
    gpu::launch(kName, launch.kernel, launch.blocks, launch.threads, static_cast<std::size_t>(launch.memory), stream,
                parameters);
    if (!a.statistics || getenv("NOMERGE")) return;
    launch_merge_moments(kName, DataType::float32, parameters.epilogue.partials, parameters.splits, a.statistics.mean,
                         a.statistics.m2, stream);
  }
};

}  // namespace
}  // namespace gpu::hopper

Implementation<PointwiseArguments> pointwise_hopper() {
  return {
      .name = "gpu_hopper",
      .why_not = [](const PointwiseArguments& a) -> std::string {
        const std::string elsewhere = needs_device(Device::gpu, a.x.device);
        if (!elsewhere.empty()) return elsewhere;
        if (size_of(a.x.dtype) != 2) return "only for float16 and bfloat16";
        return {};
      },
      .workspace_bytes = [](const PointwiseArguments& a, int) { return gpu::hopper::Pass(a, nullptr).workspace_bytes; },
      .run = [](const PointwiseArguments& a,
                const Execution& execution) { gpu::hopper::Pass(a, execution.workspace).run(a, execution.stream); },
  };
}

}  // namespace fusedsc
#endif
