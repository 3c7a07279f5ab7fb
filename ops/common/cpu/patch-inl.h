/// Patches: tiles in either order, so that a pointwise operator is written once. Position-major patches are the tiles
/// of tile-inl.h, channels innermost; channel-major ones have the positions innermost, as contiguous (NCHW) tensors do,
/// and spare those the transposition. Whole vectors of a patch in scratch memory may be read and written.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_COMMON_CPU_PATCH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_COMMON_CPU_PATCH_INL_H_
#undef FUSEDSC_COMMON_CPU_PATCH_INL_H_
#else
#define FUSEDSC_COMMON_CPU_PATCH_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include "fusedsc/common/cpu/prefetcher.h"
#include "fusedsc/common/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

template <class T>
inline constexpr DataType kComputeType = std::is_same_v<T, double> ? DataType::float64 : DataType::float32;

/// Lines of elements, `pitch` apart: one per position, or one per channel.
template <class T>
struct Patch {
  T* data = nullptr;
  std::int64_t pitch = 0;

  operator Patch<const T>() const { return {data, pitch}; }  // NOLINT(google-explicit-constructor): like T* to const T*
};

template <class T>
struct PositionMajor {
  static constexpr bool kChannelMajor = false;
  /// The passes of fusion-inl.h walk units of kChannels channels down the positions, kPositions of them per step.
  static constexpr std::int64_t kChannels = kLanes<T>, kPositions = 1;

  static std::int64_t pitch(std::int64_t, std::int64_t channels) { return round_up(channels, kLanes<T>); }
  /// Elements of a patch in scratch memory: a vector more, for reads that start inside the last line.
  static std::int64_t size(std::int64_t positions, std::int64_t channels) {
    return positions * round_up(channels, kLanes<T>) + kLanes<T>;
  }

  /// Whether the tensor's own memory is a patch: at all, for the vector passes, and for forward's products.
  static bool is_patch(const ConstTensorView& x) {
    return x.dtype == kComputeType<T> && layout_of(x.sizes, x.strides) == Layout::channels_last;
  }
  static bool is_readable(const ConstTensorView& x) { return is_tile<T>(x); }
  static bool is_operand(const ConstTensorView& x, const TilePart&) { return is_patch(x); }
  static std::int64_t pitch_of(const ConstTensorView& x) { return x.strides[3]; }

  static void load(const ConstTensorView& x, const TilePart& part, const AffineVectors<T>& affine, T* to) {
    load_tile<T>(x, part, affine, to);
  }
  static void store(const T* from, const TensorView& y, const TilePart& part) { store_tile<T>(from, y, part); }

  static void prefetch(Prefetcher& prefetcher, const ConstTensorView& x, const TilePart& part) {
    const auto bytes = static_cast<std::int64_t>(size_of(x.dtype));
    const std::int64_t start = part.image * x.strides[0] + part.row * x.strides[2] + part.column * x.strides[3];
    prefetcher.add(static_cast<const char*>(x.data) + start * bytes, part.positions * x.strides[3] * bytes);
  }

  template <class Element>
  static HWY_INLINE Element* at(const Patch<Element>& patch, std::int64_t channel, std::int64_t position) {
    return patch.data + position * patch.pitch + channel;
  }
  static HWY_INLINE Vec<T> load(const T* from, std::int64_t) { return load_as<T>(from); }
  static HWY_INLINE void store(Vec<T> value, T* to, std::int64_t) { store_as<T>(value, to); }
  static HWY_INLINE Vec<T> zero_behind(Vec<T> value, std::int64_t) { return value; }
  static HWY_INLINE Vec<T> coefficient(const T* vector, std::int64_t channel) { return load_as<T>(vector + channel); }
  static HWY_INLINE Vec<T> total(Vec<T> sum) { return sum; }
  static HWY_INLINE void put(Vec<T> value, T* vector, std::int64_t channel) { store_as<T>(value, vector + channel); }
};

template <class T>
struct ChannelMajor {
  static constexpr bool kChannelMajor = true;
  static constexpr std::int64_t kChannels = 1, kPositions = kLanes<T>;

  static std::int64_t pitch(std::int64_t positions, std::int64_t) { return round_up(positions, kLanes<T>); }
  static std::int64_t size(std::int64_t positions, std::int64_t channels) {
    return channels * round_up(positions, kLanes<T>);
  }

