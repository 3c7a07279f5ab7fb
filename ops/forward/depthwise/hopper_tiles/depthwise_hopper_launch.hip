#ifdef FUSEDSC_HOPPER
#include <vector>

#include "fusedsc/common/gpu/hopper/hopper_kernel.h"
#include "fusedsc/common/gpu/sums/partials_launch.h"
#include "fusedsc/forward/depthwise/depthwise_kernels.h"
#include "fusedsc/forward/depthwise/hopper_tiles/depthwise_hopper_plan.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr const char* kName = "depthwise_conv2d";

using TilesKernel = void (*)(DepthwiseTilesParameters);

struct Instance {
  DataType dtype;
  int kernel, stride, products, threads;
  DepthwiseFusion fusion;
  TilesKernel run;
};

template <class T, int kKernel, int kStride, int kProducts, int kThreads, int kBlocks>
void append(std::vector<Instance>& to, DataType dtype) {
  using enum DepthwiseFusion;
  const auto add = [&](DepthwiseFusion fusion, TilesKernel kernel) {
    to.push_back({dtype, kKernel, kStride, kProducts, kThreads, fusion, kernel});
  };
  add(training, hopper_kernel<DepthwiseTiles<T, kKernel, kStride, kProducts, training>, kThreads, kBlocks>);
  add(eval, hopper_kernel<DepthwiseTiles<T, kKernel, kStride, kProducts, eval>, kThreads, 1>);
}

template <class T>
void append_all(std::vector<Instance>& to, DataType dtype) {
  // Kernel, stride, products; threads and blocks.
  append<T, 3, 1, 1, 288, 2>(to, dtype);
  append<T, 3, 1, 2, 288, 2>(to, dtype);
  append<T, 3, 1, 4, 160, 3>(to, dtype);
  append<T, 3, 1, 7, 160, 2>(to, dtype);
  append<T, 3, 2, 1, 288, 2>(to, dtype);
  append<T, 3, 2, 2, 288, 2>(to, dtype);
  append<T, 3, 2, 4, 160, 3>(to, dtype);
  append<T, 5, 1, 1, 160, 2>(to, dtype);
  append<T, 5, 1, 2, 160, 2>(to, dtype);
  append<T, 5, 1, 4, 160, 2>(to, dtype);
  append<T, 5, 2, 1, 160, 2>(to, dtype);
  append<T, 5, 2, 2, 160, 2>(to, dtype);
}

const std::vector<Instance>& instances() {
  static const std::vector<Instance> all = [] {
    std::vector<Instance> list;
    append_all<Float16>(list, DataType::float16);
    append_all<BFloat16>(list, DataType::bfloat16);
    return list;
  }();
  return all;
}

DepthwiseFusion fusion_of(const DepthwiseArguments& a) {
  return a.epilogue ? DepthwiseFusion::eval : DepthwiseFusion::training;
}

const Instance* instance_for(const DepthwiseArguments& a, const DepthwiseTiling& t) {
  for (const Instance& instance : instances()) {
    if (instance.dtype == a.x.dtype && instance.kernel == a.window.kernel[0] && instance.stride == a.window.stride[0] &&
        instance.products == t.products && instance.fusion == fusion_of(a)) {
      return &instance;
    }
  }
  return nullptr;
}

/// Whether there is a kernel of such tiles, apart from the memory that they take.
bool has_tiles(const DepthwiseArguments& a, const DepthwiseTiling& t) {
  const Instance* const instance = instance_for(a, t);
  return instance != nullptr && (t.box_channels == 32 || t.box_channels == 64) &&
         (t.box_channels / 8 + 1) * 32 <= instance->threads && t.rows > 0 && t.rows % instance->stride == 0 &&
         t.images == images_of_products(t.products, a.y.sizes[3]) && t.image_parts == 1 && t.stages > 0 &&
         !t.in_segments;
}

/// All but for addresses and how blocks share it out.
DepthwiseTilesParameters cut(const DepthwiseArguments& a, const DepthwiseTiling& t) {
  const int stride = static_cast<int>(a.window.stride[0]);
  DepthwiseTilesParameters p;
  static_cast<DepthwiseTilesShape&>(p) = cut_tiles(a.x.sizes, a.y.sizes, a.window, t);
  p.activation = a.prologue.activation;
  p.epilogue_activation = a.epilogue.activation;
  p.has_prologue = static_cast<bool>(a.prologue);
  const int out_image_bytes = p.out_pitch * p.box_bytes;
  p.out_bytes = round_up(p.boxes * (p.rows / stride) * p.images * out_image_bytes, 1024);
  p.out_half_bytes = p.halves_are_images() ? out_image_bytes : 8 * p.box_bytes;
  p.out_product_bytes = p.products_are_images() && !p.halves_are_images() ? out_image_bytes : 2 * p.out_half_bytes;
  return p;
}

}  // namespace

