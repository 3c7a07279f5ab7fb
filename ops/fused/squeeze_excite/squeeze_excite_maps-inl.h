/// How the CPU's passes over maps walk the tensors: some channels of one image after another, and of those a part that
/// stays in cache.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_FUSED_SQUEEZE_EXCITE_SQUEEZE_EXCITE_MAPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_FUSED_SQUEEZE_EXCITE_SQUEEZE_EXCITE_MAPS_INL_H_
#undef FUSEDSC_FUSED_SQUEEZE_EXCITE_SQUEEZE_EXCITE_MAPS_INL_H_
#else
#define FUSEDSC_FUSED_SQUEEZE_EXCITE_SQUEEZE_EXCITE_MAPS_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include <algorithm>

#include "fusedsc/common/cpu/fusion-inl.h"
#include "fusedsc/common/cpu/slices.h"
#include "fusedsc/runtime/arena.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// Bytes of a part's patches: they stay in the first-level cache.
inline constexpr std::int64_t kPartBytes = 16 << 10;

/// Some channels of one image: all of the positions that one thread sees.
struct Maps {
  std::int64_t image = 0, channel = 0, channels = 0;
  std::int64_t group = 0;  ///< of images
};

/// What the passes share. A task is a group of images, or a block of their channels where the groups are fewer than the
/// threads: so the sums over a map are one thread's, and those over the images, kept per group, the same with any
/// number of threads.
template <class T, template <class> class Order>
class MapsPass {
 public:
  using Major = Order<T>;

  MapsPass(const ConstTensorView& x, int patches, int threads, void* workspace)
      : sizes_(x.sizes),
        groups_(std::min<std::int64_t>(sizes_[0], Slices::kSlices)),
        pitch_(round_up(sizes_[1], kLanes<T>)),
        elements_(kPartBytes / static_cast<std::int64_t>(sizeof(T)) / patches),
        arena_(workspace) {
    const std::int64_t channels = sizes_[1];
    // Sums have the same bits in whichever block a channel is: parts, and what is walked side by side, do not change.
    const std::int64_t positions = elements_ / (Major::kChannelMajor ? 1 : channels) / kLanes<T> * kLanes<T>;
    columns_ = std::min(std::max(positions, kLanes<T>), sizes_[3]);
    const std::int64_t granule =
        Major::kChannelMajor ? whole_units(std::min(elements_ / sizes_[3], channels)) : kUnits * kLanes<T>;
    const std::int64_t wanted = (threads + groups_ - 1) / groups_;
    block_ = round_up((channels + wanted - 1) / wanted, granule);
    blocks_ = (channels + block_ - 1) / block_;
    maps_ = Major::kChannelMajor ? granule : block_;
    lanes_ = std::min<std::int64_t>(threads, groups_ * blocks_);
    scale_ = arena_.take<T>(pitch_);
    shift_ = arena_.take<T>(pitch_);
  }

  std::size_t workspace_bytes() const { return arena_.used(); }

 protected:
  void copy_affine(const ConstChannelVector& scale, const ConstChannelVector& shift) const {
    copy_channels(scale, T(1), 0, sizes_[1], 1, scale_);
    copy_channels(shift, T(0), 0, sizes_[1], 1, shift_);
  }
  AffineVectors<T> affine(const Maps& maps, Activation activation) const {
    return {scale_ + maps.channel, shift_ + maps.channel, activation};
  }

  /// body(maps, lane)
  template <class Body>
  void for_each_maps(const Execution& execution, const Body& body) const {
    run_lanes(execution, lanes_, [&](std::int64_t lane) {
      const Range tasks = part_of(groups_ * blocks_, lanes_, lane);
      for (std::int64_t task = tasks.begin; task < tasks.end; ++task) {
        const std::int64_t group = task / blocks_, first = task % blocks_ * block_;
        const std::int64_t end = std::min(first + block_, sizes_[1]);
        const Range images = part_of(sizes_[0], groups_, group);
        for (std::int64_t image = images.begin; image < images.end; ++image) {
          for (std::int64_t c = first; c < end; c += maps_) body(Maps{image, c, std::min(maps_, end - c), group}, lane);
        }
      }
    });
  }

  /// body(part) for all positions of some maps.
  template <class Body>
  void for_each_part(const Maps& maps, const Body& body) const {
    for (std::int64_t row = 0; row < sizes_[2]; ++row) {
      for (std::int64_t column = 0; column < sizes_[3]; column += columns_) {
        body(TilePart{.image = maps.image,
                      .row = row,
                      .column = column,
                      .positions = std::min(columns_, sizes_[3] - column),
                      .channel = maps.channel,
                      .channels = maps.channels});
      }
    }
  }

  /// Memory of every lane: a patch, or one value for each of a task's channels.
  T* take_patches(Arena& arena) const { return arena.take<T>(lanes_ * patch_size()); }
  T* patch_in(T* patches, std::int64_t lane) const {
    return patches == nullptr ? nullptr : patches + lane * patch_size();
  }
  /// Where a part is written: in the tensor itself, if there is no buffer.
  Patch<T> patch_to_write(const TensorView& to, const TilePart& part, T* buffer) const {
    if (buffer == nullptr) return patch_of<Major, T>(to, part);
    return {buffer, Major::pitch(part.positions, part.channels)};
  }
  T* take_values(Arena& arena) const { return arena.take<T>(lanes_ * values_size()); }
  T* values_in(T* values, std::int64_t lane) const { return values + lane * values_size(); }
  std::int64_t values_size() const { return round_up(maps_, kLanes<T>); }

  /// One value of each map, from and to a tensor of them.
  void load_values(const ConstTensorView& from, const Maps& maps, T* to) const {
    with_storage<T>(from.dtype, [&]<class Storage>() {
      const Storage* first = element<Storage>(from, maps.image, maps.channel, 0, 0);
      for (std::int64_t c = 0; c < maps.channels; ++c) to[c] = scalar_value(first[c * from.strides[1]]);
    });
    std::fill(to + maps.channels, to + values_size(), T(0));
  }
  void store_values(const T* from, const Maps& maps, T weight, const TensorView& to) const {
    with_storage<T>(to.dtype, [&]<class Storage>() {
      Storage* first = element<Storage>(to, maps.image, maps.channel, 0, 0);
      for (std::int64_t c = 0; c < maps.channels; ++c) {
        first[c * to.strides[1]] = scalar_storage<Storage>(from[c] * weight);
      }
    });
  }

  std::int64_t positions() const { return sizes_[2] * sizes_[3]; }
  std::int64_t channels() const { return sizes_[1]; }
  std::int64_t groups() const { return groups_; }
  std::int64_t pitch() const { return pitch_; }
  Arena& arena() { return arena_; }

 private:
  /// As many of `channels` as for_each_unit walks in units of one size, one at least.
  static std::int64_t whole_units(std::int64_t channels) {
    if (channels >= kUnits) return channels / kUnits * kUnits;
    return channels >= 2 ? 2 : 1;
  }
  std::int64_t patch_size() const { return round_up(Major::size(columns_, maps_), kLanes<T>); }

  Sizes sizes_;
  std::int64_t groups_, pitch_;
  std::int64_t elements_;  ///< of a patch, about
  Arena arena_;
  std::int64_t block_, blocks_;  ///< channels of a task, and into how many blocks they all are cut
  std::int64_t lanes_;
  std::int64_t columns_, maps_;  ///< of a part
  T* scale_;
  T* shift_;
};

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
