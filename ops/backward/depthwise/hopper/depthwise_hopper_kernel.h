/// Depthwise convolution on Hopper GPUs, 3x3 and 5x5: both gradients from the same loads, or that of x alone. Each
/// element of x is visited once (Wang et al., DSXplore, section IV-B), with the output gradients around it in
/// registers: they make its gradient, and its share of the weight's. Warps go their own ways: each has its own tiles,
/// its own copies under way, and waits for no other.
#pragma once

#include "fusedsc/backward/depthwise/hopper/depthwise_hopper_parameters.h"
#include "fusedsc/common/gpu/sums/keep_order.h"
#include "fusedsc/common/gpu/tensors/vector.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/depthwise/hopper/warp_stages.h"

namespace fusedsc::gpu::hopper {

/// Of a warp's threads kLanes have neighbouring words of channels (two of 16 bits or one of 32), the others the same
/// for further columns. kWhole: the images' columns fill all tiles.
template <class T, int kKernel, int kStride, int kLanes, bool kWhole, GradientsFusion kFusion>
class DepthwiseFusedGradients {
 public:
  static constexpr int kWide = 4 / static_cast<int>(sizeof(T));  ///< channels of a thread
  /// Of a multiprocessor: what registers allow.
  static constexpr int kMostWarps = kKernel > 3 ? 8 : kStride == 1 && kWhole ? 16 : 12;
  static constexpr int kGroups = 32 / kLanes, kChannels = kWide * kLanes;
  static constexpr int kColumns = 7;  ///< of the output, per thread; odd, so that groups meet in different banks
  static constexpr int kTileColumns = kColumns * kGroups;
  static constexpr bool kHasOutput = kFusion != GradientsFusion::none && kFusion != GradientsFusion::input_alone,
                        kHasInput = kFusion != GradientsFusion::input_alone,
                        kHasPrologue = kFusion >= GradientsFusion::clamp, kIsSmooth = kFusion > GradientsFusion::clamp;
  static constexpr int kRows = kHasInput ? kKernel * kKernel + (kHasPrologue ? 2 : 0) : 0;  ///< of partial sums

  // Of the output, rows (and columns) that reach the input rows of the same place: some before it, and some behind.
  static constexpr int kPadding = (kKernel - 1) / 2;
  static constexpr int kBefore = kPadding / kStride, kAfter = (kPadding + kStride - 1) / kStride;
  static constexpr int kLive = kBefore + 1 + kAfter, kGradColumns = kColumns + kLive - 1;
  static constexpr int kGradTileColumns = kTileColumns + kLive - 1;

 private:
  using Weights = GradientsWeights<T, kKernel, kWide, kLanes>;
  static constexpr int kTogether = Weights::kInMemory ? kColumns : 1;  ///< elements for which a weight is read once
  static constexpr bool kReadsTwice = kTogether > 1 && kIsSmooth;      ///< x, to have registers
  /// Rows of the code's loop, over which registers rotate; or, as long as that would be with a large window or a smooth
  /// activation at stride 2, rows move: instructions that no cache holds cost more.
  static constexpr int kTransposes = kKernel > 3 || (kIsSmooth && kStride > 1) ? 1 : kLive;
  static constexpr int kPitch = kLanes * 4;  ///< bytes from column to column of a tile
  static constexpr int kGradBytes = kGradTileColumns * kPitch, kGradPlace = (kGradBytes + 127) / 128 * 128;
  static constexpr int kInputRowBytes = kTileColumns * kStride * kPitch, kInputBytes = kInputRowBytes * kStride;
  static constexpr int kStages = 2, kOuts = kStride == 1 ? 2 : 1;
  static constexpr int kStageInputBytes = kHasInput ? kInputBytes : 0;
  static constexpr int kStageBytes = kStageInputBytes + kGradPlace * (kHasOutput ? 2 : 1);
  static constexpr int kWarpBytes = kStages * kStageBytes + kOuts * kInputBytes;
  static constexpr int kSums = kRows * kWide;  ///< of a thread

