/// Patches made of several lines where lines are short: of either order, as the tensor's layout has it; and
/// channel-major ones, and their transposed ones, of tensors of any layout.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_FORWARD_POINTWISE_CPU_LINE_PATCH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_FORWARD_POINTWISE_CPU_LINE_PATCH_INL_H_
#undef FUSEDSC_FORWARD_POINTWISE_CPU_LINE_PATCH_INL_H_
#else
#define FUSEDSC_FORWARD_POINTWISE_CPU_LINE_PATCH_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include "fusedsc/common/cpu/patch-inl.h"
#include "fusedsc/common/cpu/position_lines.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// Some channels of one of the tile's lines.
inline TilePart part_of_line(const ConstTensorView& x, const LineTile& tile, std::int64_t line, const Range& channels) {
  return {.image = (tile.line + line) / x.sizes[2],
          .row = (tile.line + line) % x.sizes[2],
          .column = tile.column,
          .positions = tile.count,
          .channel = channels.begin,
          .channels = channels.size()};
}

/// All of them.
inline TilePart part_of_line(const ConstTensorView& x, const LineTile& tile, std::int64_t line) {
  return part_of_line(x, tile, line, {0, x.sizes[1]});
}

/// Element of a patch where a line of the tile begins.
template <class Major>
std::int64_t start_of_line(const LineTile& tile, std::int64_t line, std::int64_t pitch) {
  return line * tile.count * (Major::kChannelMajor ? 1 : pitch);
}

/// Some channels of x as a patch to read: in place if that is possible and the tile is one line, else loaded into
/// `buffer`. A channel-major tile must be one line.
template <class Major, class T>
Patch<const T> read_patch_of_lines(const ConstTensorView& x, const LineTile& tile, const Range& channels, bool in_place,
                                   T* buffer, const AffineVectors<T>& affine = {}) {
  if (in_place && tile.lines == 1) return patch_of<Major, const T>(x, part_of_line(x, tile, 0, channels));
  const std::int64_t pitch = Major::pitch(tile.positions(), channels.size());
  for (std::int64_t i = 0; i < tile.lines; ++i) {
    Major::load(x, part_of_line(x, tile, i, channels), affine, buffer + start_of_line<Major>(tile, i, pitch));
  }
  return {buffer, pitch};
}

/// Writes a patch of all channels to y.
template <class Major, class T>
void store_patch_of_lines(const T* from, const TensorView& y, const LineTile& tile) {
  const std::int64_t pitch = Major::pitch(tile.positions(), y.sizes[1]);
  for (std::int64_t i = 0; i < tile.lines; ++i) {
    Major::store(from + start_of_line<Major>(tile, i, pitch), y, part_of_line(y, tile, i));
  }
}

/// Whether the tile of x is a channel-major patch as it lies.
template <class T>
bool is_line_patch(const ConstTensorView& x, const LineTile& tile) {
  return tile.lines == 1 && ChannelMajor<T>::is_patch(x);
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

/// Fills the position-major patch `to` from x.
template <class T>
void load_positions(const ConstTensorView& x, const LineTile& tile, const AffineVectors<T>& affine, T* scratch,
                    const Patch<T>& to) {
  const bool is_plain = !affine && ChannelMajor<T>::is_patch(x);
  for (std::int64_t i = 0; i < tile.lines; ++i) {
    const TilePart part = part_of_line(x, tile, i);
    const std::int64_t pitch = PositionMajor<T>::pitch(part.positions, part.channels);
    T* position = to.data + i * tile.count * to.pitch;
    if (is_plain) {
      const T* from = element<T>(x, part.image, 0, part.row, part.column);
      transpose(from, x.strides[1], position, to.pitch, part.channels, part.positions);
    } else if (pitch == to.pitch) {
      load_tile<T>(x, part, affine, position);
    } else {
      load_tile<T>(x, part, affine, scratch);
      for (std::int64_t p = 0; p < part.positions; ++p) {
        convert<T>(scratch + p * pitch, position + p * to.pitch, part.channels);
      }
    }
  }
}

/// Queues what a tile will touch of some channels.
template <class T>
void prefetch_lines(Prefetcher& prefetcher, const ConstTensorView& x, const LineTile& tile, const Range& channels) {
  for (std::int64_t i = 0; i < tile.lines; ++i) {
    const TilePart part = part_of_line(x, tile, i, channels);
    if (layout_of(x.sizes, x.strides) == Layout::contiguous) ChannelMajor<T>::prefetch(prefetcher, x, part);
    else PositionMajor<T>::prefetch(prefetcher, x, part);
  }
}

/// Of all channels.
template <class T>
void prefetch_lines(Prefetcher& prefetcher, const ConstTensorView& x, const LineTile& tile) {
  prefetch_lines<T>(prefetcher, x, tile, {0, x.sizes[1]});
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
