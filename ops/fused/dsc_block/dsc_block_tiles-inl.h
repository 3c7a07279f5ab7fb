/// Tiles of the block's middle: d recomputed (or loaded, where it was stored), and what the pointwise half makes of it.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_FUSED_DSC_BLOCK_DSC_BLOCK_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_FUSED_DSC_BLOCK_DSC_BLOCK_TILES_INL_H_
#undef FUSEDSC_FUSED_DSC_BLOCK_DSC_BLOCK_TILES_INL_H_
#else
#define FUSEDSC_FUSED_DSC_BLOCK_DSC_BLOCK_TILES_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include "fusedsc/common/cpu/fusion-inl.h"
#include "fusedsc/common/cpu/slices.h"
#include "fusedsc/forward/depthwise/cpu/depthwise_rows-inl.h"
#include "fusedsc/forward/pointwise/cpu/pointwise_plan-inl.h"
#include "fusedsc/fused/dsc_block/dsc_block_tiling-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// Of the depthwise half: d's channels stay together.
template <class T>
DepthwiseTiling depthwise_tiling(const DepthwiseArguments& depthwise, const DscTiling& tiling) {
  DepthwiseTiling own = prior_tiling<T>(depthwise, true);
  own.ahead = tiling.ahead;
  return own;
}

/// The middle of the block: how d comes about, and BatchNorm over it. One per pass, shared by its lanes.
template <class T>
struct DscMiddle {
  DepthwiseArguments depthwise;
  ConstTensorView stored;  ///< d, where it was stored
  DepthwisePlan<T> plan;
  DepthwiseParameters<T> parameters;
  Activation activation;
  T* scale;
  T* shift;
  std::int64_t tile_rows;

  template <class Block>
  DscMiddle(const Block& block, const DscTiling& tiling, Arena& arena)
      : depthwise(depthwise_of(block)),
        stored(block.d),
        plan(depthwise, 1, depthwise_tiling<T>(depthwise, tiling)),
        parameters(plan.blocks, plan.multiplier, block.window, static_cast<bool>(block.dw_bias), {}, arena),
        activation(block.activation),
        scale(arena.take<T>(pitch())),
        shift(arena.take<T>(pitch())),
        tile_rows(tiling.rows) {}

  template <class Block>
  void pack(const Block& block) {
    parameters.pack(depthwise.weight, depthwise.bias, {});
    const DataType dtype = accumulation_type(depthwise.x.dtype);
    if (block.scale) {
      copy_channels(block.scale, T(1), 0, channels(), 1, scale);
      copy_channels(block.shift, T(0), 0, channels(), 1, shift);
    } else {
      batch_norm_finalize(affine_of(normalisation_of(block), {scale, dtype, channels()}, {shift, dtype, channels()}),
                          {});
    }
    std::fill(scale + channels(), scale + pitch(), T(0));
    std::fill(shift + channels(), shift + pitch(), T(0));
  }

  std::int64_t rows() const { return depthwise.y.sizes[2]; }
  std::int64_t columns() const { return depthwise.y.sizes[3]; }
  std::int64_t channels() const { return depthwise.weight.sizes[0]; }
  std::int64_t pitch() const { return plan.blocks.pitch; }
  std::int64_t tile_positions() const { return tile_rows * columns(); }
  std::int64_t tile_size() const { return tile_positions() * pitch(); }
  AffineVectors<T> affine() const { return {scale, shift, activation}; }
};

/// One lane's source of d.
template <class T>
class DscDepthwise {
 public:
  DscDepthwise(const DscMiddle<T>& middle, Arena& arena)
      : middle_(middle), rows_(middle.depthwise, middle.plan, middle.parameters, arena) {}

  /// Fills tile[count * columns][pitch] with d's rows [row, row + count) of an image.
  void fill(std::int64_t image, std::int64_t row, std::int64_t count, T* tile) {
    const std::int64_t row_size = middle_.columns() * middle_.pitch();
    if (middle_.stored) {
      TilePart part{.image = image, .positions = middle_.columns(), .channels = middle_.channels()};
      for (std::int64_t r = 0; r < count; ++r) {
        part.row = row + r;
        load_tile<T>(middle_.stored, part, {}, tile + r * row_size);
      }
      return;
    }
    if (image != image_) rows_.begin(image, 0);
    image_ = image;
    Moments<T> none;
    for (std::int64_t r = 0; r < count; r += middle_.plan.step_rows) {
      T* outputs[kDepthwiseRows] = {tile + r * row_size, tile + (r + 1) * row_size};
      rows_.compute(row + r, std::min(middle_.plan.step_rows, count - r), {outputs, middle_.pitch()}, none);
    }
  }

 private:
  const DscMiddle<T>& middle_;
  DepthwiseRows<T> rows_;
  std::int64_t image_ = -1;
};

/// A tensor's rows as one operand of a matrix product: in place where neighbouring positions lie evenly apart and need
/// no conversion, else through a tile.
template <class T>
struct PositionRows {
  ConstTensorView view;
  bool in_place;

  explicit PositionRows(const ConstTensorView& view_) : view(view_) {
    const bool same_type = view.dtype == (std::is_same_v<T, double> ? DataType::float64 : DataType::float32);
    const bool even = view.sizes[2] == 1 || view.strides[2] == view.sizes[3] * view.strides[3];
    in_place = same_type && (view.strides[1] == 1 || view.sizes[1] == 1) && even;
  }

  std::int64_t tile_pitch() const { return round_up(view.sizes[1], kLanes<T>); }
  std::int64_t pitch() const { return in_place ? view.strides[3] : tile_pitch(); }
  /// What a tile of `rows` rows needs.
  std::int64_t tile_size(std::int64_t rows) const { return in_place ? 0 : rows * view.sizes[3] * tile_pitch(); }

  /// Rows [row, row + count) of an image; `tile` is filled unless they can be read in place.
  const T* load(std::int64_t image, std::int64_t row, std::int64_t count, T* tile) const {
    if (in_place) return element<T>(view, image, 0, row, 0);
    for (std::int64_t r = 0; r < count; ++r) {
      load_tile<T>(view, part_of_row(image, row + r), {}, tile + r * view.sizes[3] * tile_pitch());
    }
    return tile;
  }

  TilePart part_of_row(std::int64_t image, std::int64_t row) const {
    return {.image = image, .row = row, .positions = view.sizes[3], .channels = view.sizes[1]};
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