 public:
  FUSEDSC_HOST_DEVICE static constexpr int memory_bytes(int warps) {
    const int tiles = WarpStages::block_bytes(warps, kWarpBytes, kStages) + Weights::kMemoryBytes;
    const int sums = 4 * 32 * warps * kSums;
    return tiles > sums ? tiles : sums;
  }

  FUSEDSC_DEVICE static void run(const DepthwiseFusedGradientsParameters& p) {
    DepthwiseFusedGradients fused(p);
    fused.loop();
    if constexpr (kHasInput) fused.leave_sums();
  }

 private:
  struct Strip {
    int image, begin, end, column;
  };
  using Row = float[kGradColumns][kWide];

  FUSEDSC_DEVICE explicit DepthwiseFusedGradients(const DepthwiseFusedGradientsParameters& p)
      : p_(p), stages_(p.warps, uniform(thread_index() / 32), kWarpBytes, kStages) {
    const int warp = uniform(thread_index() / 32), thread = thread_index() % 32;
    group_ = thread / kLanes;
    std::uint32_t channel_group = block_index();
    split_ = static_cast<int>(p.by_channel_groups.divide(channel_group));
    first_channel_ = static_cast<int>(channel_group) * kChannels;
    item_ = split_ * p.warps + warp;
    item_step_ = p.splits * p.warps;
    lane_bytes_ = thread % kLanes * 4;
#pragma unroll
    for (int i = 0; i < kKernel * kKernel * kWide; ++i) grad_weight_[i / kWide][i % kWide] = 0;
#pragma unroll
    for (int v = 0; v < kWide; ++v) sum_[v] = sum_centered_[v] = 0;
  }

  FUSEDSC_DEVICE Strip strip_of(int item) const {
    std::uint32_t tile = static_cast<std::uint32_t>(item);
    std::uint32_t strip = p_.column_tiles.divide(tile);
    const int image = static_cast<int>(p_.strips.divide(strip)), begin = static_cast<int>(strip) * p_.strip_rows;
    return {image, begin, least(begin + p_.strip_rows, p_.output_height), static_cast<int>(tile) * kTileColumns};
  }
  /// The first row of grad_y that a strip needs.
  FUSEDSC_DEVICE static int first_row(const Strip& strip) { return strip.begin > kBefore ? strip.begin - kBefore : 0; }

  // ------------------------------------------------------------------------------------------------- copies under way

  /// A row of grad_y, and the rows of x that it completes the neighbourhood of.
  FUSEDSC_DEVICE void start_next() {
    if (next_item_ >= p_.items) return;
    if (stages_.is_leader) {
      const bool has_x = kHasInput && next_row_ >= next_.begin + kAfter;
      Barrier* barrier = stages_.barriers + slot_;
      unsigned char* to = stages_.memory + slot_ * kStageBytes;
      expect(barrier, kGradBytes * (kHasOutput ? 2 : 1) + (has_x ? kInputBytes : 0));
      const ImagePlace from{first_channel_, next_.column - kBefore, next_row_, next_.image};
      start_load(to + kStageInputBytes, p_.grad_y, from, barrier);
      if constexpr (kHasOutput) start_load(to + kStageInputBytes + kGradPlace, p_.output, from, barrier);
      if (has_x) {
        start_load(to, p_.x, {first_channel_, next_.column * kStride, (next_row_ - kAfter) * kStride, next_.image},
                   barrier);
      }
    }
    if (++next_row_ < next_.end + kAfter) return;
    next_item_ += item_step_;
    next_ = strip_of(next_item_);
    next_row_ = first_row(next_);
  }

  FUSEDSC_DEVICE void next_slot() {
    if (++slot_ < kStages) return;
    slot_ = 0;
    parity_ ^= 1;
  }

  FUSEDSC_DEVICE void loop() {
    stages_.start();
    next_item_ = item_;
    next_ = strip_of(next_item_);
    next_row_ = first_row(next_);
    keep_order(static_cast<std::uint32_t>(next_.image | next_.end | next_.column | next_row_) & 0x7fffffffu);
    wait_for_previous_kernel();
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      start_next();
      next_slot();
    }
    parity_ = 0;
    of_.load(p_, first_channel_ + lane_bytes_ / 4 * kWide);
    weights_.load(p_, first_channel_, stages_.rest);
#pragma unroll 1
    while (item_ < p_.items) {
      run_strip(strip_of(item_));
      item_ += item_step_;
    }
    if (stages_.is_leader) wait_for_stores();
  }

