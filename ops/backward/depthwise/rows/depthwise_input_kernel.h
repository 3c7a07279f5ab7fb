/// Depthwise convolution on GPUs, input gradient. Input-centric (Wang et al., DSXplore, section IV-B): each thread
/// owns elements of grad_x and pulls from the output gradients whose windows cover them.
#pragma once

#include "fusedsc/common/gpu/sums/block_sums.h"
#include "fusedsc/forward/depthwise/depthwise_shape.h"
#include "fusedsc/forward/depthwise/rows/depthwise_rows.h"

namespace fusedsc::gpu {

struct DepthwiseInputGradientParameters {
  ConstDeviceTensor grad_y, weight, x, grad_add;
  DeviceGradientPrologue gradient_prologue;
  DevicePrologue prologue;
  const void* mean = nullptr;
  DeviceTensor grad_x;
  void* partials = nullptr;  ///< [split][sum of g, of g*(x - mean)][channel], where they are wanted
  DepthwiseShape shape;
  ItemWork work;
  Divisor stride_height, stride_width;
  bool join_columns = false;  ///< a thread's columns of grad_x may be stored as one vector
};

/// What happens to finished elements of the gradient: the activation's derivative, sums, grad_add, and into memory.
template <class T, int kChannels, int kColumns, bool kFused, bool kInMemory_ = false>
struct InputGradientSink {
  static constexpr bool kInMemory = kInMemory_;
  using A = Accumulator<T>;
  using Inputs = ActivationSource<T, kChannels, kColumns, true, kInMemory>;
  using Row = typename Inputs::Row;

  const DepthwiseInputGradientParameters& p;
  int channel;
  Inputs x;
  A mean[kChannels], sum[kChannels], sum_centered[kChannels];
  T* next = nullptr;                ///< where the row goes that is finished next
  const T* added = nullptr;         ///< likewise, of grad_add
  int row = 0, begin = 0, end = 0;  ///< which row that is, and which of the image are the thread's

  FUSEDSC_DEVICE InputGradientSink(const DepthwiseInputGradientParameters& p_, int channel_)
      : p(p_), channel(channel_) {
    x.set_channel(p.prologue, channel);
    load_channels(p.mean, channel, A(0), mean, A());
#pragma unroll
    for (int v = 0; v < kChannels; ++v) sum[v] = sum_centered[v] = 0;
  }

  FUSEDSC_DEVICE bool needs_x() const { return p.x.data != nullptr; }

  /// At a strip of `rows` rows from first_row on. `early` rows will be finished before it: they are none. Rows and
  /// columns may lie outside of the image.
  FUSEDSC_DEVICE void aim(int image, int first_row, int rows, int early, int column) {
    row = first_row - early;
    begin = first_row > 0 ? first_row : 0;
    end = p.shape.input_height < first_row + rows ? p.shape.input_height : first_row + rows;
    next = elements_of<T>(p.grad_x) + p.grad_x.offset(image, channel, row, column);
    if constexpr (kFused) added = elements_of<T>(p.grad_add) + p.grad_add.offset(image, channel, row, column);
    x.window.aim(kFused ? p.x : ConstDeviceTensor(), image, channel, row, column, p.shape.input_height,
                 p.shape.input_width);
  }

  /// Ahead of finish, so that x is there by then.
  FUSEDSC_DEVICE void load(typename Inputs::Row& to) {
    if constexpr (kFused) {
      if (needs_x()) x.load(to);
    }
  }
  static constexpr int kRowBytes = kFused ? Inputs::kRowBytes : 0;
  FUSEDSC_DEVICE void start_copies(char* rows) {
    if constexpr (kFused) {
      if (needs_x()) x.start_copies(rows);
    }
  }
  FUSEDSC_DEVICE void read_copies(char* rows, typename Inputs::Row& to) {
    if constexpr (kFused) {
      if (needs_x()) x.read_copies(rows, to);
    }
  }

  FUSEDSC_DEVICE bool is_inside(int c) const { return x.window.is_inside(c); }

  /// Rows come in their order. Stores are predicated, as in DepthwiseSink.
  FUSEDSC_DEVICE void finish(A (&g)[kColumns * kChannels], const typename Inputs::Row& inputs) {
    const bool inside = row >= begin && row < end;
    T* to = next;
    ++row;
    next += p.grad_x.row;
    if constexpr (kFused) {
      if (inside) apply_fusion(g, inputs);
      added += p.grad_add.row;
    }
    bool joined = false;
    if constexpr (kChannels == 1 && (kColumns == 2 || kColumns == 4)) {
      joined = p.join_columns && is_inside(0) && is_inside(kColumns - 1);
      if (inside && joined) store<kColumns>(g, to);
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (inside && !joined && is_inside(c)) store<kChannels>(g + c * kChannels, to + c * p.grad_x.column);
    }
  }

