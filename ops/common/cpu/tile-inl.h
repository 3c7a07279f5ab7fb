/// Tiles: the one form in which the CPU kernels see activations. A tile is T tile[positions][pitch] in scratch memory,
/// channels innermost, pitch = channels rounded up to whole vectors, the padding lanes zero. Layout, storage type,
/// BatchNorm and activation are dealt with here, between tensor and tile, and nowhere else.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_COMMON_CPU_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_COMMON_CPU_TILE_INL_H_
#undef FUSEDSC_COMMON_CPU_TILE_INL_H_
#else
#define FUSEDSC_COMMON_CPU_TILE_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include <algorithm>

#include "fusedsc/common/cpu/transpose-inl.h"
#include "fusedsc/common/tensor_view.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// Which part of a tensor a tile holds: `positions` elements of a row, from column `column`, and `channels` channels.
/// `multiplier` > 1 repeats each channel of the tensor that often; `channel` and `channels` then count the repeats.
struct TilePart {
  std::int64_t image = 0, row = 0, column = 0, positions = 0;
  std::int64_t channel = 0, channels = 0;
  std::int64_t multiplier = 1;
};

/// Per-channel vectors of a tile's channels, padded with zeros to whole vectors.
template <class T>
struct AffineVectors {
  const T* scale = nullptr;
  const T* shift = nullptr;
  Activation activation = Activation::identity;

  explicit operator bool() const { return scale != nullptr; }
};

template <class Storage>
HWY_INLINE auto scalar_value(Storage value) {
  if constexpr (std::is_arithmetic_v<Storage>) return value;
  else return to_float(value);
}

/// A copy of the channels [channel, channel + channels) of `vector` (each repeated `multiplier` times, all counted with
/// repeats), `missing` where the vector is empty, zeros up to the pitch.
template <class T, class Storage>
void copy_channels(const Storage* vector, T missing, std::int64_t channel, std::int64_t channels,
                   std::int64_t multiplier, T* to) {
  const std::int64_t pitch = round_up(channels, kLanes<T>);
  if (vector == nullptr) {
    std::fill_n(to, channels, missing);
  } else if (multiplier == 1) {
    for (std::int64_t i = 0; i < channels; ++i) to[i] = static_cast<T>(scalar_value(vector[channel + i]));
  } else {
    for (std::int64_t i = 0; i < channels; ++i)
      to[i] = static_cast<T>(scalar_value(vector[(channel + i) / multiplier]));
  }
  std::fill(to + channels, to + pitch, T(0));
}

template <class T>
void copy_channels(const ConstChannelVector& vector, T missing, std::int64_t channel, std::int64_t channels,
                   std::int64_t multiplier, T* to) {
  with_storage<T>(vector ? vector.dtype : DataType::float32, [&]<class Storage>() {
    copy_channels<T>(static_cast<const Storage*>(vector.data), missing, channel, channels, multiplier, to);
  });
}

template <class Storage>
const Storage* element(const ConstTensorView& x, std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
  return static_cast<const Storage*>(x.data) + n * x.strides[0] + c * x.strides[1] + h * x.strides[2] +
         w * x.strides[3];
}

template <class Storage>
Storage* element(const TensorView& x, std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
  return const_cast<Storage*>(element<Storage>(ConstTensorView(x), n, c, h, w));
}

template <class Storage, class T>
HWY_INLINE Storage scalar_storage(T value) {
  if constexpr (std::is_same_v<Storage, BFloat16>) return to_bfloat16(value);
  else if constexpr (std::is_same_v<Storage, Float16>) return to_float16(value);
  else return value;
}

/// Whether a tensor's own memory can stand for its tiles: no copy, no conversion, whole vectors.
template <class T>
bool is_tile(const ConstTensorView& x) {
  return x.dtype == (std::is_same_v<T, double> ? DataType::float64 : DataType::float32) &&
         (x.strides[1] == 1 || x.sizes[1] == 1) && x.sizes[1] % kLanes<T> == 0;
}

