/// What the depthwise kernels, forward and backward, share: how channels are cut into blocks, the parameters packed for
/// them, and the ring of padded rows they read.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_FORWARD_DEPTHWISE_CPU_DEPTHWISE_PLAN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_FORWARD_DEPTHWISE_CPU_DEPTHWISE_PLAN_INL_H_
#undef FUSEDSC_FORWARD_DEPTHWISE_CPU_DEPTHWISE_PLAN_INL_H_
#else
#define FUSEDSC_FORWARD_DEPTHWISE_CPU_DEPTHWISE_PLAN_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include "fusedsc/common/cpu/slices.h"
#include "fusedsc/common/cpu/tile-inl.h"
#include "fusedsc/forward/depthwise.h"
#include "fusedsc/forward/depthwise/cpu/depthwise_kernel-inl.h"
#include "fusedsc/runtime/arena.h"
#include "fusedsc/tuning/config.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

using tuning::Config;
using tuning::Configs;
using tuning::Knob;

/// Channels are worked on in blocks whose rows fit into a cache. Everything packed per channel lies block by block.
struct ChannelBlocks {
  std::int64_t channels = 0;  ///< in all
  std::int64_t block = 0;     ///< in a block; the last may have fewer
  std::int64_t pitch = 0;     ///< rounded up to whole vectors

  std::int64_t count() const { return (channels + block - 1) / block; }
  std::int64_t first(std::int64_t index) const { return index * block; }
  std::int64_t size(std::int64_t index) const { return std::min(block, channels - index * block); }
  /// Size of block `index` in whole vectors: the pitch of its tiles.
  template <class T>
  std::int64_t padded(std::int64_t index) const {
    return round_up(size(index), kLanes<T>);
  }
};

/// Bytes of rows that a block of channels may keep in use: about half of L1 where they are transposed on the way in, a
/// part of L2 where long runs of channels are read anyway.
inline constexpr std::int64_t kTransposedBytes = 32 << 10;
inline constexpr std::int64_t kRunBytes = 256 << 10;

/// Of `channels`, how many a block should have whose rows take `bytes_per_channel`.
inline std::int64_t cached_channels(std::int64_t channels, std::int64_t bytes_per_channel, Layout layout) {
  const std::int64_t bytes = layout == Layout::channels_last ? kRunBytes : kTransposedBytes;
  return std::max<std::int64_t>(std::min(channels, bytes / std::max<std::int64_t>(bytes_per_channel, 1)), 1);
}

/// Blocks of up to `most` of the `channels` (counted with their `multiplier` repeats); at least `wanted_blocks` of them
/// if there is work for so many threads. A block holds whole vectors of channels, and all repeats of a channel.
template <class T>
ChannelBlocks channel_blocks(std::int64_t channels, std::int64_t multiplier, std::int64_t most,
                             std::int64_t wanted_blocks) {
  std::int64_t block = std::max<std::int64_t>(std::min(most, (channels + wanted_blocks - 1) / wanted_blocks), 1);
  if (multiplier > 1) block = std::min(round_up(block, multiplier), channels);
  else block = round_up(block, kLanes<T>);
  return {channels, block, round_up(block, kLanes<T>)};
}

/// How often each input channel is repeated: C_out / C_in.
inline std::int64_t channel_multiplier(const ConstTensorView& x, const ConstTensorView& weight) {
  return weight.sizes[0] / x.sizes[1];
}

/// Whether the register-blocked 3x3 kernels apply.
inline bool is_three_by_three(const Window& window) {
  return window.kernel[0] == 3 && window.kernel[1] == 3 && window.dilation[0] == 1 && window.dilation[1] == 1 &&
         window.stride[0] == window.stride[1] && (window.stride[0] == 1 || window.stride[0] == 2);
}

/// Output columns from which on rows are fetched ahead of their use.
inline constexpr std::int64_t kLeastColumnsAhead = 16;

/// How a forward pass is cut up, in words: "channels=96 columns=8 rows=2 splits=16 ahead=2".
struct DepthwiseTiling {
  std::int64_t channels = 1;              ///< of a block, at most
  std::int64_t splits = Slices::kSlices;  ///< pieces of work, at least, if there are so many
  // Of 3x3 kernels alone.
  std::int64_t rows = 0, columns = 0;  ///< of outputs that are computed together, at most
  std::int64_t ahead = 0;              ///< rows that are fetched ahead of their use: none, or what a block moves on by

  DepthwiseTiling() = default;
  explicit DepthwiseTiling(const Config& config)
      : channels(config[Knob::channels]),
        splits(config[Knob::splits]),
        rows(config[Knob::rows]),
        columns(config[Knob::columns]),
        ahead(config[Knob::ahead]) {}

