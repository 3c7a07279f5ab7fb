#ifdef FUSEDSC_HOPPER
#include <vector>

#include "fusedsc/backward/depthwise/depthwise_kernels.h"
#include "fusedsc/backward/depthwise/hopper_weight/depthwise_hopper_weight_plan.h"
#include "fusedsc/common/gpu/hopper/hopper_kernel.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr const char* kName = "depthwise_conv2d_backward";

struct Instance {
  DataType dtype;
  int kernel, stride, products, threads;
  bool in_segments;
  DepthwiseWeightKernels<DepthwiseWeightTilesParameters> kernels;
};

template <class T, int kKernel, int kStride, int kProducts, int kThreads, int kBlocks, bool kInSegments = false>
constexpr Instance instance(DataType dtype) {
  return {dtype,
          kKernel,
          kStride,
          kProducts,
          kThreads,
          kInSegments,
          {hopper_kernel<DepthwiseWeightTiles<T, kKernel, kStride, kProducts, kInSegments, false>, kThreads, kBlocks>,
           hopper_kernel<DepthwiseWeightTiles<T, kKernel, kStride, kProducts, kInSegments, true>, kThreads, kBlocks>}};
}

const Instance kInstances[] = {
    // kernel, stride, products; threads and blocks
    instance<Float16, 3, 1, 2, 288, 2>(DataType::float16),
    instance<Float16, 3, 1, 4, 288, 2>(DataType::float16),
    instance<Float16, 3, 1, 7, 160, 3>(DataType::float16),
    instance<Float16, 3, 2, 2, 288, 2>(DataType::float16),
    instance<Float16, 3, 2, 4, 288, 2>(DataType::float16),
    instance<Float16, 5, 1, 2, 160, 3>(DataType::float16),
    instance<Float16, 5, 1, 4, 160, 2>(DataType::float16),
    instance<Float16, 5, 2, 2, 160, 3>(DataType::float16),
    instance<Float16, 5, 2, 4, 160, 2>(DataType::float16),
    instance<BFloat16, 3, 1, 2, 288, 2>(DataType::bfloat16),
    instance<BFloat16, 3, 1, 4, 288, 2>(DataType::bfloat16),
    instance<BFloat16, 3, 1, 7, 160, 3>(DataType::bfloat16),
    instance<BFloat16, 3, 2, 2, 288, 2>(DataType::bfloat16),
    instance<BFloat16, 3, 2, 4, 288, 2>(DataType::bfloat16),
    instance<BFloat16, 5, 1, 2, 160, 3>(DataType::bfloat16),
    instance<BFloat16, 5, 1, 4, 160, 2>(DataType::bfloat16),
    instance<BFloat16, 5, 2, 2, 160, 3>(DataType::bfloat16),
    instance<BFloat16, 5, 2, 4, 160, 2>(DataType::bfloat16),
    // in segments
    instance<Float16, 3, 1, 2, 800, 1, true>(DataType::float16),
    instance<Float16, 3, 1, 4, 608, 1, true>(DataType::float16),
    instance<Float16, 3, 2, 2, 800, 1, true>(DataType::float16),
    instance<Float16, 5, 2, 2, 320, 1, true>(DataType::float16),
    instance<BFloat16, 3, 1, 2, 800, 1, true>(DataType::bfloat16),
    instance<BFloat16, 3, 1, 4, 608, 1, true>(DataType::bfloat16),
    instance<BFloat16, 3, 2, 2, 800, 1, true>(DataType::bfloat16),
    instance<BFloat16, 5, 2, 2, 320, 1, true>(DataType::bfloat16),
};

const Instance* instance_for(const DepthwiseBackwardArguments& a, const DepthwiseTiling& t) {
  for (const Instance& instance : kInstances) {
    if (instance.dtype == a.x.dtype && instance.kernel == a.window.kernel[0] && instance.stride == a.window.stride[0] &&
        instance.products == t.products && instance.in_segments == t.in_segments) {
      return &instance;
    }
  }
  return nullptr;
}

/// Whether there is a kernel of such tiles, apart from the memory that they take.
bool has_tiles(const DepthwiseBackwardArguments& a, const DepthwiseTiling& t) {
  const Instance* const instance = instance_for(a, t);
  const std::int64_t width = a.grad_y.sizes[3];
  if (instance == nullptr || t.rows < 1 || t.rows % instance->stride != 0 || t.image_parts < 1 || t.stages < 1 ||
      (int_divide_up(t.box_channels, 8) * t.image_parts + 1) * 32 > instance->threads) {
    return false;
  }
  if (t.in_segments) {
    return t.box_channels == a.x.sizes[1] && t.images == 1 && width > 16 && width <= 64 && has_dense_rows(a.x) &&
           has_dense_rows(a.grad_y);
  }
  return (t.box_channels == 32 || t.box_channels == 64) && t.images == images_of_products(t.products, width);
}

}  // namespace