DepthwiseTilesPass::DepthwiseTilesPass(const DepthwiseArguments& a, const DepthwiseTiling& t)
    : kernel_(nullptr), box_channels_(t.box_channels) {
  if (!has_tiles(a, t)) {
    throw Unsupported("depthwise_conv2d: hopper_tiles: there is no kernel with " + tuning::printed(config_of(t)));
  }
  kernel_ = instance_for(a, t)->run;
  p_ = cut(a, t);
  while (p_.memory_bytes() > kMemoryLimit && p_.stages > 1) --p_.stages;
  if (p_.memory_bytes() > kMemoryLimit) {
    throw Unsupported("depthwise_conv2d: hopper_tiles: its tiles do not fit shared memory");
  }
  share_out(p_, resident_blocks(kernel_, (p_.warps() + 1) * 32, static_cast<std::size_t>(p_.memory_bytes())));
}

float* DepthwiseTilesPass::take_partials(const DepthwiseArguments& a, Arena& arena) const {
  return a.statistics ? arena.take<float>(std::int64_t{3} * p_.splits * p_.channels) : nullptr;
}

std::size_t DepthwiseTilesPass::workspace_bytes(const DepthwiseArguments& a) const {
  Arena measured(nullptr);
  take_partials(a, measured);
  return measured.used();
}

void DepthwiseTilesPass::run(const DepthwiseArguments& a, const Execution& execution) const {
  Arena arena(execution.workspace);
  DepthwiseTilesParameters p = p_;
  p.x = map_of_images(a.x, box_channels_, p.pitch, p.rows, p.images, true);
  p.has_y = a.y.data != nullptr;
  if (p.has_y) p.y = map_of_images(ConstTensorView(a.y), box_channels_, p.out_pitch, 1, p.images, true);
  p.raw_x = a.x;
  p.weight = a.weight;
  p.residual = a.epilogue.residual;
  p.bias = a.bias.data;
  p.scale = static_cast<const float*>(a.prologue.scale.data);
  p.shift = static_cast<const float*>(a.prologue.shift.data);
  p.epilogue_scale = static_cast<const float*>(a.epilogue.scale.data);
  p.epilogue_shift = static_cast<const float*>(a.epilogue.shift.data);
  p.partials = take_partials(a, arena);
  launch_following(kName, kernel_, std::int64_t{channel_groups(p)} * p.splits, (p.warps() + 1) * 32, execution.stream,
                   p, static_cast<std::size_t>(p.memory_bytes()));
  if (!a.statistics) return;
  launch_merge_moments("depthwise_conv2d: statistics", DataType::float32, p.partials, p.splits, a.statistics,
                       a.y.sizes[0] * a.y.sizes[2] * a.y.sizes[3], execution.stream);
}

namespace {

std::string unsupported(const DepthwiseArguments& a) {
  const std::string elsewhere = why_not_on_gpu(a);
  if (!elsewhere.empty()) return elsewhere;
  if (!is_hopper()) return "the GPU is not of compute capability 9.0";
  if (size_of(a.x.dtype) != 2) return "it is for float16 and bfloat16";
  const std::string window = why_no_tiles(a.x.sizes, a.y.sizes, a.window);
  if (!window.empty()) return window;
  if (a.y.elements() == 0) return "there is nothing to compute";
  const ConstTensorView& residual = a.epilogue.residual;
  if (!suits_tma(a.x) || !suits_tma(ConstTensorView(a.y)) || !suits_tma(residual)) {
    return "channels of x or y are not neighbours, or no multiples of 8, or not aligned to 16 bytes";
  }
  return {};
}

Configs configs(const DepthwiseArguments& a) {
  Configs list;
  const std::int64_t width = a.y.sizes[3], height = a.y.sizes[2];
  for (const int products : {1, 2, 4, 7}) {
    for (const int box : {32, 64}) {
      for (const int rows : {2, 3, 4, 6, 8, 9, 10}) {
        for (const int stages : {2, 3, 4}) {
          for (const int grain : {0, 3, 7, 14}) {
            const DepthwiseTiling t{products, box,    1,     rows, images_of_products(products, width),
                                    1,        stages, false, grain};
            if (grain >= height || !has_tiles(a, t)) continue;
            if (cut(a, t).memory_bytes() <= kMemoryLimit) list.push_back(config_of(t));
          }
        }
      }
    }
  }
  return list;
}

Plan<DepthwiseArguments> plan(const DepthwiseArguments& a, const Config& config, int /*threads*/) {
  const DepthwiseTilesPass pass(a, tiling_of(config));
  return {pass.workspace_bytes(a),
          [pass](const DepthwiseArguments& like, const Execution& execution) { pass.run(like, execution); }};
}

}  // namespace

Kernel<DepthwiseArguments> depthwise_tiles() { return {"hopper_tiles", unsupported, configs, plan}; }

}  // namespace fusedsc::gpu::hopper
#endif
