/// Depthwise convolution on GPUs, forward.
#pragma once

#include "fusedsc/common/gpu/sums/moments.h"
#include "fusedsc/forward/depthwise/depthwise_shape.h"
#include "fusedsc/forward/depthwise/rows/depthwise_rows.h"

namespace fusedsc::gpu {

struct DepthwiseParameters {
  ConstDeviceTensor x, weight;
  const void* bias = nullptr;
  DevicePrologue prologue, epilogue;
  ConstDeviceTensor residual;
  DeviceTensor y;
  void* partials = nullptr;  ///< of the statistics, where they are wanted: see leave_moments
  DepthwiseShape shape;
  ItemWork work;
  bool join_columns = false;  ///< a thread's columns of y may be stored as one vector
};

/// What happens to finished outputs: bias, statistics, epilogue, and into memory.
template <class T, int kChannels, int kColumns, DepthwiseFusion kFusion>
struct DepthwiseSink {
  using A = Accumulator<T>;
  static constexpr bool kHasStatistics = kFusion == DepthwiseFusion::training || kFusion == DepthwiseFusion::any;
  static constexpr bool kHasEpilogue = kFusion == DepthwiseFusion::eval || kFusion == DepthwiseFusion::any;

  const DepthwiseParameters& p;
  int channel;
  A bias[kChannels];
  ShiftedMoments<A, kChannels> moments;
  T* next = nullptr;            ///< where the row goes that is finished next
  const T* residual = nullptr;  ///< likewise
  int row = 0, rows = 0;        ///< which of the strip's rows that is, and how many the image has there
  int columns = 0;              ///< how many of the thread's columns the image has

  FUSEDSC_DEVICE DepthwiseSink(const DepthwiseParameters& p_, int channel_) : p(p_), channel(channel_) {
    load_channels(p.bias, channel, A(0), bias, T());
  }

  /// At a strip of `rows_` rows. `early` rows will be finished before its first: they are none.
  FUSEDSC_DEVICE void aim(int image, int first_row, int rows_, int early, int column) {
    row = -early;
    rows = p.shape.output_height - first_row < rows_ ? p.shape.output_height - first_row : rows_;
    columns = p.shape.output_width - column < kColumns ? p.shape.output_width - column : kColumns;
    next = elements_of<T>(p.y) + p.y.offset(image, channel, first_row - early, column);
    if constexpr (kHasEpilogue) {
      residual = elements_of<T>(p.residual) + p.residual.offset(image, channel, first_row - early, column);
    }
  }

  /// Rows come in their order; their sums have begun with the bias. Stores are predicated: a branch here would end the
  /// compiler's view over the loads on their way.
  FUSEDSC_DEVICE void finish(A (&y)[kColumns * kChannels]) {
    bool inside = row >= 0 && row < rows;
    T* to = next;
    ++row;
    next += p.y.row;
    if constexpr (kHasStatistics) {
      if (inside && p.partials != nullptr) moments.template add<kColumns>(y, columns);
    }
    if constexpr (kHasEpilogue) {
      if (inside && p.partials == nullptr) apply_epilogue(y);
      residual += p.residual.row;
    }
    if constexpr (kHasStatistics) inside = inside && p.y.data != nullptr;
    bool joined = false;
    if constexpr (kChannels == 1 && (kColumns == 2 || kColumns == 4)) {
      joined = p.join_columns && columns == kColumns;
      if (inside && joined) store<kColumns>(y, to);
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (inside && !joined && c < columns) store<kChannels>(y + c * kChannels, to + c * p.y.column);
    }
  }

  FUSEDSC_DEVICE void apply_epilogue(A (&y)[kColumns * kChannels]) {
    A scale[kChannels], shift[kChannels];
    load_channels(p.epilogue.scale, channel, A(1), scale, A());
    load_channels(p.epilogue.shift, channel, A(0), shift, A());
#pragma unroll
    for (int i = 0; i < kColumns * kChannels; ++i) y[i] = y[i] * scale[i % kChannels] + shift[i % kChannels];
    activate(p.epilogue.activation, y);
    if (p.residual.data == nullptr) return;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (c >= columns) continue;
      A added[kChannels];
      load<kChannels>(residual + c * p.residual.column).widen(added);
#pragma unroll
      for (int v = 0; v < kChannels; ++v) y[c * kChannels + v] += added[v];
    }
  }
};