  FUSEDSC_DEVICE void apply_fusion(A (&g)[kColumns * kChannels], const typename Inputs::Row& inputs) {
    if (needs_x()) {
      A raw[kColumns * kChannels], z[kColumns * kChannels];
      Inputs::Window::widen(inputs, raw);
#pragma unroll
      for (int i = 0; i < kColumns * kChannels; ++i) z[i] = raw[i];
      x.affine(z);
      x.activation.apply_backward(z, g);
      if (p.partials != nullptr) {
        x.window.zero_outside(inputs, g);
#pragma unroll
        for (int i = 0; i < kColumns * kChannels; ++i) {
          sum[i % kChannels] += g[i];
          const A product = g[i] * (raw[i] - mean[i % kChannels]);  // beyond the image raw is 0 if it was copied
          sum_centered[i % kChannels] += kInMemory || x.window.has(inputs, i / kChannels) ? product : 0;
        }
      }
    }
    if (p.grad_add.data == nullptr) return;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (!is_inside(c)) continue;
      A values[kChannels];
      gpu::load<kChannels>(added + c * p.grad_add.column).widen(values);
#pragma unroll
      for (int v = 0; v < kChannels; ++v) g[c * kChannels + v] += values[v];
    }
  }

  /// At the end, by all threads.
  template <int kThreads = kItemThreads>
  FUSEDSC_DEVICE void leave_sums(const ItemShare& share) const {
    if (!kFused || p.partials == nullptr) return;
    A* rows = static_cast<A*>(p.partials) + static_cast<std::int64_t>(share.split) * 2 * p.shape.channels;
    const int first_channel = share.first_channel(p.work, kChannels);
    A values[2 * kChannels];
#pragma unroll
    for (int v = 0; v < kChannels; ++v) {
      values[v] = sum[v];
      values[kChannels + v] = sum_centered[v];
    }
    add_item_lanes<2 * kChannels, kThreads>(p.work, share, values, [&](int lane, int i, A total) {
      const int to = first_channel + lane * kChannels + i % kChannels;
      if (to < p.shape.channels) rows[i / kChannels * p.shape.channels + to] = total;
    });
  }
};

/// In coordinates of the padded input, stride by stride: row q*kStride + e of it is covered by the output rows q - j,
/// with tap j*kStride + e. So each row of grad_y is loaded once, serves kReach blocks of kStride rows of grad_x, and
/// the oldest of them leaves its registers then.
template <class T, int kKernel, int kStride, int kChannels, int kColumns, int kAhead, bool kFused>
struct DepthwiseInputGradientRows {
  using A = Accumulator<T>;
  static constexpr int kReach = (kKernel - 1) / kStride + 1, kGradColumns = kColumns + kReach - 1;
  static constexpr int kPeriod = common_multiple(kReach, kAhead + 1), kRowSize = kColumns * kStride * kChannels;
  static constexpr bool kInMemory = kRowsInMemory<T, kChannels, kKernel>;
  using Sink = InputGradientSink<T, kChannels, kColumns * kStride, kFused, kInMemory>;
  using Source = GradientSource<T, kChannels, kGradColumns, kFused, kInMemory>;
  using Grads = RowsAhead<Source, kAhead>;
  using Inputs = RowsAhead<Sink, (kAhead + 1) * kStride - 1>;

  static constexpr int kBytes = Grads::kBytes + Inputs::kBytes;

