/// How depthwise kernels on Hopper GPUs cut images into tiles, which TMA brings to shared memory: channels
/// neighbours in memory, 8 of them to a warp, 16 positions to a product of tensor cores.
#pragma once

#include "fusedsc/common/gpu/hopper/hopper.h"
#include "fusedsc/common/gpu/sums/item_work.h"

namespace fusedsc::gpu::hopper {

struct DepthwiseTilesShape {
  int batch = 0, channels = 0, input_height = 0, input_width = 0, output_height = 0, output_width = 0;
  int padding_top = 0, padding_left = 0;

  // Tiles of x lie in shared memory as [box of channels][image][row][column][channel of the box].
  int boxes = 1, box_bytes = 128;   ///< of a block: boxes of so many bytes of neighbouring channels
  int group_runs = 8;               ///< of 16 bytes of channels that a block has
  bool swizzles = true;             ///< runs, so that columns fall on different banks: of boxes of 64 or 128 bytes
  int image_lines = 16;             ///< of the 16 patches of 4 output columns of a product, those of one image
  int pitch = 8, rows = 1;          ///< columns and rows of a tile; if runs are swizzled, pitch is a multiple of 8
  int images = 1, image_parts = 1;  ///< of a tile; as many warps share them out
  int stages = 2;                   ///< tiles under way
  int tile_bytes = 0;               ///< of x, in whole kilobytes
  int out_pitch = 8, tile_columns = 8;
  // Where the 8x8 matrices of a warp's products begin in tiles of x: from one half of 16 positions to the other, and
  // from one product to the next.
  int half_bytes = 0, product_bytes = 0;

  // Blocks side by side have different channels; those one behind the other share out the units: `grain` rows of
  // outputs of a group of images, in some columns.
  int splits = 1, units = 0, grain = 1;
  int share = 0, longer = 0;  ///< units of a split; of the splits, the first ones with one more
  Divisor by_channel_groups, strips, column_tiles;
  bool goes_on = false;  ///< of weights' gradients: the warp that copies, while the others still prepare

  // Or of all channels, as [segment][image][row][byte of the segment]: rows of images, cut without regard to positions.
  int segments = 0, segment_bytes = 0;

  FUSEDSC_HOST_DEVICE int runs() const { return group_runs; }
  FUSEDSC_HOST_DEVICE int product_images() const { return 16 / image_lines; }
  FUSEDSC_HOST_DEVICE int warps() const { return runs() * image_parts; }  ///< that compute
  FUSEDSC_HOST_DEVICE int image_bytes() const { return rows * pitch * box_bytes; }
  FUSEDSC_HOST_DEVICE bool halves_are_images() const { return output_width <= 8; }
  FUSEDSC_HOST_DEVICE bool products_are_images() const { return output_width <= 16; }
};

/// Groups of 4 columns that a patch of 4 output columns reads.
constexpr int patch_groups(int kernel, int stride) { return (3 * stride + kernel + 3) / 4; }

/// Of weights' gradients: columns of grad_y of a patch, whose windows are in 8 columns of x; and rows of grad_y of a
/// product that an earlier one has had.
constexpr int weight_patch_columns(int kernel) { return kernel == 7 ? 2 : 4; }
constexpr int weight_patch_lead(int kernel) { return 8 / weight_patch_columns(kernel) - 2; }

/// Which of the splits the block has, of channels from `first_channel` on.
FUSEDSC_DEVICE int split_of_block(const DepthwiseTilesShape& p, int& first_channel) {
  std::uint32_t group = block_index();
  const auto split = static_cast<int>(p.by_channel_groups.divide(group));
  first_channel = static_cast<int>(group) * p.runs() * 8;
  return split;
}

/// What a convolution's windows are to its tiles.
template <int kTheKernel, int kTheStride>
struct DepthwiseWindow {
  static constexpr int kKernel = kTheKernel, kStride = kTheStride;
  static constexpr int kInputRows = kStride, kOutputRows = 1;  ///< of a step

  /// Of the input, the first row and column that outputs from `begin` on need.
  FUSEDSC_DEVICE static int first_row(const DepthwiseTilesShape& p, int begin) {
    return begin * kStride - p.padding_top;
  }
  FUSEDSC_DEVICE static int first_column(const DepthwiseTilesShape& p, int begin) {
    return begin * kStride - p.padding_left;
  }
  /// How many rows of the input outputs from `begin` to `end` need.
  FUSEDSC_DEVICE static int rows(const DepthwiseTilesShape&, int begin, int end) {
    return (end - begin - 1) * kStride + kKernel;
  }
  /// Of the output, the first that is finished by the step that begins with a piece's row `row` of the input.
  FUSEDSC_DEVICE static int output_row(const DepthwiseTilesShape&, int begin, int row) {
    return begin + (row - (kKernel - 1)) / kStride;
  }
  /// Which element of the input an output has under a tap; negative: none.
  FUSEDSC_DEVICE static int input(int output, int tap, int padding) { return output * kStride - padding + tap; }
};

/// Of a convolution of stride 2, transposed: its outputs' gradients are the input.
template <int kTheKernel>
struct DepthwiseTransposedWindow {
  static constexpr int kKernel = kTheKernel, kStride = 2;
  static constexpr int kInputRows = 1, kOutputRows = 2;

