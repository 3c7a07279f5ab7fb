/// What the float32 depthwise kernels for channels_last tensors on Hopper GPUs share. A warp has 32 neighbouring
/// channels, one per lane, and goes down some columns of a strip of an image. Rows come by TMA with zeros
/// around the image, some ahead of their use; each warp has its own, and waits for no other.
#pragma once

#include "fusedsc/common/gpu/hopper/hopper.h"
#include "fusedsc/common/gpu/sums/item_work.h"
#include "fusedsc/common/gpu/tensors/vector.h"
#include "fusedsc/forward/depthwise/hopper/warp_stages.h"

namespace fusedsc::gpu::hopper {

struct DepthwiseColumnsShape {
  static constexpr int kChannels = 32, kWarps = 4;  ///< of a block

  int channels = 0, input_height = 0, output_height = 0, output_width = 0, padding_top = 0, padding_left = 0;
  // A block has a group of channels; its warps share the items out with those of all splits. An item: strip_rows rows
  // (of the output) of a tile's columns of an image.
  int splits = 1, items = 0, strip_rows = 1, stages = 2;
  Divisor by_channel_groups, column_tiles, strips;
};

/// Goes over the rows of x that a warp's items need.
template <int kKernel, int kStride, int kColumns>
class ColumnsCursor {
 public:
  int image = 0, column = 0, begin = 0, end = 0;  ///< of the output, the item's columns and rows
  int row = 0;                                    ///< of x, from the first that the item needs

  FUSEDSC_DEVICE ColumnsCursor(const DepthwiseColumnsShape& p, int item, int step) : p_(p), item_(item), step_(step) {
    begin_item();
  }
  FUSEDSC_DEVICE bool exists() const { return item_ < p_.items; }
  FUSEDSC_DEVICE void next() {
    if (++row < (end - begin - 1) * kStride + kKernel) return;
    item_ += step_;
    begin_item();
  }
  FUSEDSC_DEVICE ImagePlace input(int channel) const {
    return {channel, column * kStride - p_.padding_left, input_row(), image};
  }
  /// All that the item's begin was worked out for, in a number below 2^31.
  FUSEDSC_DEVICE std::uint32_t place() const { return static_cast<std::uint32_t>(image | column | begin | end); }
  FUSEDSC_DEVICE int input_row() const { return begin * kStride - p_.padding_top + row; }
  FUSEDSC_DEVICE bool is_inside() const {
    return static_cast<unsigned>(input_row()) < static_cast<unsigned>(p_.input_height);
  }
  /// Of the output: the row whose window begins with this row of x.
  FUSEDSC_DEVICE int first_output() const { return begin + row / kStride; }
  FUSEDSC_DEVICE bool begins_output() const { return row % kStride == 0; }

 private:
  FUSEDSC_DEVICE void begin_item() {
    if (!exists()) return;
    std::uint32_t tile = static_cast<std::uint32_t>(item_), strip = p_.column_tiles.divide(tile);
    image = static_cast<int>(p_.strips.divide(strip));
    column = static_cast<int>(tile) * kColumns;
    begin = static_cast<int>(strip) * p_.strip_rows;
    end = least(begin + p_.strip_rows, p_.output_height);
    row = 0;
  }

  const DepthwiseColumnsShape& p_;
  int item_, step_;
};

}  // namespace fusedsc::gpu::hopper