/// Row data reuse with rotating registers: each input row is loaded once, serves every output row whose window covers
/// it, and an output row leaves its registers when its window's last row has been seen. Rows are unrolled by the period
/// after which all registers have their first role again, so that none is ever moved.
template <class T, int kKernel, int kStride, int kChannels, int kColumns, int kAhead, DepthwiseFusion kFusion>
struct DepthwiseRows {
  using A = Accumulator<T>;
  static constexpr int kInputColumns = (kColumns - 1) * kStride + kKernel;
  static constexpr int kLive = (kKernel - 1) / kStride + 1;  // output rows whose windows overlap
  static constexpr int kPeriod = common_multiple(kLive * kStride, kAhead + 1);
  static constexpr bool kInMemory = kRowsInMemory<T, kChannels, kKernel>;
  // Rows of padding are worth a branch where a row is much work.
  static constexpr bool kSkipsPadding =
      kInMemory && (kFusion != DepthwiseFusion::none || (kKernel >= 5 && sizeof(T) > 2));
  // Weights come after all rows that there is room for have been asked for: where registers allow.
  static constexpr bool kAsksFirst = kInMemory && kKernel == 3 && sizeof(T) == 2 && kFusion == DepthwiseFusion::none;
  using Source = ActivationSource<T, kChannels, kInputColumns, kFusion != DepthwiseFusion::none, kInMemory>;
  using Rows = RowsAhead<Source, kAhead>;

  /// A row of x of place r in its period begins a row of y with the bias,
  static FUSEDSC_DEVICE void begin(A (&y)[kColumns * kChannels],
                                   const DepthwiseSink<T, kChannels, kColumns, kFusion>& sink, int r) {
    if (r % kStride != 0) return;
#pragma unroll
    for (int i = 0; i < kColumns * kChannels; ++i) y[i] = sink.bias[i % kChannels];
  }
  /// and adds to all whose windows cover it.
  static FUSEDSC_DEVICE void add(const A (&row)[kInputColumns * kChannels],
                                 const A (&weights)[kKernel * kKernel * kChannels],
                                 A (&sums)[kLive][kColumns * kChannels], int r) {
#pragma unroll
    for (int kh = kKernel - 1; kh >= 0; --kh) {    // the oldest output row first
      const int ago = r - kh + kKernel * kPeriod;  // since its window began, modulo the period
      if (ago % kStride != 0) continue;
      A(&y)[kColumns * kChannels] = sums[ago / kStride % kLive];
#pragma unroll
      for (int i = 0; i < kColumns * kChannels; ++i) {
        const int c = i / kChannels, v = i % kChannels;
#pragma unroll
        for (int kw = 0; kw < kKernel; ++kw) {
          y[i] += row[(c * kStride + kw) * kChannels + v] * weights[(kh * kKernel + kw) * kChannels + v];
        }
      }
    }
  }

  FUSEDSC_DEVICE static void run(const DepthwiseParameters& p) {
    const ItemShare share(p.work);
    const int channel = share.channel(p.work, kChannels);
    const bool idle = share.is_idle(p.work, channel, p.shape.channels);
    const int safe_channel = idle ? 0 : channel;

    A weights[kKernel * kKernel * kChannels];
    if constexpr (!kAsksFirst) load_weights<T, kKernel, kKernel, kChannels>(p.weight, safe_channel, weights);
    DepthwiseSink<T, kChannels, kColumns, kFusion> sink(p, safe_channel);
    Source x;
    x.set_channel(p.prologue, safe_channel);
    Rows rows(0);
    const int input_rows = (p.work.strip_rows - 1) * kStride + kKernel;  // the same for all threads: no divergence

    for (std::uint32_t item = share.item; item < p.work.items && !idle; item += share.step) {
      const ItemStrip strip(p.work, item);
      const int column = strip.column_group * kColumns, first_row = strip.row * kStride - p.shape.padding_top;
      sink.aim(strip.image, strip.row, p.work.strip_rows, (kKernel - 1) / kStride, column);
      x.window.aim(p.x, strip.image, channel, first_row, column * kStride - p.shape.padding_left, p.shape.input_height,
                   p.shape.input_width);
#pragma unroll
      for (int r = 0; r < kAhead + (kAsksFirst ? 1 : 0); ++r) {
        rows.ask(x, r);
        commit_copies();
      }
      if constexpr (kAsksFirst) {  // while the first rows are on their way
        if (item == share.item) load_weights<T, kKernel, kKernel, kChannels>(p.weight, safe_channel, weights);
      }
      A sums[kLive][kColumns * kChannels] = {};
      for (int first = 0; first < input_rows; first += kPeriod) {
#pragma unroll
        for (int r = 0; r < kPeriod; ++r) {
          if constexpr (kInMemory) {
            if (first + r >= input_rows) break;
            if constexpr (!kAsksFirst) {
              if (first + r + kAhead < input_rows) rows.ask(x, r + kAhead);
              commit_copies();
            }
            wait_for_copies<kAhead>();
          } else {  // without branches: rows beyond the strip are computed, and not kept
            rows.ask(x, r + kAhead);
          }
          const auto& arrived = rows.take(x, r);
          if constexpr (kAsksFirst) {  // to where this one was
            if (first + r + kAhead + 1 < input_rows) rows.ask(x, r + kAhead + 1);
            commit_copies();
          }
          begin(sums[r / kStride % kLive], sink, r);
          if (!kSkipsPadding || arrived.mask != 0) {
            A row[kInputColumns * kChannels];
            x.widen(arrived, row);
            add(row, weights, sums, r);
          }
          constexpr int kLast = kKernel - 1;
          if ((r - kLast + kKernel * kPeriod) % kStride == 0) {
            sink.finish(sums[(r - kLast + kKernel * kPeriod) / kStride % kLive]);
          }
        }
      }
    }
    if constexpr (DepthwiseSink<T, kChannels, kColumns, kFusion>::kHasStatistics) {
      if (p.partials != nullptr) {
        if constexpr (kInMemory) block_barrier();  // rows were where the moments shall be
        leave_moments(p.work, share, sink.moments, idle ? p.shape.channels : channel, p.shape.channels,
                      static_cast<A*>(p.partials));
      }
    }
  }
};

