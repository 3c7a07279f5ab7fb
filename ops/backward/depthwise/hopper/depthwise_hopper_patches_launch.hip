#ifdef FUSEDSC_HOPPER
#include <vector>

#include "fusedsc/backward/depthwise/depthwise_kernels.h"
#include "fusedsc/backward/depthwise/hopper/depthwise_hopper_patches_plan.h"
#include "fusedsc/backward/depthwise/hopper_weight/depthwise_hopper_weight_plan.h"
#include "fusedsc/common/gpu/hopper/hopper_kernel.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr const char* kName = "depthwise_conv2d_backward";

struct Instance {
  DataType dtype;
  int kernel, threads;
  DepthwiseWeightKernels<DepthwiseWeightPatchesParameters> kernels;
};

template <class T, int kKernel, int kThreads>
constexpr Instance instance(DataType dtype) {
  return {dtype,
          kKernel,
          kThreads,
          {hopper_kernel<DepthwiseWeightPatches<T, kKernel, false>, kThreads>,
           hopper_kernel<DepthwiseWeightPatches<T, kKernel, true>, kThreads>}};
}

const Instance kInstances[] = {
    // kernel, threads
    instance<Float16, 3, 640>(DataType::float16),
    instance<Float16, 5, 512>(DataType::float16),
    instance<Float16, 7, 640>(DataType::float16),
    instance<BFloat16, 3, 640>(DataType::bfloat16),
    instance<BFloat16, 5, 512>(DataType::bfloat16),
    instance<BFloat16, 7, 640>(DataType::bfloat16),
};

const Instance* instance_for(const DepthwiseBackwardArguments& a) {
  for (const Instance& instance : kInstances) {
    if (instance.dtype == a.x.dtype && instance.kernel == a.window.kernel[0]) return &instance;
  }
  return nullptr;
}

/// Rows of x until rows of grad_y in registers are where they began.
int round_of_rows(const DepthwiseBackwardArguments& a) { return a.window.kernel[0] == 3 ? 4 : 6; }

/// Whether there is a kernel of such tiles, apart from the memory that they take.
bool has_tiles(const DepthwiseBackwardArguments& a, const DepthwisePatching& t) {
  const Instance* const instance = instance_for(a);
  return instance != nullptr && are_runs(a.x, t) && !t.in_segments && t.image_parts > 0 &&
         (2 * t.runs * t.image_parts + 1) * 32 <= instance->threads && t.rows > 0 && t.rows % round_of_rows(a) == 0 &&
         t.stages > 0;
}

}  // namespace

DepthwiseWeightPatchesPass::DepthwiseWeightPatchesPass(const DepthwiseBackwardArguments& a, const DepthwisePatching& t,
                                                       int cluster_size)
    : window_(static_cast<int>(a.window.kernel[0])) {
  if (!has_tiles(a, t)) {
    throw Unsupported(std::string(kName) + ": hopper_patches: there is no kernel with " +
                      tuning::printed(config_of(t)));
  }
  kernels_ = instance_for(a)->kernels;
  static_cast<DepthwiseTilesShape&>(p_) = cut_patches(a.x.sizes, a.grad_y.sizes, a.window, t, PatchesOf::both);
  p_.grad_rows = p_.rows + weight_patch_lead(window_);
  p_.grad_pitch = p_.tile_columns;
  const int grad_image_bytes = p_.grad_rows * p_.grad_pitch * p_.box_bytes;
  p_.grad_bytes = round_up(p_.boxes * p_.images * grad_image_bytes, 1024);
  const auto jump = [&](int patches, int columns, int image_bytes) {
    return p_.image_lines > patches ? columns * p_.box_bytes : patches / p_.image_lines * image_bytes;
  };
  for (int i = 0; i < 2; ++i) {
    const int patches = 4 << i, columns = patches * weight_patch_columns(window_);
    p_.x_jumps[i] = jump(patches, columns, p_.image_bytes());
    p_.grad_jumps[i] = jump(patches, columns, grad_image_bytes);
  }
  while (p_.memory_bytes() > kMemoryLimit && p_.stages > 1) --p_.stages;
  if (p_.memory_bytes() > kMemoryLimit)
    throw Unsupported(std::string(kName) + ": hopper_patches: its tiles do not fit shared memory");
  share_out_splits(p_, kernels_, a, cluster_size);
}

std::size_t DepthwiseWeightPatchesPass::workspace_bytes() const {
  Arena measured(nullptr);
  take_partials(p_, window_, measured);
  return measured.used();
}

void DepthwiseWeightPatchesPass::run(const DepthwiseBackwardArguments& a, const Execution& execution) const {
  Arena arena(execution.workspace);
  DepthwiseWeightPatchesParameters p = p_;
  p.x = map_of_images(a.x, p.box_bytes / 2, p.pitch, p.rows, p.images, p.swizzles);
  p.grad_y = map_of_images(a.grad_y, p.box_bytes / 2, p.grad_pitch, p.grad_rows, p.images, p.swizzles);
  p.sums.partials = take_partials(p_, window_, arena);
  p.sums.taps = window_ * window_ + (a.grad_bias ? 1 : 0);
  p.sums.grad_weight = a.grad_weight;
  p.sums.grad_bias = a.grad_bias.data;
  launch_weight_gradient(kName, kernels_, p, a, execution.stream);
}

namespace {

std::string unsupported(const DepthwiseBackwardArguments& a) {
  const std::string reason = why_no_weight_gradient(a, why_no_patches(a.x.sizes, a.grad_y.sizes, a.window));
  if (!reason.empty()) return reason;
  return a.window.stride[0] != 1 ? "it is for a stride of 1" : "";
}

/// The knob "cluster" of a config as a pass takes it.
int cluster_of(const Config& config) { return config[Knob::cluster] == 1 ? kNoCluster : config[Knob::cluster]; }

Configs configs(const DepthwiseBackwardArguments& a) {
  const int step = round_of_rows(a);
  Configs list;
  for (const int runs : {4, 8}) {
    for (const int rows : {step, 2 * step}) {
      for (const int parts : {1, 2}) {
        for (const int stages : {2, 3, 4}) {
          for (const int grain : {0, 7, 14, 28}) {
            const DepthwisePatching t{runs, runs, rows, parts, stages, false, grain};
            if (grain >= a.grad_y.sizes[2] || !has_tiles(a, t)) continue;
            append_clusters(
                list, [&](int cluster) { return DepthwiseWeightPatchesPass(a, t, cluster); }, t);
          }
        }
      }
    }
  }
  return list;
}

Plan<DepthwiseBackwardArguments> plan(const DepthwiseBackwardArguments& a, const Config& config, int /*threads*/) {
  const DepthwiseWeightPatchesPass pass(a, patching_of(config), cluster_of(config));
  return {pass.workspace_bytes(),
          [pass](const DepthwiseBackwardArguments& like, const Execution& execution) { pass.run(like, execution); }};
}

}  // namespace

Kernel<DepthwiseBackwardArguments> depthwise_patches_weight() { return {"hopper_patches", unsupported, configs, plan}; }

}  // namespace fusedsc::gpu::hopper
#endif
