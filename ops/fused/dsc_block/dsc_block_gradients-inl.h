/// The gradients in the block's middle, a few rows at a time: at the activation, and, for pass B, at d.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_FUSED_DSC_BLOCK_DSC_BLOCK_GRADIENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_FUSED_DSC_BLOCK_DSC_BLOCK_GRADIENTS_INL_H_
#undef FUSEDSC_FUSED_DSC_BLOCK_DSC_BLOCK_GRADIENTS_INL_H_
#else
#define FUSEDSC_FUSED_DSC_BLOCK_DSC_BLOCK_GRADIENTS_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include "fusedsc/fused/dsc_block/dsc_block_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// ga = W^T gy: the gradient at the activation's output.
template <class T>
struct ActivationGradient {
  PackedWeight<T> weight;
  PositionRows<T> grad_y;
  std::int64_t pitch;  ///< of ga's tiles

  ActivationGradient(const DscBlockBackwardArguments& block, const DscMiddle<T>& middle, const DscTiling& tiling,
                     Arena& arena)
      : weight(block.pw_weight, 1, false, PackedWeight<T>::Role::vectors, arena, tiling.blocks),
        grad_y(block.grad_y),
        pitch(middle.pitch()) {}

  /// Rows [row, row + count) to a tile; `rows_tile` is scratch for grad_y, of which the rows in use are returned.
  const T* fill(std::int64_t image, std::int64_t row, std::int64_t count, T* rows_tile, T* tile) const {
    Gemm<T> product;
    product.rows = count * grad_y.view.sizes[3];
    product.columns = pitch;
    product.depth = grad_y.view.sizes[1];
    product.a = grad_y.load(image, row, count, rows_tile);
    product.a_row = grad_y.pitch();
    weight.set_vectors(0, product);
    product.c = tile;
    product.c_row = pitch;
    Prefetcher none;
    gemm(product, none);
    return product.a;
  }
};

/// Backward pass B's output gradients: BatchNorm's backward over grad_bn (loaded, or from a product again) and d
/// (loaded, or computed again), a few rows at a time.
template <class T>
struct RecomputedGradients {
  struct Context {
    const DscBlockBackwardArguments& block;
    const MiddleGradient& coefficients;
    const DscTiling& tiling;
  };
  static constexpr bool kOneBlock = true;

  const Context context;
  DscMiddle<T> middle;
  ActivationGradient<T> gradient;
  T* grad_scale;
  T* output_scale;
  T* offset;

  RecomputedGradients(const Context& context_, const DepthwiseBackwardArguments&, const ChannelBlocks&, Arena& arena)
      : context(context_),
        middle(context.block, context.tiling, arena),
        gradient(context.block, middle, context.tiling, arena),
        grad_scale(arena.take<T>(middle.pitch())),
        output_scale(arena.take<T>(middle.pitch())),
        offset(arena.take<T>(middle.pitch())) {}

  void pack(const Execution& execution) {
    middle.pack(context.block);
    gradient.weight.pack(execution);
    copy_channels(context.coefficients.grad_scale, T(0), 0, middle.channels(), 1, grad_scale);
    copy_channels(context.coefficients.output_scale, T(0), 0, middle.channels(), 1, output_scale);
    copy_channels(context.coefficients.offset, T(0), 0, middle.channels(), 1, offset);
  }

  struct Lane {
    const RecomputedGradients& gradients;
    DscDepthwise<T> depthwise;
    T* tile;      ///< d
    T* gradient;  ///< the gradient at d, of the rows [first, last) of `image`
    T* grad_y;
    std::int64_t image = -1, first = 0, last = 0;

    Lane(const RecomputedGradients& gradients_, Arena& arena)
        : gradients(gradients_),
          depthwise(gradients.middle, arena),
          tile(arena.take<T>(gradients.middle.tile_size())),
          gradient(arena.take<T>(gradients.middle.tile_size())),
          grad_y(arena.take<T>(gradients.gradient.grad_y.tile_size(gradients.middle.tile_rows))) {}

    void load(const TilePart& part, std::int64_t, T* to) {
      if (part.image != image || part.row < first || part.row >= last) fill(part.image, part.row);
      const DscMiddle<T>& middle = gradients.middle;
      const std::int64_t row_size = middle.columns() * middle.pitch();
      std::copy_n(gradient + (part.row - first) * row_size, part.positions * middle.pitch(), to);
    }

    void fill(std::int64_t n, std::int64_t row) {
      const DscMiddle<T>& middle = gradients.middle;
      const DscBlockBackwardArguments& block = gradients.context.block;
      image = n;
      first = row;
      last = std::min(row + middle.tile_rows, middle.rows());
      const std::int64_t count = last - first, pitch = middle.pitch(), positions = count * middle.columns();
      if (block.training || !block.grad_bn) depthwise.fill(n, first, count, tile);
      if (block.grad_bn) {
        for (std::int64_t r = 0; r < count; ++r) {
          load_tile<T>(block.grad_bn,
                       {.image = n, .row = first + r, .positions = middle.columns(), .channels = middle.channels()}, {},
                       gradient + r * middle.columns() * pitch);
        }
      } else {
        gradients.gradient.fill(n, first, count, grad_y, gradient);
        apply_activation_backward<PositionMajor<T>, T>(Patch<T>{gradient, pitch}, {tile, pitch}, middle.affine(), {},
                                                       {positions, pitch});
      }
      const Patch<T> grad{gradient, pitch};
      const Patch<const T> output{block.training ? tile : gradient, pitch};  // see gradient_prologue_of
      apply_gradient_prologue<PositionMajor<T>, T>(
          grad, output, {gradients.grad_scale, gradients.output_scale, gradients.offset, {}}, {positions, pitch}, grad);
    }
  };
};

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