  Config config() const {
    return {{Knob::channels, channels},
            {Knob::columns, columns},
            {Knob::rows, rows},
            {Knob::splits, splits},
            {Knob::ahead, ahead}};
  }
};

/// Whether the kernels can read x itself, without a ring of padded rows.
template <class T>
bool reads_input_itself(const DepthwiseArguments& arguments) {
  return is_three_by_three(arguments.window) && channel_multiplier(arguments.x, arguments.weight) == 1 &&
         !arguments.prologue && is_tile<T>(arguments.x);
}

/// Rows and columns of x that the windows of some output rows see.
inline std::int64_t window_rows(const DepthwiseArguments& arguments, std::int64_t output_rows) {
  const Window& window = arguments.window;
  return (output_rows - 1) * window.stride[0] + (window.kernel[0] - 1) * window.dilation[0] + 1;
}
inline std::int64_t window_columns(const DepthwiseArguments& arguments) {
  const Window& window = arguments.window;
  return (arguments.y.sizes[3] - 1) * window.stride[1] + (window.kernel[1] - 1) * window.dilation[1] + 1;
}

/// What is taken where nothing was measured; `one_block` keeps channels together.
template <class T>
DepthwiseTiling prior_tiling(const DepthwiseArguments& arguments, bool one_block = false) {
  const bool three_by_three = is_three_by_three(arguments.window), direct = reads_input_itself<T>(arguments);
  DepthwiseTiling tiling;
  if (three_by_three) {
    tiling.rows = kDepthwiseRows;
    tiling.columns = widest_block_columns(arguments.y.sizes[3]);
  }
  // At stride 2 a block has four times the lines to fetch for its arithmetic, and short rows the hardware sees by
  // itself: there it costs more than it gives.
  if (direct && arguments.window.stride[0] == 1 && arguments.y.sizes[3] >= kLeastColumnsAhead) {
    tiling.ahead = kDepthwiseRows;
  }
  const std::int64_t rows = window_rows(arguments, three_by_three ? kDepthwiseRows : 1);
  const std::int64_t ring_bytes =
      direct || one_block ? 0 : rows * window_columns(arguments) * static_cast<std::int64_t>(sizeof(T));
  tiling.channels =
      cached_channels(arguments.weight.sizes[0], ring_bytes, layout_of(arguments.x.sizes, arguments.x.strides));
  return tiling;
}

/// How a forward pass is cut up: a pure function of the problem and the tiling.
template <class T>
struct DepthwisePlan {
  std::int64_t multiplier = 1;
  std::int64_t output_columns = 0;
  ChannelBlocks blocks;
  bool three_by_three = false;
  bool direct = false;         ///< the kernels read x itself, not a ring of padded rows
  bool fetches_ahead = false;  ///< the kernels fetch the rows that the next blocks read and write
  std::int64_t step_rows = 1;  ///< output rows computed together
  std::int64_t step_columns = 1;
  std::int64_t ring_rows = 0, ring_columns = 0;

  /// `wanted_blocks` is how many pieces of work the channels should give.
  DepthwisePlan(const DepthwiseArguments& arguments, std::int64_t wanted_blocks, const DepthwiseTiling& tiling)
      : multiplier(channel_multiplier(arguments.x, arguments.weight)),
        output_columns(arguments.y.sizes[3]),
        blocks(channel_blocks<T>(arguments.weight.sizes[0], multiplier, tiling.channels, wanted_blocks)),
        three_by_three(is_three_by_three(arguments.window)),
        direct(reads_input_itself<T>(arguments)),
        fetches_ahead(direct && tiling.ahead > 0),
        step_rows(three_by_three ? tiling.rows : 1),
        step_columns(tiling.columns),
        ring_rows(window_rows(arguments, step_rows)),
        ring_columns(window_columns(arguments)) {}
};

/// body(rows, part, tap) for the rows of a window, joined where they can be: a depthwise weight [C*m, 1, Kh, Kw] is to
/// the tiles' code an image of Kh x Kw positions. `tap` is the first one of the part.
template <class View, class Body>
void for_each_tap_row(View weight, std::int64_t first_channel, std::int64_t channels, const Body& body) {
  weight.sizes = {1, weight.sizes[0], weight.sizes[2], weight.sizes[3]};
  weight.strides = {0, weight.strides[0], weight.strides[2], weight.strides[3]};
  join_rows(weight);
  TilePart part{.positions = weight.sizes[3], .channel = first_channel, .channels = channels};
  for (; part.row < weight.sizes[2]; ++part.row) body(weight, part, part.row * part.positions);
}

/// Weights, bias and prologue of a depthwise convolution as the kernels read them: block by block, [tap][pitch].
template <class T>
struct DepthwiseParameters {
  ChannelBlocks blocks;
  std::int64_t multiplier = 1, tap_count = 0;
  T* taps = nullptr;
  T* bias = nullptr;   ///< null without bias
  T* scale = nullptr;  ///< null without prologue
  T* shift = nullptr;
  Activation activation = Activation::identity;

