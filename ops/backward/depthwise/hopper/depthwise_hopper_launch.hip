#ifdef FUSEDSC_HOPPER
#include <algorithm>
#include <limits>
#include <vector>

#include "fusedsc/backward/depthwise/depthwise_kernels.h"
#include "fusedsc/backward/depthwise/hopper/depthwise_hopper_kernel.h"
#include "fusedsc/common/divide_up.h"
#include "fusedsc/common/gpu/hopper/hopper_host.h"
#include "fusedsc/common/gpu/hopper/hopper_kernel.h"
#include "fusedsc/common/gpu/sums/partials_launch.h"
#include "fusedsc/forward/depthwise/rows/depthwise_plan.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr const char* kName = "depthwise_conv2d_backward";

/// Of a multiprocessor at stride 2, and with float32: with more of them copies are only in each other's way.
constexpr int kUsefulWarps = 8;

/// A kernel that was compiled, and what for.
struct FusedGradientsInstance {
  DataType dtype;
  int window, stride;
  GradientsFusion fusion;
  bool whole, narrow;                   ///< narrow: tiles for few channels
  int channels, columns, grad_columns;  ///< of a tile; of a tile of grad_y
  int rows;                             ///< of partial sums
  int most_warps;                       ///< of a multiprocessor
  void (*kernel)(DepthwiseFusedGradientsParameters);
  int (*memory_bytes)(int warps);
};

template <class T, int kKernel, int kStride, int kLanes, bool kWhole, GradientsFusion kFusion>
void append(std::vector<FusedGradientsInstance>& to, DataType dtype) {
  using Gradients = DepthwiseFusedGradients<T, kKernel, kStride, kLanes, kWhole, kFusion>;
  to.push_back({dtype, kKernel, kStride, kFusion, kWhole, kLanes < 32, Gradients::kChannels, Gradients::kTileColumns,
                Gradients::kGradTileColumns, Gradients::kRows,
                kStride == 1 && sizeof(T) == 2 ? Gradients::kMostWarps : kUsefulWarps,
                hopper_kernel<Gradients, Gradients::kMostWarps * 32>, Gradients::memory_bytes});
}

template <class T, int kKernel, int kStride, GradientsFusion kFusion>
void append_tiles(std::vector<FusedGradientsInstance>& to, DataType dtype) {
  append<T, kKernel, kStride, 32, true, kFusion>(to, dtype);
  append<T, kKernel, kStride, 32, false, kFusion>(to, dtype);
  if constexpr (sizeof(T) == 2) {
    append<T, kKernel, kStride, 16, true, kFusion>(to, dtype);
    append<T, kKernel, kStride, 16, false, kFusion>(to, dtype);
  }
}

template <class T, int kKernel, int kStride>
void append_fused(std::vector<FusedGradientsInstance>& to, DataType dtype) {
  append_tiles<T, kKernel, kStride, GradientsFusion::gradient>(to, dtype);
  append_tiles<T, kKernel, kStride, GradientsFusion::clamp>(to, dtype);
  append_tiles<T, kKernel, kStride, GradientsFusion::silu>(to, dtype);
  append_tiles<T, kKernel, kStride, GradientsFusion::hardswish>(to, dtype);
  append_tiles<T, kKernel, kStride, GradientsFusion::gelu>(to, dtype);
}

template <class T>
void append_all(std::vector<FusedGradientsInstance>& to, DataType dtype) {
  append_tiles<T, 3, 1, GradientsFusion::none>(to, dtype);
  append_fused<T, 3, 1>(to, dtype);
  if constexpr (sizeof(T) == 2) append_tiles<T, 3, 2, GradientsFusion::input_alone>(to, dtype);
  append_tiles<T, 3, 2, GradientsFusion::none>(to, dtype);
  append_fused<T, 3, 2>(to, dtype);
  if constexpr (sizeof(T) == 2) {
    append_fused<T, 5, 1>(to, dtype);
    append_fused<T, 5, 2>(to, dtype);
  }
}

const std::vector<FusedGradientsInstance>& instances() {
  static const std::vector<FusedGradientsInstance> all = [] {
    std::vector<FusedGradientsInstance> list;
    append_all<Float16>(list, DataType::float16);
    append_all<BFloat16>(list, DataType::bfloat16);
    append_all<float>(list, DataType::float32);
    return list;
  }();
  return all;
}

