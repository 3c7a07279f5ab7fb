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
  TensorPass(const DepthwiseBackwardArguments& arguments, int threads, void* workspace)
      : DepthwiseBackwardPass<T, TensorGradients<T>>({}, arguments, threads, workspace) {}
};

Plan<DepthwiseBackwardArguments> depthwise_backward_plan(const DepthwiseBackwardArguments& arguments, int threads) {
  return plan_of_pass_by_type<TensorPass>(arguments, threads);
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fusedsc {
namespace {

HWY_EXPORT(depthwise_backward_plan);

}  // namespace

Implementation<DepthwiseBackwardArguments> depthwise_backward_cpu() {
  return {
      .name = "cpu",
      .why_not =
          [](const DepthwiseBackwardArguments& arguments) { return needs_device(Device::cpu, arguments.x.device); },
      .plan = [](const DepthwiseBackwardArguments& arguments,
                 int threads) { return HWY_DYNAMIC_DISPATCH(depthwise_backward_plan)(arguments, threads); },
  };
}

}  // namespace fusedsc
#endif
