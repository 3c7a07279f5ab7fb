#ifdef FUSEDSC_HOPPER
#include <vector>

#include "fusedsc/backward/depthwise_gpu.h"
#include "fusedsc/backward/depthwise_hopper_weight_plan.h"

namespace fusedsc {
namespace gpu::hopper {
namespace {

constexpr const char* kName = "depthwise_conv2d_backward";

/// kThreads: the most that a block may have; kBlocks: that shall fit a multiprocessor then.
template <class T, int kKernel, int kStride, int kProducts, int kThreads, int kBlocks, bool kInSegments,
          bool kInClusters>
FUSEDSC_KERNEL(kThreads, kBlocks)
weight_tiles_kernel(const FUSEDSC_GRID_CONSTANT DepthwiseWeightTilesParameters p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(FUSEDSC_HOST_EXECUTOR)  // other chips of a build have none of this
  DepthwiseWeightTiles<T, kKernel, kStride, kProducts, kInSegments, kInClusters>::run(p);
#endif
}

struct Instance {
  DataType dtype;
  int kernel, stride, products;
  bool in_segments;
  DepthwiseWeightKernels<DepthwiseWeightTilesParameters> kernels;
};

template <class T, int kKernel, int kStride, int kProducts, int kThreads, int kBlocks, bool kInSegments = false>
constexpr Instance instance(DataType dtype) {
  return {dtype,
          kKernel,
          kStride,
          kProducts,
          kInSegments,
          {weight_tiles_kernel<T, kKernel, kStride, kProducts, kThreads, kBlocks, kInSegments, false>,
           weight_tiles_kernel<T, kKernel, kStride, kProducts, kThreads, kBlocks, kInSegments, true>}};
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

/// Where boxes of so few channels would be partly empty: rows of images, in segments. What measured best on an H200
/// (docs/performance_gpu_depthwise.md).
DepthwiseTiling choose_segments(const DepthwiseBackwardArguments& a) {
  const std::int64_t batch = a.x.sizes[0], width = a.grad_y.sizes[3], height = a.grad_y.sizes[2];
  const int channels = static_cast<int>(a.x.sizes[1]), parts = channels <= 16 ? 4 : channels <= 48 ? 2 : 1;
  const bool is_large = a.window.kernel[0] == 5, is_many = batch >= 64;
  const auto tiling = [&](int products, int rows, int stages, int grain) {
    return DepthwiseTiling{products, channels, 1, rows, 1, parts, stages, true, grain};
  };
  if (is_large) return tiling(2, 4, 3, 2);
  if (a.window.stride[0] == 2) {
    if (parts == 4) return tiling(2, 2, 3, 4);
    return tiling(2, parts == 2 ? 4 : 6, is_many ? 2 : 4, 7);
  }
  const bool is_even = int_divide_up(batch, parts) * int_divide_up(height, 7) * 4 >= 3 * multiprocessors();
  if (parts == 2) return is_even ? tiling(2, 3, 4, 7) : tiling(2, 2, 4, 4);
  return parts == 1 && width > 32 && is_many ? tiling(4, 3, 3, 7) : tiling(2, 4, 3, 7);
}

/// What measured best there, likewise.
DepthwiseTiling choose_tiling(const DepthwiseBackwardArguments& a) {
  if (wants_weight_segments(a)) return choose_segments(a);
  const std::int64_t batch = a.x.sizes[0], channels = a.x.sizes[1], width = a.grad_y.sizes[3];
  const int kernel = static_cast<int>(a.window.kernel[0]), stride = static_cast<int>(a.window.stride[0]);
  const bool is_large = kernel == 5, is_many = batch >= 64;
  const int wide_box = channels > 32 ? 64 : 32;
  if (batch <= 2 && width <= 16) {  // a tile is all there is
    const int rows = round_up((a.grad_y.sizes[2] - 1) * stride + kernel, stride);
    return {2, 32, 1, rows, width <= 8 ? 4 : 2, 1, 1};
  }
  const bool is_few = channels <= 128;  // then images are divided, so that all multiprocessors have work
  if (stride == 2) {
    if (width <= 8 && is_few && !is_large) return {2, 32, 1, 2, 4, 1, 4, false, 2};
    if (width <= 8) return {2, 32, 1, 4, 4, 1, 2};
    if (width <= 16 && is_large) return {2, 32, 1, 2, 2, 1, 4};
    if (width <= 16 && is_few) return {2, wide_box, 1, 2, 2, 1, 4, false, 4};
    if (width <= 16) return {2, is_many ? wide_box : 32, 1, 2, 2, 1, 4};
    if (width <= 32 && is_large) {
      if (batch < 32) return {2, 32, 1, 4, 1, 1, 4};
      return is_many ? DepthwiseTiling{2, 32, 1, 4, 1, 1, 2, false, 28}
                     : DepthwiseTiling{2, 32, 1, 2, 1, 1, 3, false, 2};
    }
    if (width <= 32) {
      return is_many ? DepthwiseTiling{2, wide_box, 1, 6, 1, 1, 3, false, 14}
                     : DepthwiseTiling{2, wide_box, 1, 4, 1, 1, 3, false, 2};
    }
    return is_large ? DepthwiseTiling{4, 32, 1, 2, 1, 1, 3}
                    : DepthwiseTiling{4, wide_box, 1, 2, 1, 1, 3, false, is_many && channels <= 64 ? 28 : 0};
  }
  if (is_large) {
    if (width <= 8) return {2, 32, 1, 4, 4, 1, 2};
    if (width <= 16) return {4, 32, 1, 3, 4, 1, 2};
    return {2, 32, 1, 4, 1, 1, 2};
  }
  const bool is_wide = channels > 400 && batch >= 32;
  if (width <= 8) {
    if (is_few && is_many) return {4, 32, 1, 4, 8, 1, 4, false, 2};
    if (!is_wide) return {2, 32, 1, 5, 4, 1, 2};
    return {4, channels <= 1024 ? 64 : 32, 1, 3, 8, 1, 2};
  }
  if (width <= 16 && is_few) return {4, 32, 1, 2, 4, 1, 3, false, 4};
  if (width <= 16 && is_wide && is_many && channels % 64 == 0) return {4, 64, 1, 2, 4, 1, 4, false, 2};
  if (width <= 16) return is_wide ? DepthwiseTiling{4, 32, 1, 4, 4, 1, 2} : DepthwiseTiling{2, 32, 1, 4, 2, 1, 2};
  if (width <= 32) return {2, wide_box, 1, 5, 1, 1, 3};
  if (width <= 64) {
    const bool is_ragged = channels % 32 != 0;
    return is_ragged ? DepthwiseTiling{4, wide_box, 1, is_many ? 3 : 4, 1, 1, 3}
                     : DepthwiseTiling{2, 32, 1, 2, 1, 1, 2};
  }
  return {7, 32, 1, 2, 1, 1, 3};
}

}  // namespace

bool wants_weight_segments(const DepthwiseBackwardArguments& a) {
  const std::int64_t channels = a.x.sizes[1], width = a.grad_y.sizes[3];
  if (width <= 16 || width > 64 || channels % 32 == 0 || channels > 72) return false;
  if (!has_dense_rows(a.x) || !has_dense_rows(a.grad_y)) return false;
  if (a.window.stride[0] == 1) return a.window.kernel[0] == 3;
  if (width > 32) return false;
  // Boxes of 64 channels do as well where they are mostly full.
  return a.window.kernel[0] == 5 ? channels > 64 : channels <= 40 || channels > 64;
}

DepthwiseWeightTilesPass DepthwiseWeightTilesPass::of(const DepthwiseBackwardArguments& a) {
  const DepthwiseTiling tiling = choose_tiling(a);
  const DepthwiseWeightTilesPass pass(a, tiling);
  // Measured: smaller tiles where otherwise some blocks would have more units than others.
  if (a.window.kernel[0] == 5 && tiling.products == 4 && tiling.images == 4 && evenness(pass.p_) < 0.75) {
    const DepthwiseWeightTilesPass other(a, {2, 32, 1, 9, 2, 1, 2});
    if (evenness(other.p_) > evenness(pass.p_)) return other;
  }
  return pass;
}

DepthwiseWeightTilesPass::DepthwiseWeightTilesPass(const DepthwiseBackwardArguments& a, const DepthwiseTiling& t,
                                                   int cluster_size)
    : window_(static_cast<int>(a.window.kernel[0])),
      stride_(static_cast<int>(a.window.stride[0])),
      box_channels_(t.box_channels) {
  for (const Instance& instance : kInstances) {
    if (instance.dtype == a.x.dtype && instance.kernel == window_ && instance.stride == stride_ &&
        instance.products == t.products && instance.in_segments == t.in_segments) {
      kernels_ = instance.kernels;
    }
  }
  if (kernels_.alone == nullptr) throw Unsupported(std::string(kName) + ": no kernel of these tiles");
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

std::string why_no_weight_tiles(const DepthwiseBackwardArguments& a) {
  if (!is_hopper()) return "the GPU is not of compute capability 9.0";
  if (size_of(a.x.dtype) != 2) return "it is for float16 and bfloat16";
  const std::string window = why_no_tiles(a.x.sizes, a.grad_y.sizes, a.window);
  if (!window.empty()) return window;
  if (a.prologue || a.gradient_prologue) return "it has no prologues";
  if (a.grad_y.elements() == 0) return "there are no positions";
  if (!suits_copy_engine(a.x) || !suits_copy_engine(a.grad_y)) return "a tensor does not suit the copy engine";
  return {};
}

}  // namespace gpu::hopper
}  // namespace fusedsc
#endif