/// The same tensor with each image's rows joined into one row of H*W positions, where its strides allow it.
template <class View>
bool join_rows(View& x) {
  if (x.sizes[2] > 1 && x.sizes[3] > 1 && x.strides[2] != x.sizes[3] * x.strides[3]) return false;
  if (x.sizes[3] == 1) x.strides[3] = x.strides[2];
  x.sizes[3] *= x.sizes[2];
  x.sizes[2] = 1;
  return true;
}

/// Columns that are converted together on the way to or from a contiguous tensor that does not store T.
inline constexpr std::int64_t kConvertedColumns = 64;

template <class T, class Storage>
void convert(const Storage* from, T* to, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kLanes<T> <= count; i += kLanes<T>) store_as<T>(load_as<T>(from + i), to + i);
  if (i < count) store_partial<T>(load_partial<T>(from + i, count - i), to + i, count - i);
}

template <class T, class Storage>
void convert_back(const T* from, Storage* to, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kLanes<T> <= count; i += kLanes<T>) store_as<T>(load_as<T>(from + i), to + i);
  if (i < count) store_partial<T>(load_partial<T>(from + i, count - i), to + i, count - i);
}

// ---- tensor -> tile -------------------------------------------------------------------------------------------------

template <class T, class Storage, class Transform>
HWY_INLINE void load_channels_last(const Storage* from, std::int64_t column_stride, std::int64_t positions,
                                   std::int64_t channels, T* tile, const Transform& transform) {
  const std::int64_t pitch = round_up(channels, kLanes<T>);
  for (std::int64_t w = 0; w < positions; ++w, from += column_stride, tile += pitch) {
    std::int64_t c = 0;
    for (; c + kLanes<T> <= channels; c += kLanes<T>) store_as<T>(transform(load_as<T>(from + c), c), tile + c);
    if (c < channels) store_as<T>(transform(load_partial<T>(from + c, channels - c), c), tile + c);
  }
}

template <class T, class Storage>
void load_contiguous(const Storage* from, std::int64_t channel_stride, std::int64_t positions, std::int64_t channels,
                     T* tile) {
  const std::int64_t pitch = round_up(channels, kLanes<T>);
  if constexpr (std::is_same_v<T, Storage>) {
    transpose(from, channel_stride, tile, pitch, channels, positions);
  } else {
    constexpr std::int64_t kChannels = 4;
    HWY_ALIGN T converted[kChannels][kConvertedColumns];
    for (std::int64_t c = 0; c < channels; c += kChannels) {
      const std::int64_t count = std::min(kChannels, channels - c);
      for (std::int64_t w = 0; w < positions; w += kConvertedColumns) {
        const std::int64_t columns = std::min(kConvertedColumns, positions - w);
        for (std::int64_t i = 0; i < count; ++i) convert(from + (c + i) * channel_stride + w, converted[i], columns);
        transpose(converted[0], kConvertedColumns, tile + w * pitch + c, pitch, count, columns);
      }
    }
  }
  for (std::int64_t w = 0; w < positions; ++w) std::fill(tile + w * pitch + channels, tile + (w + 1) * pitch, T(0));
}

/// activation(scale*x + shift) in place.
template <class T>
void apply_affine(T* tile, std::int64_t positions, std::int64_t channels, const AffineVectors<T>& affine) {
  const std::int64_t pitch = round_up(channels, kLanes<T>);
  with_activation(affine.activation, [&]<Activation kActivation>() HWY_ATTR {
    // Copies: the compiler believes what references lead to changed by every store.
    const T *const scale = affine.scale, *const shift = affine.shift;
    const std::int64_t row = pitch, rows = positions;
    T* at = tile;
    for (std::int64_t w = 0; w < rows; ++w, at += row) {
      for (std::int64_t c = 0; c < row; c += kLanes<T>) {
        const auto z = hn::MulAdd(load_as<T>(at + c), load_as<T>(scale + c), load_as<T>(shift + c));
        store_as<T>(activate<kActivation, T>(z), at + c);
      }
    }
  });
}