  FUSEDSC_DEVICE static void run(const DepthwiseInputGradientParameters& p) {
    const ItemShare share(p.work);
    const int channel = share.channel(p.work, kChannels);
    const bool idle = share.is_idle(p.work, channel, p.shape.channels);
    const int safe_channel = idle ? 0 : channel;

    A weights[kKernel * kKernel * kChannels];
    load_weights<T, kKernel, kKernel, kChannels>(p.weight, safe_channel, weights);
    Sink sink(p, safe_channel);
    Source grad_y;
    grad_y.set_channel(p.gradient_prologue, safe_channel);
    Grads grads(0);
    Inputs inputs(Grads::kBytes);
    const auto ask = [&](int r) {
      grads.ask(grad_y, r);
      if constexpr (kFused) {
#pragma unroll
        for (int e = 0; e < kStride; ++e) inputs.ask(sink, r * kStride + e);
      }
    };
    const int first_block = p.shape.padding_top / kStride, first_column = p.shape.padding_left / kStride;
    const int grad_rows = p.work.strip_rows + kReach - 1;  // the same for all threads: no divergence

    for (std::uint32_t item = share.item; item < p.work.items && !idle; item += share.step) {
      const ItemStrip strip(p.work, item);
      const int column = first_column + strip.column_group * kColumns, block = first_block + strip.row;
      sink.aim(strip.image, block * kStride - p.shape.padding_top, p.work.strip_rows * kStride, (kReach - 1) * kStride,
               column * kStride - p.shape.padding_left);
      grad_y.aim(p.grad_y, p.gradient_prologue, strip.image, channel, block - (kReach - 1), column - (kReach - 1),
                 p.shape.output_height, p.shape.output_width);
#pragma unroll
      for (int r = 0; r < kAhead; ++r) {
        ask(r);
        commit_copies();
      }
      A sums[kReach][kStride][kRowSize] = {};
      for (int first = 0; first < grad_rows; first += kPeriod) {
#pragma unroll
        for (int r = 0; r < kPeriod; ++r) {
          if constexpr (kInMemory) {
            if (first + r >= grad_rows) break;
            if (first + r + kAhead < grad_rows) ask(r + kAhead);
            commit_copies();
            wait_for_copies<kAhead>();
          } else {  // without branches: rows beyond the strip are computed, and not kept
            ask(r + kAhead);
          }
          A row[kGradColumns * kChannels];
          grad_y.widen(grads.take(grad_y, r), row);
#pragma unroll
          for (int j = 0; j < kReach; ++j) {
#pragma unroll
            for (int e = 0; e < kStride; ++e) {
              A(&g)[kRowSize] = sums[(r + 1 + j) % kReach][e];
              if (j == kReach - 1) {  // the first row of grad_y that the block meets
#pragma unroll
                for (int i = 0; i < kRowSize; ++i) g[i] = 0;
              }
              const int kh = j * kStride + e;
              if (kh >= kKernel) continue;
#pragma unroll
              for (int i = 0; i < kRowSize; ++i) {
                const int c = i / kChannels / kStride, f = i / kChannels % kStride, v = i % kChannels;
#pragma unroll
                for (int l = 0; l < kReach; ++l) {
                  const int kw = l * kStride + f;
                  if (kw >= kKernel) continue;
                  g[i] += row[(c + kReach - 1 - l) * kChannels + v] * weights[(kh * kKernel + kw) * kChannels + v];
                }
              }
            }
          }
#pragma unroll
          for (int e = 0; e < kStride; ++e) {
            sink.finish(sums[(r + 1) % kReach][e], inputs.take(sink, r * kStride + e));
          }
        }
      }
    }
    sink.leave_sums(share);
  }
};

/// Any window, any channel multiplier, where depthwise_windows_input_kernel.h has no tile for it: each thread computes
/// kColumns elements of a row, tap by tap.
template <class T, int kChannels, int kColumns>
FUSEDSC_DEVICE void depthwise_input_gradient_taps(const DepthwiseInputGradientParameters& p) {
  using A = Accumulator<T>;
  const DepthwiseShape& shape = p.shape;  // its channels are those of the input here
  const ItemShare share(p.work);
  const int channel = share.channel(p.work, kChannels);
  const bool idle = share.is_idle(p.work, channel, shape.channels);
  InputGradientSink<T, kChannels, kColumns, true> sink(p, idle ? 0 : channel);

  for (std::uint32_t item = share.item; item < p.work.items && !idle; item += share.step) {
    const ItemStrip strip(p.work, item);
    const int column = strip.column_group * kColumns;
    sink.aim(strip.image, strip.row, 1, 0, column);
    typename decltype(sink.x)::Row inputs{};
    sink.load(inputs);
    A g[kColumns * kChannels] = {};
    for (int m = 0; m < shape.multiplier; ++m) {
      const int output_channel = channel * shape.multiplier + m;
      GradientSource<T, kChannels, 1, true> grad_y;
      grad_y.set_channel(p.gradient_prologue, output_channel);
      for (int kh = 0; kh < shape.kernel_height; ++kh) {
        const int reach_h = strip.row + shape.padding_top - kh * shape.dilation_height;
        if (reach_h < 0) break;
        std::uint32_t remainder = static_cast<std::uint32_t>(reach_h);
        const int h = static_cast<int>(p.stride_height.divide(remainder));
        if (remainder != 0 || h >= shape.output_height) continue;
        for (int kw = 0; kw < shape.kernel_width; ++kw) {
          A weight[kChannels];
#pragma unroll
          for (int v = 0; v < kChannels; ++v) {
            weight[v] = to_accumulator(elements_of<T>(p.weight)[p.weight.offset(output_channel + v, 0, kh, kw)]);
          }
#pragma unroll
          for (int c = 0; c < kColumns; ++c) {
            const int reach_w = column + c + shape.padding_left - kw * shape.dilation_width;
            remainder = static_cast<std::uint32_t>(reach_w < 0 ? 0 : reach_w);
            const int w = static_cast<int>(p.stride_width.divide(remainder));
            if (reach_w < 0 || remainder != 0 || w >= shape.output_width) continue;
            grad_y.aim(p.grad_y, p.gradient_prologue, strip.image, output_channel, h, w, shape.output_height,
                       shape.output_width);
            typename decltype(grad_y)::Row loaded;
            grad_y.load(loaded);
            A value[kChannels];
            grad_y.widen(loaded, value);
#pragma unroll
            for (int v = 0; v < kChannels; ++v) g[c * kChannels + v] += value[v] * weight[v];
          }
        }
      }
    }
    sink.finish(g, inputs);
  }
  sink.leave_sums(share);
}

}  // namespace fusedsc::gpu