  static bool is_patch(const ConstTensorView& x) {
    return x.dtype == kComputeType<T> && layout_of(x.sizes, x.strides) == Layout::contiguous;
  }
  static bool is_readable(const ConstTensorView& x) { return is_patch(x); }
  /// Lines are read in whole vectors: past their end there must be more of the tensor.
  static bool is_operand(const ConstTensorView& x, const TilePart& part) {
    const Sizes last{part.image, part.channel + part.channels - 1, part.row,
                     part.column + round_up(part.positions, kLanes<T>) - 1};
    std::int64_t ahead = 0;
    for (int axis = 0; axis < 4; ++axis) ahead += (x.sizes[axis] - 1 - last[axis]) * x.strides[axis];
    return is_patch(x) && ahead >= 0;
  }
  static std::int64_t pitch_of(const ConstTensorView& x) { return x.strides[1]; }

  /// x must be contiguous, of any storage type.
  static void load(const ConstTensorView& x, const TilePart& part, const AffineVectors<T>& affine, T* to) {
    const std::int64_t line = pitch(part.positions, part.channels);
    with_storage<T>(x.dtype, [&]<class Storage>() HWY_ATTR {
      with_activation(affine.activation, [&]<Activation kActivation>() HWY_ATTR {
        const Tag<T> d;
        for (std::int64_t c = 0; c < part.channels; ++c, to += line) {
          const Storage* from = element<Storage>(x, part.image, part.channel + c, part.row, part.column);
          const auto scale = hn::Set(d, affine ? affine.scale[c] : T(1));
          const auto shift = hn::Set(d, affine ? affine.shift[c] : T(0));
          for (std::int64_t p = 0; p < part.positions; p += kLanes<T>) {
            const std::int64_t left = part.positions - p;
            const auto value = left >= kLanes<T> ? load_as<T>(from + p) : load_partial<T>(from + p, left);
            store_as<T>(affine ? activate<kActivation, T>(hn::MulAdd(value, scale, shift)) : value, to + p);
          }
        }
      });
    });
  }

  static void store(const T* from, const TensorView& y, const TilePart& part) {
    const std::int64_t line = pitch(part.positions, part.channels);
    with_storage<T>(y.dtype, [&]<class Storage>() HWY_ATTR {
      for (std::int64_t c = 0; c < part.channels; ++c) {
        convert_back<T>(from + c * line, element<Storage>(y, part.image, part.channel + c, part.row, part.column),
                        part.positions);
      }
    });
  }

  static void prefetch(Prefetcher& prefetcher, const ConstTensorView& x, const TilePart& part) {
    const auto bytes = static_cast<std::int64_t>(size_of(x.dtype));
    const std::int64_t start =
        part.image * x.strides[0] + part.channel * x.strides[1] + part.row * x.strides[2] + part.column * x.strides[3];
    const char* from = static_cast<const char*>(x.data) + start * bytes;
    if (part.positions == x.strides[1]) return prefetcher.add(from, part.positions * part.channels * bytes);
    prefetcher.add(from, part.positions * bytes, part.channels, x.strides[1] * bytes);
  }

  template <class Element>
  static HWY_INLINE Element* at(const Patch<Element>& patch, std::int64_t channel, std::int64_t position) {
    return patch.data + channel * patch.pitch + position;
  }
  /// `left` positions are left of the line.
  static HWY_INLINE Vec<T> load(const T* from, std::int64_t left) {
    return left >= kLanes<T> ? load_as<T>(from) : load_partial<T>(from, left);
  }
  static HWY_INLINE void store(Vec<T> value, T* to, std::int64_t left) {
    left >= kLanes<T> ? store_as<T>(value, to) : store_partial<T>(value, to, left);
  }
  static HWY_INLINE Vec<T> zero_behind(Vec<T> value, std::int64_t left) {
    if (left >= kLanes<T>) return value;
    return hn::IfThenElseZero(hn::FirstN(Tag<T>(), static_cast<std::size_t>(left)), value);
  }
  static HWY_INLINE Vec<T> coefficient(const T* vector, std::int64_t channel) {
    return hn::Set(Tag<T>(), vector[channel]);
  }
  static HWY_INLINE Vec<T> total(Vec<T> sum) { return hn::SumOfLanes(Tag<T>(), sum); }
  static HWY_INLINE void put(Vec<T> value, T* vector, std::int64_t channel) { vector[channel] = hn::GetLane(value); }
};

/// The part of x as a patch: in place.
template <class Major, class T, class View>
Patch<T> patch_of(const View& x, const TilePart& part) {
  return {element<std::remove_const_t<T>>(x, part.image, part.channel, part.row, part.column), Major::pitch_of(x)};
}

/// The part of x as a patch to read: in place where possible, else loaded into `buffer`.
template <class Major, class T>
Patch<const T> read_patch(const ConstTensorView& x, const TilePart& part, bool in_place, T* buffer,
                          const AffineVectors<T>& affine = {}) {
  if (in_place) return {element<T>(x, part.image, part.channel, part.row, part.column), Major::pitch_of(x)};
  Major::load(x, part, affine, buffer);
  return {buffer, Major::pitch(part.positions, part.channels)};
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