/// Fills tile[part.positions][pitch] from x, through the affine map and activation where there is one.
template <class T>
void load_tile(const ConstTensorView& x, const TilePart& part, const AffineVectors<T>& affine, T* tile) {
  const std::int64_t pitch = round_up(part.channels, kLanes<T>);
  bool transformed = false;
  with_storage<T>(x.dtype, [&]<class Storage>() HWY_ATTR {
    const Storage* from =
        element<Storage>(x, part.image, part.multiplier == 1 ? part.channel : 0, part.row, part.column);
    const Layout layout = layout_of(x.sizes, x.strides);
    if (part.multiplier == 1 && layout == Layout::channels_last) {
      if (affine) {
        with_activation(affine.activation, [&]<Activation kActivation>() HWY_ATTR {
          const T *const scale = affine.scale, *const shift = affine.shift;
          load_channels_last<T>(
              from, x.strides[3], part.positions, part.channels, tile, [=](Vec<T> value, std::int64_t c) HWY_ATTR {
                return activate<kActivation, T>(hn::MulAdd(value, load_as<T>(scale + c), load_as<T>(shift + c)));
              });
        });
        transformed = true;
      } else {
        load_channels_last<T>(from, x.strides[3], part.positions, part.channels, tile,
                              [](Vec<T> value, std::int64_t) HWY_ATTR { return value; });
      }
    } else if (part.multiplier == 1 && layout == Layout::contiguous) {
      load_contiguous<T>(from, x.strides[1], part.positions, part.channels, tile);
    } else {
      for (std::int64_t w = 0; w < part.positions; ++w) {
        for (std::int64_t c = 0; c < part.channels; ++c) {
          const std::int64_t source = part.multiplier == 1 ? c : (part.channel + c) / part.multiplier;
          tile[w * pitch + c] = scalar_value(from[w * x.strides[3] + source * x.strides[1]]);
        }
        std::fill(tile + w * pitch + part.channels, tile + (w + 1) * pitch, T(0));
      }
    }
  });
  if (affine && !transformed) apply_affine(tile, part.positions, part.channels, affine);
}

// ---- tile -> tensor -------------------------------------------------------------------------------------------------

/// Writes tile[part.positions][pitch] to y. part.multiplier must be 1.
template <class T>
void store_tile(const T* tile, const TensorView& y, const TilePart& part) {
  const std::int64_t pitch = round_up(part.channels, kLanes<T>);
  with_storage<T>(y.dtype, [&]<class Storage>() HWY_ATTR {
    Storage* to = element<Storage>(y, part.image, part.channel, part.row, part.column);
    switch (layout_of(y.sizes, y.strides)) {
      case Layout::channels_last:
        for (std::int64_t w = 0; w < part.positions; ++w) {
          convert_back<T>(tile + w * pitch, to + w * y.strides[3], part.channels);
        }
        break;
      case Layout::contiguous:
        if constexpr (std::is_same_v<T, Storage>) {
          transpose(tile, pitch, to, y.strides[1], part.positions, part.channels);
        } else {
          HWY_ALIGN T column[4][kConvertedColumns];
          for (std::int64_t c = 0; c < part.channels; c += 4) {
            const std::int64_t count = std::min<std::int64_t>(4, part.channels - c);
            for (std::int64_t w = 0; w < part.positions; w += kConvertedColumns) {
              const std::int64_t columns = std::min(kConvertedColumns, part.positions - w);
              transpose(tile + w * pitch + c, pitch, column[0], kConvertedColumns, columns, count);
              for (std::int64_t i = 0; i < count; ++i) {
                convert_back<T>(column[i], to + (c + i) * y.strides[1] + w, columns);
              }
            }
          }
        }
        break;
      case Layout::strided:
        for (std::int64_t w = 0; w < part.positions; ++w) {
          for (std::int64_t c = 0; c < part.channels; ++c) {
            to[w * y.strides[3] + c * y.strides[1]] = scalar_storage<Storage>(tile[w * pitch + c]);
          }
        }
        break;
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