/// Any window, any channel multiplier, where no tile of it fits shared memory (depthwise_windows_kernel.h): each thread
/// computes kColumns outputs of a row, tap by tap.
template <class T, int kChannels, int kColumns>
FUSEDSC_DEVICE void depthwise_taps(const DepthwiseParameters& p) {
  using A = Accumulator<T>;
  const DepthwiseShape& shape = p.shape;
  const ItemShare share(p.work);
  const int channel = share.channel(p.work, kChannels);
  const bool idle = share.is_idle(p.work, channel, shape.channels);
  const int safe_channel = idle ? 0 : channel, input_channel = safe_channel / shape.multiplier;
  DepthwiseSink<T, kChannels, kColumns, DepthwiseFusion::any> sink(p, safe_channel);
  A scale[kChannels], shift[kChannels];
  load_channels(p.prologue.scale, input_channel, A(1), scale, A());
  load_channels(p.prologue.shift, input_channel, A(0), shift, A());

  for (std::uint32_t item = share.item; item < p.work.items && !idle; item += share.step) {
    const ItemStrip strip(p.work, item);
    const int column = strip.column_group * kColumns;
    sink.aim(strip.image, strip.row, 1, 0, column);
    A y[kColumns * kChannels];
#pragma unroll
    for (int i = 0; i < kColumns * kChannels; ++i) y[i] = sink.bias[i % kChannels];
    for (int kh = 0; kh < shape.kernel_height; ++kh) {
      const int h = strip.row * shape.stride_height + kh * shape.dilation_height - shape.padding_top;
      if (h < 0 || h >= shape.input_height) continue;
      for (int kw = 0; kw < shape.kernel_width; ++kw) {
        A weight[kChannels];
#pragma unroll
        for (int v = 0; v < kChannels; ++v) {
          weight[v] = to_accumulator(elements_of<T>(p.weight)[p.weight.offset(channel + v, 0, kh, kw)]);
        }
        const int first = column * shape.stride_width + kw * shape.dilation_width - shape.padding_left;
        const T* from = elements_of<T>(p.x) + p.x.offset(strip.image, input_channel, h, first);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          const int w = first + c * shape.stride_width;
          if (w < 0 || w >= shape.input_width) continue;
          A x[kChannels];
          load<kChannels>(from + static_cast<std::int64_t>(c * shape.stride_width) * p.x.column).widen(x);
#pragma unroll
          for (int v = 0; v < kChannels; ++v) x[v] = x[v] * scale[v] + shift[v];
          activate(p.prologue.activation, x);
#pragma unroll
          for (int v = 0; v < kChannels; ++v) y[c * kChannels + v] += x[v] * weight[v];
        }
      }
    }
    sink.finish(y);
  }
  if (p.partials != nullptr) {
    leave_moments(p.work, share, sink.moments, idle ? shape.channels : channel, shape.channels,
                  static_cast<A*>(p.partials));
  }
}

}  // namespace fusedsc::gpu