  /// Rows or columns of the input before the first that an output's number halved says.
  FUSEDSC_DEVICE static int before(int padding) { return (kKernel - 1 - padding) / 2; }
  FUSEDSC_DEVICE static int first_row(const DepthwiseTilesShape& p, int begin) {
    return begin / 2 - before(p.padding_top);
  }
  FUSEDSC_DEVICE static int first_column(const DepthwiseTilesShape& p, int begin) {
    return begin / 2 - before(p.padding_left);
  }
  FUSEDSC_DEVICE static int rows(const DepthwiseTilesShape& p, int begin, int end) {
    return (end - 1 + p.padding_top) / 2 - first_row(p, begin) + 1;
  }
  FUSEDSC_DEVICE static int output_row(const DepthwiseTilesShape& p, int begin, int row) {
    return 2 * (first_row(p, begin) + row) - p.padding_top;
  }
  FUSEDSC_DEVICE static int input(int output, int tap, int padding) {
    const int twice = output + padding - tap;
    return twice % 2 == 0 ? twice / 2 : -1;
  }
};

/// Goes over a block's tiles: pieces of neighbouring rows of the same images, in tiles of `rows` rows of x.
template <class Window>
class DepthwiseTileCursor {
 public:
  int image = 0, column = 0;              ///< of the output, the piece's first
  int begin = 0, end = 0;                 ///< rows of the output
  int row = 0;                            ///< of the tile's first row of x, from the first that the piece needs
  bool exists = false, is_first = false;  ///< is_first: tile of its piece

  FUSEDSC_DEVICE DepthwiseTileCursor(const DepthwiseTilesShape& p, int split) : p_(p) {
    unit_ = split * p.share + least(split, p.longer);
    last_ = unit_ + p.share + (split < p.longer ? 1 : 0);
    begin_piece();
  }
  FUSEDSC_DEVICE void next() {
    row += p_.rows;
    is_first = false;
    if (row >= Window::rows(p_, begin, end)) begin_piece();
  }
  /// Of x, the tile's first row.
  FUSEDSC_DEVICE int input_row() const { return Window::first_row(p_, begin) + row; }
  /// Of the output, the row that the tile's first step completes first.
  FUSEDSC_DEVICE int output_row() const { return Window::output_row(p_, begin, row); }

 private:
  FUSEDSC_DEVICE void begin_piece() {
    exists = unit_ < last_;
    if (!exists) return;
    std::uint32_t strip = static_cast<std::uint32_t>(unit_), rest = p_.strips.divide(strip);
    image = static_cast<int>(p_.column_tiles.divide(rest)) * p_.images;
    column = static_cast<int>(rest) * p_.tile_columns;
    const int strips = (p_.output_height + p_.grain - 1) / p_.grain;
    const int count = least(strips - static_cast<int>(strip), last_ - unit_);
    begin = static_cast<int>(strip) * p_.grain;
    end = least(begin + count * p_.grain, p_.output_height);
    unit_ += count;
    row = 0;
    is_first = true;
  }

  const DepthwiseTilesShape& p_;
  int unit_, last_;
};

/// What the warps that compute must know of a tile, which the thread that copies leaves in shared memory.
struct DepthwiseTileNote {
  int image, column;           ///< of the output, the piece's first
  int input_row;               ///< of x, the tile's first row
  int output_row, begin, end;  ///< of the output: the row that the tile's first completes; the piece's rows
  int is_first, is_last;       ///< tile of its piece, of the block
};
/// An entry of a note, by all lanes of a warp. One reads it, the one that says when the warp is done with the tile: so
/// that tools which look for races see what orders the reading before the next note.
FUSEDSC_DEVICE int read_entry(const int& entry) { return from_lane(thread_index() % 32 == 0 ? entry : 0, 0); }

/// Where run `run` of 16 bytes of a position of a tile lies: TMA swizzles them.
FUSEDSC_DEVICE int swizzled_run(int box_bytes, int run, int position) {
  return (box_bytes == 128 ? run ^ (position & 7) : run ^ (position >> 1 & 3)) * 16;
}

/// Of a tile of segments of `bytes` bytes, which begin `step` bytes behind each other, where a position's run lies.
FUSEDSC_DEVICE int place_in_segments(const DepthwiseTilesShape& p, int bytes, int step, int run, int position) {
  const int byte = position * p.box_bytes + run * 16, segment = byte / bytes;
  return segment * step + byte - segment * bytes;
}

/// The same of a tile whose runs need not be swizzled: with an odd number of them to a position there is no need.
FUSEDSC_DEVICE int place_of_run(const DepthwiseTilesShape& p, int run, int position) {
  return p.swizzles ? swizzled_run(p.box_bytes, run, position) : run * 16;
}

}  // namespace fusedsc::gpu::hopper