GradientsFusion fusion_of(const DepthwiseBackwardArguments& a) {
  if (!a.grad_weight) return GradientsFusion::input_alone;
  if (!a.prologue) return a.gradient_prologue ? GradientsFusion::gradient : GradientsFusion::none;
  switch (a.prologue.activation) {
    case Activation::silu: return GradientsFusion::silu;
    case Activation::hardswish: return GradientsFusion::hardswish;
    case Activation::gelu: return GradientsFusion::gelu;
    default: return GradientsFusion::clamp;
  }
}

/// Where the images of x end exactly where the tiles do.
bool is_whole(const DepthwiseBackwardArguments& a, int tile_columns) {
  return a.grad_y.sizes[3] % tile_columns == 0 && a.x.sizes[3] == a.grad_y.sizes[3] * a.window.stride[1] &&
         a.x.sizes[2] == a.grad_y.sizes[2] * a.window.stride[0];
}

std::string unsupported(const DepthwiseBackwardArguments& a) {
  const std::string elsewhere = why_not_on_gpu(a);
  if (!elsewhere.empty()) return elsewhere;
  if (a.x.dtype == DataType::float64) return "it is not for float64";
  const bool has_alone = a.window.stride[0] != 1 && !a.prologue && !a.gradient_prologue && size_of(a.x.dtype) == 2;
  if (!a.grad_x || (!a.grad_weight && !has_alone)) {
    return "it computes two gradients at once, of x and of the weight; alone only that of x, of 16 bits at stride 2, "
           "without fusion";
  }
  if (a.grad_bias || a.grad_add) return "it has neither a bias's gradient nor grad_add";
  if (a.x.sizes[1] != a.grad_y.sizes[1]) return "it takes one output channel per channel";
  const Window& window = a.window;
  const std::int64_t kernel = window.kernel[0], stride = window.stride[0], padding = (kernel - 1) / 2;
  using Pair = std::array<std::int64_t, 2>;
  if ((kernel != 3 && kernel != 5) || window.kernel[1] != kernel || window.dilation != Pair{1, 1} ||
      window.stride[1] != stride || stride > 2) {
    return "it is for 3x3 and 5x5 windows that move by one or by two";
  }
  if (kernel == 5 && (size_of(a.x.dtype) != 2 || (!a.prologue && !a.gradient_prologue))) {
    return "of 5x5 windows it takes those of 16 bits, with fusion";
  }
  if (window.padding.left != padding || window.padding.top != padding ||
      a.grad_y.sizes[2] != divide_up(a.x.sizes[2], stride) || a.grad_y.sizes[3] != divide_up(a.x.sizes[3], stride)) {
    return "it is for a padding of half a window";
  }
  if (a.grad_y.elements() == 0) return "there are no positions";
  if (!suits_tma(a.x) || !suits_tma(a.grad_y) || !suits_tma(a.gradient_prologue.output) || !suits_tma(a.grad_x)) {
    return "a tensor is not channels_last, or its channels are no multiples of 16 bytes, or it is not aligned to 16 "
           "bytes";
  }
  return is_hopper() ? "" : "the GPU is not of compute capability 9.0";
}

/// How many warps a block has, and how the blocks share the images out.
struct Cut {
  const FusedGradientsInstance* instance = nullptr;
  int warps = 1, channel_groups = 1, splits = 1, strips = 1, strip_rows = 1, column_tiles = 1;
  std::int64_t items = 0;
  double cost = std::numeric_limits<double>::infinity();

  std::int64_t blocks() const { return std::int64_t{channel_groups} * splits; }
  std::size_t memory_bytes() const { return static_cast<std::size_t>(instance->memory_bytes(warps)); }
};