DepthwiseWeightTilesPass::DepthwiseWeightTilesPass(const DepthwiseBackwardArguments& a, const DepthwiseTiling& t,
                                                   int cluster_size)
    : window_(static_cast<int>(a.window.kernel[0])),
      stride_(static_cast<int>(a.window.stride[0])),
      box_channels_(t.box_channels) {
  if (!has_tiles(a, t)) {
    throw Unsupported(std::string(kName) + ": hopper_tiles: there is no kernel with " + tuning::printed(config_of(t)));
  }
  kernels_ = instance_for(a, t)->kernels;
  static_cast<DepthwiseTilesShape&>(p_) = cut_tiles(a.x.sizes, a.grad_y.sizes, a.window, t);
  const int reach = (p_.tile_columns - 1) * stride_ + window_;  // of the last position, in columns of x
  if (!t.in_segments) {
    p_.tile_bytes = round_up(p_.images * p_.image_bytes(), 1024) +
                    (reach > p_.pitch ? round_up((reach - p_.pitch) * p_.box_bytes, 1024) : 0);
  }
  const int grad_image_bytes = p_.rows / stride_ * p_.out_pitch * p_.box_bytes;
  p_.grad_bytes = round_up(p_.images * grad_image_bytes, 1024);
  p_.grad_half_bytes = p_.halves_are_images() ? grad_image_bytes : 8 * p_.box_bytes;
  p_.grad_product_bytes =
      p_.products_are_images() && !p_.halves_are_images() ? grad_image_bytes : 2 * p_.grad_half_bytes;
  if (t.in_segments) {
    const int half = 8 * p_.box_bytes;
    p_.grad_segment_bytes = segment_of(half);
    p_.grad_segments = int_divide_up(p_.out_pitch * p_.box_bytes, p_.grad_segment_bytes);
    const int step = p_.images * p_.rows / stride_ * p_.grad_segment_bytes;  // from one segment to the next
    p_.grad_bytes = round_up(p_.grad_segments * step, 1024);
    p_.grad_half_bytes = half / p_.grad_segment_bytes * step;
    p_.grad_product_bytes = 2 * p_.grad_half_bytes;
  }
  while (p_.memory_bytes() > kMemoryLimit && p_.stages > 1) --p_.stages;
  if (p_.memory_bytes() > kMemoryLimit) {
    throw Unsupported(std::string(kName) + ": hopper_tiles: its tiles do not fit shared memory");
  }
  p_.sums.taps = window_ * window_ + 1;
  share_out_splits(p_, kernels_, a, cluster_size, t.in_segments);
}

std::size_t DepthwiseWeightTilesPass::workspace_bytes() const {
  Arena measured(nullptr);
  take_partials(p_, window_, measured);
  return measured.used();
}

void DepthwiseWeightTilesPass::run(const DepthwiseBackwardArguments& a, const Execution& execution) const {
  Arena arena(execution.workspace);
  DepthwiseWeightTilesParameters p = p_;
  if (p.segments > 0) {
    p.x = map_of_rows(a.x, p.segment_bytes, p.rows, p.images);
    p.grad_y = map_of_rows(a.grad_y, p.grad_segment_bytes, p.rows / stride_, p.images);
  } else {
    p.x = map_of_images(a.x, box_channels_, p.pitch, p.rows, p.images, true);
    p.grad_y = map_of_images(a.grad_y, box_channels_, p.out_pitch, p.rows / stride_, p.images, true);
  }
  p.sums.partials = take_partials(p_, window_, arena);
  p.sums.grad_weight = a.grad_weight;
  p.sums.grad_bias = a.grad_bias.data;
  launch_weight_gradient(kName, kernels_, p, a, execution.stream);
}

std::string why_no_weight_gradient(const DepthwiseBackwardArguments& a, const std::string& window) {
  const std::string elsewhere = why_not_on_gpu(a);
  if (!elsewhere.empty()) return elsewhere;
  if (!a.grad_weight && !a.grad_bias) return "neither grad_weight nor grad_bias is wanted";
  if (!is_hopper()) return "the GPU is not of compute capability 9.0";
  if (size_of(a.x.dtype) != 2) return "it is for float16 and bfloat16";
  if (!window.empty()) return window;
  if (a.prologue || a.gradient_prologue) return "it has no prologues";
  if (a.grad_y.elements() == 0) return "there are no positions";
  if (!suits_tma(a.x) || !suits_tma(a.grad_y)) return "a tensor does not suit TMA";
  return {};
}

namespace {

std::string unsupported(const DepthwiseBackwardArguments& a) {
  return why_no_weight_gradient(a, why_no_tiles(a.x.sizes, a.grad_y.sizes, a.window));
}

/// The knob "cluster" of a config as a pass takes it.
int cluster_of(const Config& config) { return config[Knob::cluster] == 1 ? kNoCluster : config[Knob::cluster]; }

/// With clusters and without.
void append(Configs& list, const DepthwiseBackwardArguments& a, const DepthwiseTiling& t) {
  if (t.grain >= a.grad_y.sizes[2] || !has_tiles(a, t)) return;
  append_clusters(
      list, [&](int cluster) { return DepthwiseWeightTilesPass(a, t, cluster); }, t);
}

Configs configs(const DepthwiseBackwardArguments& a) {
  Configs list;
  const int channels = static_cast<int>(a.x.sizes[1]);
  for (const int products : {2, 4, 7}) {
    const int images = images_of_products(products, a.grad_y.sizes[3]);
    for (const int rows : {2, 3, 4, 5, 6, 9}) {
      for (const int stages : {1, 2, 3, 4}) {
        for (const int grain : {0, 2, 7, 14, 28}) {
          for (const int box : {32, 64}) append(list, a, {products, box, 1, rows, images, 1, stages, false, grain});
          for (const int parts : {1, 2, 4}) {
            append(list, a, {products, channels, 1, rows, 1, parts, stages, true, grain});
          }
        }
      }
    }
  }
  return list;
}

Plan<DepthwiseBackwardArguments> plan(const DepthwiseBackwardArguments& a, const Config& config, int /*threads*/) {
  const DepthwiseWeightTilesPass pass(a, tiling_of(config), cluster_of(config));
  return {pass.workspace_bytes(),
          [pass](const DepthwiseBackwardArguments& like, const Execution& execution) { pass.run(like, execution); }};
}

}  // namespace

Kernel<DepthwiseBackwardArguments> depthwise_tiles_weight() { return {"hopper_tiles", unsupported, configs, plan}; }

}  // namespace fusedsc::gpu::hopper
#endif
