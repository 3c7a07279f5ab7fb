#include "fusedsc/backward/depthwise/cpu/depthwise_cpu.h"

#include "fusedsc/common/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fusedsc/backward/depthwise/cpu/depthwise_cpu.cpp"
#include "hwy/foreach_target.h"

#include "fusedsc/backward/depthwise/cpu/depthwise_backward_pass-inl.h"
#include "fusedsc/runtime/pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// Output gradients loaded from a tensor, through the gradient prologue where there is one.
template <class T>
struct TensorGradients {
  struct Context {};
  static constexpr bool kOneBlock = false;

  const DepthwiseBackwardArguments& arguments;
  ChannelBlocks blocks;
  T* grad_scale = nullptr;  ///< the prologue's vectors, packed by block
  T* output_scale = nullptr;
  T* offset = nullptr;

  TensorGradients(const Context&, const DepthwiseBackwardArguments& arguments_, const ChannelBlocks& blocks_,
                  Arena& arena)
      : arguments(arguments_), blocks(blocks_) {
    if (!arguments.gradient_prologue) return;
    for (T** vector : {&grad_scale, &output_scale, &offset}) *vector = arena.take<T>(blocks.count() * blocks.pitch);
  }

  void pack(const Execution&) {
    if (grad_scale == nullptr) return;
    const GradientPrologue& prologue = arguments.gradient_prologue;
    for (std::int64_t b = 0; b < blocks.count(); ++b) {
      const std::int64_t first = blocks.first(b), size = blocks.size(b), at = b * blocks.pitch;
      copy_channels(prologue.grad_scale, T(0), first, size, 1, grad_scale + at);
      copy_channels(prologue.output_scale, T(0), first, size, 1, output_scale + at);
      copy_channels(prologue.offset, T(0), first, size, 1, offset + at);
    }
  }

  struct Lane {
    const TensorGradients& gradients;
    T* scratch;

    Lane(const TensorGradients& gradients_, Arena& arena)
        : gradients(gradients_),
          scratch(arena.take<T>(gradients.arguments.gradient_prologue
                                    ? gradients.arguments.grad_y.sizes[3] * gradients.blocks.pitch
                                    : 0)) {}

    void load(const TilePart& part, std::int64_t block, T* to) {
      GradientVectors<T> vectors;
      if (gradients.grad_scale != nullptr) {
        const std::int64_t at = block * gradients.blocks.pitch;
        vectors = {gradients.grad_scale + at, gradients.output_scale + at, gradients.offset + at,
                   gradients.arguments.gradient_prologue.output};
      }
      load_gradient<T>(gradients.arguments.grad_y, part, vectors, to, scratch);
    }
  };
};

template <class T>
struct TensorPass : DepthwiseBackwardPass<T, TensorGradients<T>> {
  TensorPass(const DepthwiseBackwardArguments& arguments, int threads, void* workspace,
             const DepthwiseBackwardTiling& tiling)
      : DepthwiseBackwardPass<T, TensorGradients<T>>({}, arguments, threads, workspace, tiling) {}
};

Config depthwise_backward_prior(const DepthwiseBackwardArguments& arguments) {
  return (arguments.x.dtype == DataType::float64 ? prior_tiling<double>(arguments) : prior_tiling<float>(arguments))
      .config();
}

template <class T>
Configs depthwise_backward_configs(const DepthwiseBackwardArguments& arguments) {
  const DepthwiseBackwardTiling prior = prior_tiling<T>(arguments);
  const std::int64_t channels = arguments.weight.sizes[0];
  tuning::Variants variants(prior.config());
  // Channels and splits, of which several may come to the same.
  std::vector<std::pair<std::int64_t, std::int64_t>> seen;
  for (const std::int64_t splits : {prior.splits, prior.splits / 4, std::int64_t{1}}) {
    for (const std::int64_t most : {prior.channels, prior.channels / 2, prior.channels * 2}) {
      DepthwiseBackwardTiling tiling = prior;
      if (most != prior.channels) tiling.channels = std::clamp<std::int64_t>(round_up(most, kLanes<T>), 1, channels);
      tiling.splits = splits;
      const Slices slices(arguments.x.sizes[0], arguments.x.sizes[2], 1, splits);
      const std::int64_t multiplier = channel_multiplier(arguments.x, arguments.weight);
      const std::pair cut(slices.count(),
                          channel_blocks<T>(channels, multiplier, tiling.channels, slices.missing_parts()).block);
      if (std::find(seen.begin(), seen.end(), cut) != seen.end()) continue;
      seen.push_back(cut);
      variants.add(tiling.config());
    }
  }
  for (const std::int64_t rows : {1, 2, 4, 8}) {
    if (rows > std::min(most_gradient_rows(arguments.window), arguments.x.sizes[2])) continue;
    DepthwiseBackwardTiling other = prior;
    other.rows = rows;
    variants.add(other.config());
    other.splits /= 4;
    if (other.rows != prior.rows) variants.add(other.config());
  }
  return variants.configs();
}

Configs depthwise_backward_all(const DepthwiseBackwardArguments& arguments) {
  return arguments.x.dtype == DataType::float64 ? depthwise_backward_configs<double>(arguments)
                                                : depthwise_backward_configs<float>(arguments);
}

Plan<DepthwiseBackwardArguments> depthwise_backward_plan(const DepthwiseBackwardArguments& arguments,
                                                         const Config& config, int threads) {
  return plan_of_pass_by_type<TensorPass>(arguments, threads, DepthwiseBackwardTiling(config));
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fusedsc {
namespace {

HWY_EXPORT(depthwise_backward_prior);
HWY_EXPORT(depthwise_backward_all);
HWY_EXPORT(depthwise_backward_plan);

tuning::Configs configs(const DepthwiseBackwardArguments& a) { return HWY_DYNAMIC_DISPATCH(depthwise_backward_all)(a); }

}  // namespace

tuning::Config depthwise_backward_cpu_prior(const DepthwiseBackwardArguments& a) {
  return HWY_DYNAMIC_DISPATCH(depthwise_backward_prior)(a);
}

tuning::Kernel<DepthwiseBackwardArguments> depthwise_backward_cpu() {
  return {
      .name = "cpu",
      .unsupported = [](const DepthwiseBackwardArguments& a) { return needs_device(Device::cpu, a.x.device); },
      .configs = configs,
      .plan =
          [](const DepthwiseBackwardArguments& a, const tuning::Config& config, int threads) {
            tuning::check_listed("cpu", a, config, depthwise_backward_cpu_prior(a), configs);
            return HWY_DYNAMIC_DISPATCH(depthwise_backward_plan)(a, config, threads);
          },
  };
}

}  // namespace fusedsc
#endif
