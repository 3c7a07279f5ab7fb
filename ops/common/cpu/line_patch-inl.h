/// Channel-major patches of tensors of any layout, made of several lines where lines are short; and their transposed
/// ones.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_COMMON_CPU_LINE_PATCH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_COMMON_CPU_LINE_PATCH_INL_H_
#undef FUSEDSC_COMMON_CPU_LINE_PATCH_INL_H_
#else
#define FUSEDSC_COMMON_CPU_LINE_PATCH_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include "fusedsc/common/cpu/patch-inl.h"
#include "fusedsc/common/cpu/position_lines.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// All channels of one of the tile's lines.
inline TilePart part_of_line(const ConstTensorView& x, const LineTile& tile, std::int64_t line) {
  return {.image = (tile.line + line) / x.sizes[2],
          .row = (tile.line + line) % x.sizes[2],
          .column = tile.column,
          .positions = tile.count,
          .channels = x.sizes[1]};
}

/// Whether the tile of x is a channel-major patch as it lies; `is_operand`: of which whole vectors may be read.
template <class T>
bool is_line_patch(const ConstTensorView& x, const LineTile& tile, bool is_operand) {
  if (tile.lines > 1) return false;
  return is_operand ? ChannelMajor<T>::is_operand(x, part_of_line(x, tile, 0)) : ChannelMajor<T>::is_patch(x);
}

/// Elements of the scratch memory that the functions below need for a tensor that is not laid out like either patch.
template <class T>
std::int64_t line_scratch_size(std::int64_t positions, std::int64_t channels) {
  return PositionMajor<T>::size(positions, channels);
}

/// Fills the channel-major patch `to` from x.
template <class T>
void load_lines(const ConstTensorView& x, const LineTile& tile, T* scratch, const Patch<T>& to) {
  const Layout layout = layout_of(x.sizes, x.strides);
  for (std::int64_t i = 0; i < tile.lines; ++i) {
    const TilePart part = part_of_line(x, tile, i);
    T* line = to.data + i * tile.count;
    if (layout == Layout::contiguous) {
      with_storage<T>(x.dtype, [&]<class Storage>() HWY_ATTR {
        for (std::int64_t c = 0; c < part.channels; ++c) {
          convert<T>(element<Storage>(x, part.image, c, part.row, part.column), line + c * to.pitch, part.positions);
        }
      });
    } else if (PositionMajor<T>::is_patch(x)) {
      const T* from = element<T>(x, part.image, 0, part.row, part.column);
      transpose(from, x.strides[3], line, to.pitch, part.positions, part.channels);
    } else {
      load_tile<T>(x, part, {}, scratch);
      transpose(scratch, PositionMajor<T>::pitch(part.positions, part.channels), line, to.pitch, part.positions,
                part.channels);
    }
  }
}

/// Writes the channel-major patch `from` to y.
template <class T>
void store_lines(const Patch<const T>& from, const TensorView& y, const LineTile& tile, T* scratch) {
  const Layout layout = layout_of(y.sizes, y.strides);
  for (std::int64_t i = 0; i < tile.lines; ++i) {
    const TilePart part = part_of_line(y, tile, i);
    const T* line = from.data + i * tile.count;
    if (layout == Layout::contiguous) {
      with_storage<T>(y.dtype, [&]<class Storage>() HWY_ATTR {
        for (std::int64_t c = 0; c < part.channels; ++c) {
          convert_back<T>(line + c * from.pitch, element<Storage>(y, part.image, c, part.row, part.column),
                          part.positions);
        }
      });
    } else if (PositionMajor<T>::is_patch(y)) {
      T* to = element<T>(y, part.image, 0, part.row, part.column);
      transpose(line, from.pitch, to, y.strides[3], part.channels, part.positions);
    } else {
      transpose(line, from.pitch, scratch, PositionMajor<T>::pitch(part.positions, part.channels), part.channels,
                part.positions);
      store_tile<T>(scratch, y, part);
    }
  }
}

/// Fills the position-major patch of size PositionMajor<T>::size(positions, channels) at `to` from x.
template <class T>
Patch<const T> load_positions(const ConstTensorView& x, const LineTile& tile, const AffineVectors<T>& affine, T* to) {
  const std::int64_t pitch = PositionMajor<T>::pitch(tile.count, x.sizes[1]);
  for (std::int64_t i = 0; i < tile.lines; ++i) {
    load_tile<T>(x, part_of_line(x, tile, i), affine, to + i * tile.count * pitch);
  }
  return {to, pitch};
}

/// Queues what a tile will touch.
template <class T>
void prefetch_lines(Prefetcher& prefetcher, const ConstTensorView& x, const LineTile& tile) {
  for (std::int64_t i = 0; i < tile.lines; ++i) {
    const TilePart part = part_of_line(x, tile, i);
    if (layout_of(x.sizes, x.strides) == Layout::contiguous) ChannelMajor<T>::prefetch(prefetcher, x, part);
    else PositionMajor<T>::prefetch(prefetcher, x, part);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
