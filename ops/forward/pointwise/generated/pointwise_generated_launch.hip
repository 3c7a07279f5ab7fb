#include "fusedsc/common/divide_up.h"
#include "fusedsc/common/gpu/sums/partials_launch.h"
#include "fusedsc/forward/pointwise/generated/pointwise_generated.h"
#include "fusedsc/forward/pointwise/generated/pointwise_generated_order.h"
#include "fusedsc/forward/pointwise/pointwise_kernels.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_arguments.h"
#include "fusedsc/runtime/arena.h"
#include "fusedsc/tuning/compiler/generated_kernel.h"

namespace fusedsc::gpu {
namespace {

constexpr const char* kName = "pointwise_conv2d";

generated::PointwiseTarget target_of(const PointwiseArguments& a) {
  const bool inner = channels_inner(a.x, a.y);
  const bool elements = has_elements(activation_matrix(a.x, a.groups, inner).run_bytes, a.x.sizes[1],
                                     output_matrix(a.y, a.groups, inner).run_bytes, a.y.sizes[1]);
  return {architecture(),
          multiprocessors(),
          kCopyStages,
          uses_tf32(DataType::float32, true),
          inner,
          elements,
          fragment_rows_of(pointwise_fragments().unsupported(a), fragment_problem_of(a).needs.packed)};
}

/// A launch, worked out but for addresses.
class Pass {
 public:
  Pass(const PointwiseArguments& a, const Config& config)
      : target_(target_of(a)),
        text_(generated::pointwise_text(a, target_, config)),
        kernel_(text_.text, text_.shared_memory_bytes) {
    const std::int64_t pixels = a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3], channels = a.y.sizes[1] / a.groups;
    const std::int64_t pixel_tiles = divide_up(pixels, text_.positions);
    const std::int64_t channel_tiles = divide_up(channels, text_.channels);
    // Blocks of tiles go on from one to the next, in equal shares; those of a channel distribution have one.
    std::int64_t splits = std::max<std::int64_t>(pixel_tiles, 1);
    if (!tuning::is_pointwise_tiling(config)) {
      const std::int64_t most =
          std::max<std::int64_t>(kernel_.resident_blocks(text_.threads) / (channel_tiles * a.groups), 1);
      splits = divide_up(splits, divide_up(splits, std::min(most, splits)));
    }
    PointwiseProductParameters& product = planned_.product;
    product.pixels = static_cast<int>(pixels);
    product.depth = static_cast<int>(a.x.sizes[1] / a.groups);
    product.channels = static_cast<int>(channels);
    product.groups = static_cast<int>(a.groups);
    product.pixel_tiles = static_cast<int>(pixel_tiles);
    product.channel_tiles = static_cast<int>(channel_tiles);
    product.splits = static_cast<int>(splits);
    product.by_channel_tiles = Divisor(static_cast<std::uint32_t>(channel_tiles));
    product.by_splits = Divisor(static_cast<std::uint32_t>(splits));
  }

  std::size_t workspace_bytes(const PointwiseArguments& a) const {
    Arena arena(nullptr);
    take_partials(a, arena);
    return arena.used();
  }

  void run(const PointwiseArguments& a, const Execution& execution) const {
    Arena arena(execution.workspace);
    PointwiseParameters p = planned_;
    aim(p, a, target_.channels_inner, take_partials(a, arena));
    kernel_.launch(kName, p.product.blocks(), text_.threads, execution.stream, p);
    if (!a.statistics) return;
    launch_merge_moments(kName, accumulation_type(a.x.dtype), p.partials, p.product.splits, a.statistics,
                         a.y.sizes[0] * a.y.sizes[2] * a.y.sizes[3], execution.stream);
  }

 private:
  void* take_partials(const PointwiseArguments& a, Arena& arena) const {
    const auto bytes = static_cast<std::int64_t>(size_of(accumulation_type(a.x.dtype)));
    return a.statistics ? arena.take<char>(3 * planned_.product.splits * a.y.sizes[1] * bytes) : nullptr;
  }

  generated::PointwiseTarget target_;
  generated::GeneratedText text_;
  GeneratedKernel kernel_;
  PointwiseParameters planned_;
};

Configs configs(const PointwiseArguments& a) {
  return laid_out(generated::pointwise_configs(a, target_of(a)), fragment_problem_of(a));
}

std::string unsupported(const PointwiseArguments& a) {
  if (std::string elsewhere = needs_device(Device::gpu, a.x.device); !elsewhere.empty()) return elsewhere;
  return why_not_generated(too_large_for_pointwise(a.x.sizes, a.y.sizes), configs, a);
}

Plan<PointwiseArguments> plan(const PointwiseArguments& a, const Config& config, int /*threads*/) {
  const Pass pass(a, config);
  return {pass.workspace_bytes(a),
          [pass](const PointwiseArguments& like, const Execution& execution) { pass.run(like, execution); }};
}

std::string source(const PointwiseArguments& a, const Config& config) {
  return generated::pointwise_text(a, target_of(a), config).text;
}

}  // namespace

Kernel<PointwiseArguments> pointwise_generated() { return {"generated", unsupported, configs, plan, source}; }

}  // namespace fusedsc::gpu