  // ------------------------------------------------------------------------------------------------------ a strip

  FUSEDSC_DEVICE void run_strip(const Strip& strip) {
    aim(strip);
    Row g[kLive];
#pragma unroll
    for (int before = kBefore; before > 0; --before) {
      Row& row = g[kBefore - before];
      if (strip.begin < before) {
#pragma unroll
        for (int i = 0; i < kGradColumns * kWide; ++i) row[i / kWide][i % kWide] = 0;
      } else {
        run_early_row(row, strip.begin - before);
      }
    }
#pragma unroll
    for (int i = 0; i < kAfter; ++i) run_early_row(g[kBefore + i], strip.begin + i);
    int row = strip.begin;  // of those that can be finished with the next row of grad_y
#pragma unroll 1
    while (row < strip.end) {
#pragma unroll
      for (int r = 0; r < kTransposes; ++r) {
        if (kTransposes == 1 || row < strip.end) run_row(g, r, strip, row);
        ++row;
      }
      if constexpr (kTransposes == 1) {
#pragma unroll
        for (int i = 0; i < (kLive - 1) * kGradColumns * kWide; ++i) {
          const int column = i / kWide % kGradColumns, live = i / kWide / kGradColumns;
          g[live][column][i % kWide] = g[live + 1][column][i % kWide];
        }
      }
    }
  }

  /// Which of the thread's columns are inside of the image.
  FUSEDSC_DEVICE void aim(const Strip& strip) {
    column_ = strip.column + group_ * kColumns;
#pragma unroll
    for (int v = 0; v < kWide; ++v) {
      first_offset_[v] = kBefore > 0 && column_ == 0 ? 0 : of_.offset[v];
      last_offset_[v] = column_ + kColumns >= p_.output_width ? 0 : of_.offset[v];
    }
  }

  FUSEDSC_DEVICE void run_early_row(Row& g, int row) {
    wait(stages_.barriers + slot_, parity_);
    read_gradients(g, row);
    warp_barrier();
    start_next();
    next_slot();
  }

  FUSEDSC_DEVICE static Vector<T, kWide> read(const unsigned char* tile, int column) {
    return load<kWide>(reinterpret_cast<const T*>(tile + column * kPitch));
  }

  /// A row of grad_y through the prologue. What is outside of the image came as zeros, and needs an offset of zero.
  FUSEDSC_DEVICE void read_gradients(Row& g, int row) const {
    const unsigned char* tile =
        stages_.memory + slot_ * kStageBytes + kStageInputBytes + group_ * (kColumns * kPitch) + lane_bytes_;
    const bool has_row = row < p_.output_height;
    float offset[3][kWide];  // of columns before the thread's, behind them and of its own
#pragma unroll
    for (int v = 0; v < kWide; ++v) {
      offset[0][v] = has_row ? first_offset_[v] : 0;
      offset[1][v] = has_row ? last_offset_[v] : 0;
      offset[2][v] = has_row ? of_.offset[v] : 0;
    }
#pragma unroll
    for (int c = 0; c < kGradColumns; ++c) {
      read(tile, c).widen(g[c]);
      if constexpr (!kHasOutput) continue;
      float output[kWide];
      read(tile + kGradPlace, c).widen(output);
      const int side = c < kBefore ? 0 : c >= kBefore + kColumns ? 1 : 2;
#pragma unroll
      for (int v = 0; v < kWide; ++v) {
        g[c][v] = g[c][v] * of_.grad_scale[v] + (output[v] * of_.output_scale[v] + offset[side][v]);
        if constexpr (!kWhole) g[c][v] = column_ - kBefore + c < p_.output_width ? g[c][v] : 0;
      }
    }
  }