  DepthwiseParameters(const ChannelBlocks& blocks_, std::int64_t multiplier_, const Window& window, bool has_bias,
                      const Prologue& prologue, Arena& arena)
      : blocks(blocks_), multiplier(multiplier_), tap_count(window.kernel[0] * window.kernel[1]) {
    const std::int64_t size = blocks.count() * blocks.pitch;
    taps = arena.take<T>(tap_count * size);
    if (has_bias) bias = arena.take<T>(size);
    if (!prologue) return;
    scale = arena.take<T>(size);
    shift = arena.take<T>(size);
    activation = prologue.activation;
  }

  void pack(const ConstTensorView& weight, const ConstChannelVector& bias_vector, const Prologue& prologue) {
    for (std::int64_t b = 0; b < blocks.count(); ++b) {
      const std::int64_t first = blocks.first(b), size = blocks.size(b), at = b * blocks.pitch;
      const std::int64_t pitch = blocks.template padded<T>(b);
      for_each_tap_row(weight, first, size, [&](const ConstTensorView& rows, const TilePart& part, std::int64_t tap) {
        load_tile<T>(rows, part, {}, taps + tap_count * at + tap * pitch);
      });
      if (bias != nullptr) copy_channels(bias_vector, T(0), first, size, 1, bias + at);
      if (scale == nullptr) continue;
      copy_channels(prologue.scale, T(1), first, size, multiplier, scale + at);
      copy_channels(prologue.shift, T(0), first, size, multiplier, shift + at);
    }
  }

  DepthwiseWeights<T> weights(std::int64_t block) const {
    const std::int64_t at = block * blocks.pitch;
    return {taps + tap_count * at, blocks.template padded<T>(block), bias == nullptr ? nullptr : bias + at};
  }
  AffineVectors<T> prologue(std::int64_t block) const {
    if (scale == nullptr) return {};
    return {scale + block * blocks.pitch, shift + block * blocks.pitch, activation};
  }
};

/// The input rows that the windows of a few output rows see, as tile rows with their zero padding on both sides. A
/// ring: a row is loaded when it is first asked for, and stays until the ring comes round.
template <class T>
class PaddedRowRing {
 public:
  /// `columns` long rows whose column 0 is column -`left` of the tensor.
  PaddedRowRing(std::int64_t slots, std::int64_t columns, std::int64_t left, std::int64_t pitch, Arena& arena)
      : slots_(slots),
        columns_(columns),
        left_(left),
        rows_(arena.take<T>(slots * columns * pitch)),
        zero_row_(arena.take<T>(columns * pitch)),
        loaded_(arena.take<std::int64_t>(slots)) {}

  /// Forgets all rows: the next ones belong to another image or other channels.
  void begin(std::int64_t image, std::int64_t channel, std::int64_t channels, std::int64_t multiplier,
             std::int64_t width) {
    part_ = {.image = image, .channel = channel, .channels = channels, .multiplier = multiplier};
    pitch_ = round_up(channels, kLanes<T>);
    part_.positions = std::clamp<std::int64_t>(columns_ - left_, 0, width);
    std::fill(loaded_, loaded_ + slots_, -1);
    if (pitch_ != zeroed_pitch_) write_zeros();
  }

  /// Row `row` of the tensor; `load(part, to)` fills it when it is not there yet. Zeros outside [0, height).
  template <class Load>
  const T* row(std::int64_t row, std::int64_t height, const Load& load) {
    if (row < 0 || row >= height) return zero_row_;
    const std::int64_t slot = row % slots_;
    T* to = rows_ + slot * columns_ * pitch_;
    if (loaded_[slot] != row) {
      part_.row = row;
      load(part_, to + std::min(left_, columns_) * pitch_);
      loaded_[slot] = row;
    }
    return to;
  }

 private:
  /// The zeros around the rows stay where they are until the rows' pitch changes.
  void write_zeros() {
    const std::int64_t before = std::min(left_, columns_), after = columns_ - before - part_.positions;
    for (std::int64_t slot = 0; slot < slots_; ++slot) {
      T* row = rows_ + slot * columns_ * pitch_;
      std::fill(row, row + before * pitch_, T(0));
      std::fill(row + (columns_ - after) * pitch_, row + columns_ * pitch_, T(0));
    }
    std::fill(zero_row_, zero_row_ + columns_ * pitch_, T(0));
    zeroed_pitch_ = pitch_;
  }

  std::int64_t slots_, columns_, left_;
  T* rows_;
  T* zero_row_;
  std::int64_t* loaded_;
  TilePart part_;
  std::int64_t pitch_ = 0, zeroed_pitch_ = 0;
};

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