Cut cut(const FusedGradientsInstance& instance, const Sizes& y, int warps, std::int64_t strips) {
  const double start = instance.window - 1;  // rows that a strip costs beyond its own
  constexpr double kHidden = 7;              // warps per multiprocessor that wait as long as one
  Cut cut;
  cut.instance = &instance;
  cut.warps = warps;
  cut.channel_groups = static_cast<int>(divide_up(y[1], instance.channels));
  cut.column_tiles = static_cast<int>(divide_up(y[3], instance.columns));
  cut.strip_rows = static_cast<int>(divide_up(y[2], strips));
  cut.strips = static_cast<int>(divide_up(y[2], cut.strip_rows));
  cut.items = y[0] * cut.strips * cut.column_tiles;
  const std::int64_t size = multiprocessors();
  const std::int64_t resident = std::min<std::int64_t>(resident_blocks(instance.kernel, warps * 32, cut.memory_bytes()),
                                                       size * (instance.most_warps / warps));
  const std::int64_t most_splits = std::max<std::int64_t>(resident / cut.channel_groups, 1);
  const std::int64_t rounds = divide_up(cut.items, most_splits * warps);
  cut.splits = static_cast<int>(divide_up(divide_up(cut.items, rounds), warps));
  const auto warps_each = static_cast<double>(divide_up(cut.blocks(), size) * warps);
  cut.cost = static_cast<double>(rounds) * (cut.strip_rows + start) * std::max(warps_each, kHidden);
  return cut;
}

Config config_of(const Cut& cut) {
  return {{Knob::channels, cut.instance->channels}, {Knob::warps, cut.warps}, {Knob::strips, cut.strips}};
}

/// Calls visit(cut, is_short) with all that there may be, of blocks as large as can be first, and the tallest strips;
/// is_short: the strips of two rows, apart from the others.
template <class Visit>
void for_each_cut(const DepthwiseBackwardArguments& a, const Visit& visit) {
  constexpr std::int64_t kMostItems = std::numeric_limits<std::int32_t>::max() / 2;
  const Sizes& y = a.grad_y.sizes;
  for (const FusedGradientsInstance& instance : instances()) {
    if (instance.dtype != a.x.dtype || instance.fusion != fusion_of(a)) continue;
    if (instance.window != a.window.kernel[0] || instance.stride != a.window.stride[0]) continue;
    if (instance.whole != is_whole(a, instance.columns)) continue;
    const int least_warps = instance.window == 3 ? 3 : 2;  // of which a block of 64 kilobytes has room, with weights
    for (int warps = instance.most_warps; warps >= least_warps; warps /= 2) {
      if (static_cast<std::size_t>(instance.memory_bytes(warps)) > shared_memory_limit()) continue;
      for (std::int64_t strips = 1; strips <= y[2]; strips += std::max<std::int64_t>(strips / 4, 1)) {
        const Cut candidate = cut(instance, y, warps, strips);
        if (candidate.items <= kMostItems) visit(candidate, false);
      }
      if (const Cut candidate = cut(instance, y, warps, divide_up(y[2], 2)); candidate.items <= kMostItems) {
        visit(candidate, true);
      }
    }
  }
}

Configs configs(const DepthwiseBackwardArguments& a) {
  Configs list;
  for_each_cut(a, [&](const Cut& cut, bool /*is_short*/) {
    const Config config = config_of(cut);
    if (std::find(list.begin(), list.end(), config) == list.end()) list.push_back(config);
  });
  return list;
}

const float* floats_of(const ConstChannelVector& vector) { return static_cast<const float*>(vector.data); }

/// Two launches, worked out.
class FusedGradientsPass {
 public:
  FusedGradientsPass(const DepthwiseBackwardArguments& a, const Cut& cut) : cut_(cut) {
    p_.channels = static_cast<int>(a.x.sizes[1]);
    p_.input_height = static_cast<int>(a.x.sizes[2]);
    p_.input_width = static_cast<int>(a.x.sizes[3]);
    p_.output_height = static_cast<int>(a.grad_y.sizes[2]);
    p_.output_width = static_cast<int>(a.grad_y.sizes[3]);
    p_.warps = cut.warps;
    p_.splits = cut.splits;
    p_.items = static_cast<int>(cut.items);
    p_.strip_rows = cut.strip_rows;
    p_.by_channel_groups = Divisor(static_cast<std::uint32_t>(cut.channel_groups));
    p_.column_tiles = Divisor(static_cast<std::uint32_t>(cut.column_tiles));
    p_.strips = Divisor(static_cast<std::uint32_t>(cut.strips));
    const Activation activation = a.prologue.activation;
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    p_.activation = activation;
    p_.low = activation == Activation::identity ? -kInfinity : 0;
    p_.high = activation == Activation::relu6 ? 6 : kInfinity;
  }

  float* take_partials(Arena& arena) const {
    return arena.take<float>(std::int64_t{cut_.splits} * cut_.instance->rows * p_.channels);
  }