  /// g: of the rows around, `r` the oldest; the newest is read here.
  FUSEDSC_DEVICE void run_row(Row (&g)[kLive], int r, const Strip& strip, int row) {
    wait(stages_.barriers + slot_, parity_);
    if (stages_.is_leader) wait_for_stores<kOuts - 1>();
    warp_barrier();
    read_gradients(g[(r + kLive - 1) % kLive], row + kAfter);
    constexpr int kThreadBytes = kColumns * kStride * kPitch;
    const int place = group_ * kThreadBytes + lane_bytes_;
    const unsigned char* tile = stages_.memory + slot_ * kStageBytes + place;
    unsigned char* out = stages_.memory + kStages * kStageBytes + out_ * kInputBytes;
#pragma unroll
    for (int i = 0; i < kStride; ++i) {
#pragma unroll
      for (int c = 0; c < kColumns * kStride; c += c % kStride == kStride - 1 ? (kTogether - 1) * kStride + 1 : 1) {
        run_elements(g, r, i, c, row, tile + i * kInputRowBytes, out + place + i * kInputRowBytes);
      }
    }
    publish();
    warp_barrier();
    if (stages_.is_leader) {
      start_store(p_.grad_x, {first_channel_, strip.column * kStride, row * kStride, strip.image}, out);
      commit_stores();
    }
    start_next();
    next_slot();
    out_ = kOuts - 1 - out_;
  }

  /// Of input row i of those of an output row: element `first` and others whose windows are in the same place.
  FUSEDSC_DEVICE void run_elements(const Row (&g)[kLive], int r, int i, int first, int row, const unsigned char* tile,
                                   unsigned char* out) {
    float raw[kTogether][kWide] = {}, z[kTogether][kWide] = {}, a[kTogether][kWide], sum[kTogether][kWide] = {};
    // Of the row, in the image. Which columns are inside depends on the row, or the compiler would keep that of all of
    // them in registers.
    const int columns = row * kStride + i < p_.input_height ? p_.input_width - column_ * kStride : 0;
    bool inside[kTogether];
#pragma unroll
    for (int e = 0; e < kTogether; ++e) {
      const int c = first + e * kStride;
      inside[e] = kWhole || c < columns;
      if constexpr (kHasInput) read_input(tile, c, raw[e], z[e]);
#pragma unroll
      for (int v = 0; v < kWide; ++v) {
        a[e][v] = kFusion == GradientsFusion::clamp ? clamped(z[e][v], p_.low, p_.high) : z[e][v];
      }
      if constexpr (kIsSmooth) activate(activation(), a[e]);
#pragma unroll
      for (int v = 0; v < kWide; ++v) {
        if constexpr (!kWhole && kHasPrologue) a[e][v] = inside[e] ? a[e][v] : 0;
      }
    }
    add_taps(g, r, i, first, a, sum);
    if constexpr (kReadsTwice) warp_barrier();  // or the compiler would keep what it has read
#pragma unroll
    for (int e = 0; e < kTogether; ++e) {
      if constexpr (kReadsTwice) read_input(tile, first + e * kStride, raw[e], z[e]);
      if constexpr (kIsSmooth) activate_backward(activation(), z[e], sum[e]);
#pragma unroll
      for (int v = 0; v < kWide; ++v) {
        float& result = sum[e][v];
        if constexpr (kFusion == GradientsFusion::clamp) result = z[e][v] > p_.low && z[e][v] < p_.high ? result : 0;
        if constexpr (!kWhole) result = inside[e] ? result : 0;
        if constexpr (kHasPrologue) {
          sum_[v] += result;
          sum_centered_[v] += result * (raw[e][v] - of_.mean[v]);
        }
      }
      store<kWide>(sum[e], reinterpret_cast<T*>(out + (first + e * kStride) * kPitch));
    }
  }

  /// The compiler knows which: to ask at each element takes several times as long as the activation itself. But for
  /// GELU with large windows, of which it would have more elements under way than there are registers.
  FUSEDSC_DEVICE Activation activation() const {
    return kFusion == GradientsFusion::silu        ? Activation::silu
           : kFusion == GradientsFusion::hardswish ? Activation::hardswish
           : kKernel > 3                           ? p_.activation
                                                   : Activation::gelu;
  }

