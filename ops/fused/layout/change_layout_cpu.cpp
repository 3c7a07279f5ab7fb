#include "fusedsc/fused/layout/change_layout_cpu.h"

#include "fusedsc/common/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fusedsc/fused/layout/change_layout_cpu.cpp"
#include "hwy/foreach_target.h"

#include <algorithm>

#include "fusedsc/common/cpu/slices.h"
#include "fusedsc/common/cpu/streams.h"
#include "fusedsc/common/cpu/transpose-inl.h"
#include "fusedsc/common/divide_up.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// Images are matrices, transposed tile by tile. T: a type of the elements' size, whose bits are moved.
template <class T>
class LayoutChange {
 public:
  LayoutChange(const ChangeLayoutArguments& arguments, int threads)
      : arguments_(arguments),
        to_channels_last_(layout_of(arguments.to.sizes, arguments.to.strides) == Layout::channels_last),
        channels_(arguments.from.sizes[1]),
        positions_(arguments.from.sizes[2] * arguments.from.sizes[3]),
        tiles_(divide_up(positions_, kTile)),
        lanes_(std::min<std::int64_t>(threads, arguments.from.sizes[0] * tiles_)),
        streams_(has_whole_lines(by_rows(), kLanes<T> * kSize) && streams_pay(arguments.to.elements() * kSize)) {}

  void run(const Execution& execution) const {
    run_lanes(execution, lanes_, [this](std::int64_t lane) {
      const Range tiles = part_of(arguments_.from.sizes[0] * tiles_, lanes_, lane);
      for (std::int64_t i = tiles.begin; i < tiles.end; ++i) run_tile(i / tiles_, i % tiles_ * kTile);
      if (streams_) hwy::FlushStream();
    });
  }

 private:
  static constexpr std::int64_t kSize = sizeof(T);
  /// Positions of a tile, and channels: of each, whole cache lines; both together fit a first-level cache.
  static constexpr std::int64_t kTile = 256 / kSize;

  /// The result, whose rows, of channels or of positions, are in the place of channels.
  TensorView by_rows() const {
    TensorView rows = arguments_.to;
    const std::int64_t row = to_channels_last_ ? channels_ : positions_,
                       count = to_channels_last_ ? positions_ : channels_;
    rows.sizes = {rows.sizes[0], row, 1, count};
    rows.strides = {rows.strides[0], 1, row * count, row};
    return rows;
  }

  /// All channels of some positions of an image.
  void run_tile(std::int64_t image, std::int64_t position) const {
    const T* from = static_cast<const T*>(arguments_.from.data) + image * arguments_.from.strides[0];
    T* to = static_cast<T*>(arguments_.to.data) + image * arguments_.to.strides[0];
    const std::int64_t positions = std::min(kTile, positions_ - position);
    for (std::int64_t channel = 0; channel < channels_; channel += kTile) {
      const std::int64_t channels = std::min(kTile, channels_ - channel);
      const std::int64_t by_channels = channel * positions_ + position, by_positions = position * channels_ + channel;
      if (to_channels_last_) {
        transpose_tile(from + by_channels, positions_, to + by_positions, channels_, channels, positions);
      } else {
        transpose_tile(from + by_positions, channels_, to + by_channels, positions_, positions, channels);
      }
    }
  }

  void transpose_tile(const T* from, std::int64_t from_pitch, T* to, std::int64_t to_pitch, std::int64_t rows,
                      std::int64_t columns) const {
    if (!streams_) return transpose(from, from_pitch, to, to_pitch, rows, columns);
    HWY_ALIGN T tile[kTile * kTile];
    transpose(from, from_pitch, tile, kTile, rows, columns);
    for (std::int64_t j = 0; j < columns; ++j) {
      for (std::int64_t i = 0; i < rows; i += kLanes<T>) {
        store_line<T>(load_as<T>(tile + j * kTile + i), to + j * to_pitch + i, true);
      }
    }
  }

  const ChangeLayoutArguments& arguments_;
  bool to_channels_last_;
  std::int64_t channels_, positions_, tiles_, lanes_;
  bool streams_;
};

void change_layout_on_target(const ChangeLayoutArguments& arguments, const Execution& execution) {
  switch (size_of(arguments.from.dtype)) {
    case 2: return LayoutChange<std::uint16_t>(arguments, execution.threads).run(execution);
    case 4: return LayoutChange<float>(arguments, execution.threads).run(execution);
    default: return LayoutChange<double>(arguments, execution.threads).run(execution);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fusedsc {
namespace {

HWY_EXPORT(change_layout_on_target);

}  // namespace

void cpu::change_layout(const ChangeLayoutArguments& arguments, const Execution& execution) {
  HWY_DYNAMIC_DISPATCH(change_layout_on_target)(arguments, execution);
}

}  // namespace fusedsc
#endif