  std::size_t workspace_bytes() const {
    Arena measured(nullptr);
    take_partials(measured);
    return measured.used();
  }

  void run(const DepthwiseBackwardArguments& a, const Execution& execution) const {
    const FusedGradientsInstance& instance = *cut_.instance;
    Arena arena(execution.workspace);
    DepthwiseFusedGradientsParameters p = p_;
    p.grad_scale = floats_of(a.gradient_prologue.grad_scale);
    p.output_scale = floats_of(a.gradient_prologue.output_scale);
    p.offset = floats_of(a.gradient_prologue.offset);
    p.scale = floats_of(a.prologue.scale);
    p.shift = floats_of(a.prologue.shift);
    p.mean = floats_of(a.sums.mean);
    p.weight = a.weight;
    p.partials = take_partials(arena);
    const auto map_of_outputs = [&](const ConstTensorView& tensor) {
      return map_of_images(tensor, instance.channels, instance.grad_columns, 1);
    };
    const auto map_of_inputs = [&](const ConstTensorView& tensor) {
      return map_of_images(tensor, instance.channels, instance.columns * instance.stride, instance.stride);
    };
    p.grad_y = map_of_outputs(a.grad_y);
    p.output = a.gradient_prologue ? map_of_outputs(a.gradient_prologue.output) : p.grad_y;  // in halves then
    p.x = map_of_inputs(a.x);
    p.grad_x = map_of_inputs(a.grad_x);
    launch_following(kName, instance.kernel, cut_.blocks(), cut_.warps * 32, execution.stream, p, cut_.memory_bytes());
    if (instance.rows == 0) return;
    SumPartialsParameters sum(a.sums, a.x);
    sum.partials = p.partials;
    sum.splits = cut_.splits;
    sum.taps = instance.window * instance.window;
    sum.kernel_width = instance.window;
    sum.rows = instance.rows;
    sum.channels = p.channels;
    sum.weight = a.grad_weight;
    launch_sum_partials(kName, a.x.dtype, sum, execution.stream);
  }

 private:
  Cut cut_;
  DepthwiseFusedGradientsParameters p_;
};

Plan<DepthwiseBackwardArguments> plan(const DepthwiseBackwardArguments& a, const Config& config, int /*threads*/) {
  Cut found;
  for_each_cut(a, [&](const Cut& cut, bool /*is_short*/) {
    if (config_of(cut) == config) found = cut;
  });
  if (found.instance == nullptr) {
    throw Unsupported(std::string(kName) + ": hopper_fused_gradients: there is no kernel with " +
                      tuning::printed(config) + ", or there are too many images: split the batch");
  }
  const FusedGradientsPass pass(a, found);
  return {pass.workspace_bytes(),
          [pass](const DepthwiseBackwardArguments& like, const Execution& execution) { pass.run(like, execution); }};
}

}  // namespace

Kernel<DepthwiseBackwardArguments> depthwise_fused_gradients() {
  return {"hopper_fused_gradients", unsupported, configs, plan};
}

/// Of tiles 128 bytes wide, or 64 where 16-bit channels are no more: neighbouring groups share lines of memory, and as
/// few of them as possible is what counts; but of 5x5 windows, which take long to compute, how full the tiles are.
/// Larger blocks keep what belongs together closer together.
Config depthwise_fused_gradients_prior(const DepthwiseBackwardArguments& a) {
  const bool is_half = size_of(a.x.dtype) == 2, is_small_window = a.window.kernel[0] == 3;
  const bool is_narrow = is_half && a.grad_y.sizes[1] <= 32;
  // Measured: 3x3 at stride 2, without a prologue, strips of two rows, so that warps are where their neighbours are.
  const bool wants_short = is_half && is_small_window && a.window.stride[0] == 2 && a.grad_weight && !a.prologue &&
                           a.grad_y.elements() >= std::int64_t{16384} * multiprocessors();
  Cut best;
  for_each_cut(a, [&](const Cut& cut, bool is_short) {
    if (is_small_window && cut.instance->narrow != is_narrow) return;
    if (is_short == wants_short && cut.cost < best.cost) best = cut;
  });
  if (best.instance == nullptr) throw Unsupported(std::string(kName) + ": too many images: split the batch");
  return config_of(best);
}

}  // namespace fusedsc::gpu::hopper
#endif