  /// Column c of x as it is, and normalised.
  FUSEDSC_DEVICE void read_input(const unsigned char* tile, int c, float (&raw)[kWide], float (&z)[kWide]) const {
    read(tile, c).widen(raw);
#pragma unroll
    for (int v = 0; v < kWide; ++v) z[v] = kHasPrologue ? raw[v] * of_.scale[v] + of_.shift[v] : raw[v];
  }

  /// The windows that elements a are in: their gradients to `sum`, and the elements' shares of the weight's.
  FUSEDSC_DEVICE void add_taps(const Row (&g)[kLive], int r, int i, int first, const float (&a)[kTogether][kWide],
                               float (&sum)[kTogether][kWide]) {
#pragma unroll
    for (int kh = 0; kh < kKernel; ++kh) {
      if ((i + kPadding - kh) % kStride != 0) continue;
      const int newer = kBefore + (i + kPadding - kh) / kStride;  // than the oldest row
#pragma unroll
      for (int kw = 0; kw < kKernel; ++kw) {
        if ((first + kPadding - kw) % kStride != 0) continue;
        const int column = kBefore + (first + kPadding - kw) / kStride;
        float weight[kWide];
        weights_.read(kh * kKernel + kw, weight);
#pragma unroll
        for (int e = 0; e < kTogether; ++e) {
#pragma unroll
          for (int v = 0; v < kWide; ++v) {
            const float gradient = g[(r + newer) % kLive][column + e][v];
            sum[e][v] += gradient * weight[v];
            if constexpr (kHasInput) grad_weight_[kh * kKernel + kw][v] += gradient * a[e][v];
          }
        }
      }
    }
  }

  // ------------------------------------------------------------------------------------------------------------- sums

  /// The block's sums, added up in the order of its warps.
  FUSEDSC_DEVICE void leave_sums() {
    float values[kSums];
#pragma unroll
    for (int tap = 0; tap < kKernel * kKernel; ++tap) {
#pragma unroll
      for (int v = 0; v < kWide; ++v) values[tap * kWide + v] = grad_weight_[tap][v];
    }
    if constexpr (kHasPrologue) {
#pragma unroll
      for (int v = 0; v < kWide; ++v) {
        values[kSums - 2 * kWide + v] = sum_[v];
        values[kSums - kWide + v] = sum_centered_[v];
      }
    }
    float* memory = static_cast<float*>(shared_memory());
    const int threads = p_.warps * 32;
    block_barrier();  // all warps are done with it
#pragma unroll
    for (int i = 0; i < kSums; ++i) memory[i * threads + thread_index()] = values[i];
    block_barrier();
    float* partials = p_.partials + static_cast<std::int64_t>(split_) * kRows * p_.channels;
    for (int i = thread_index(); i < kSums * kLanes; i += threads) {
      const int value = i / kLanes, lane = i % kLanes, channel = first_channel_ + lane * kWide + value % kWide;
      const float* from = memory + value * threads + lane;
      float sum = 0;
      for (int part = 0; part < threads; part += kLanes) sum += from[part];
      if (channel < p_.channels) partials[static_cast<std::int64_t>(value / kWide) * p_.channels + channel] = sum;
    }
  }

  const DepthwiseFusedGradientsParameters& p_;
  int group_;  ///< of the warp's threads
  int split_, first_channel_, item_, item_step_;
  const WarpStages stages_;  ///< of x, grad_y and output; then finished rows
  int lane_bytes_;
  int slot_ = 0, parity_ = 0, out_ = 0;
  int next_item_ = 0, next_row_ = 0;  ///< what is copied next
  Strip next_{};
  int column_ = 0;  ///< the thread's first, of the output
  GradientsChannels<kWide> of_;
  Weights weights_;
  float first_offset_[kWide], last_offset_[kWide];  ///< of the gradient prologue, in the thread's outer columns
  float sum_[kWide], sum_centered_[kWide], grad_weight_[kKernel * kKernel][kWide];
};

}  // namespace fusedsc::gpu::hopper
