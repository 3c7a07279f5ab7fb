/// Depthwise convolution on GPUs, forward, stride 1, 16 bits, channels neighbours in memory: rows of windows as
/// products of matrices. Of one channel, 16 lines (anywhere) of 8 + kKernel - 1 columns are A, and the weights of a
/// window's row, shifted by one column from each output column to the next, are B. Most of B is zeros; even so a
/// product does what 20 (3x3: 12) instructions of fused multiply-adds do. Zeros times an infinity or a NaN in x make
/// NaNs of a tile's 8 columns, which is seen in the outputs: those are computed again.
///
/// A wave owns two channels, whose neighbours of each line it pairs up; rows come one after the other, as in
/// depthwise_kernel.h, each serving the output rows whose windows cover it.
#pragma once

#include "fusedsc/common/gpu/products/wave_product.h"
#include "fusedsc/common/gpu/tensors/tensor.h"
#include "fusedsc/forward/depthwise/depthwise_shape.h"
#include "fusedsc/forward/depthwise/rows/depthwise_window_sum.h"

namespace fusedsc::gpu {

struct DepthwiseMatrixParameters {
  ConstDeviceTensor x, weight;
  const void* bias = nullptr;
  DeviceTensor y;
  DepthwiseShape shape;
  Divisor channel_blocks, column_tiles, strips;
  std::uint32_t lines = 0;  ///< [image][strip][column tile]
  int strip_rows = 1;
};

struct DepthwiseMatrixTile {
  static constexpr int kPairs = 8, kThreads = 32 * kPairs, kChannels = 2 * kPairs, kLines = 16, kColumns = 8;
  static constexpr int kGroups = kPairs / 4;  // of 8 channels
};

template <class T, int kKernel, int kAhead>
struct DepthwiseMatrixRows : DepthwiseMatrixTile {
  static constexpr int kTail = kKernel - 1;
  // Shared memory, in words. Rows on their way: 16 bytes of each thread, then as many of those that copy the columns
  // beyond the 8. Rows to be multiplied: [pair][line][8 columns], [pair][line][columns beyond]. Results:
  // [pair][position].
  static constexpr int kTailThreads = kGroups * kLines * kTail, kArriving = 4 * (kThreads + kTailThreads);
  static constexpr int kPad = 8 / kGroups;  // other banks
  static constexpr int kPlane = kLines * (kColumns + kTail) + kPad, kRow = kPairs * kPlane;
  static constexpr int kResultPlane = kLines * kColumns + kPad, kResult = kPairs * kResultPlane;
  static constexpr int kBytes = 4 * ((kAhead + 1) * kArriving + 2 * kRow + 2 * kResult);

  /// 8 columns of some rows of an image.
  struct Line {
    int image, row, column;
    bool exists;

    FUSEDSC_DEVICE Line(const DepthwiseMatrixParameters& p, std::uint32_t index) : exists(index < p.lines) {
      std::uint32_t rest = p.column_tiles.divide(index);
      column = static_cast<int>(index) * kColumns;
      image = static_cast<int>(p.strips.divide(rest));
      row = static_cast<int>(rest) * p.strip_rows;
    }
  };

  /// Copies 8 channels of a position of a line, row by row, and sorts them by pairs.
  struct Carrier {
    const T* next;
    std::uint32_t *arriving, *sorted;  ///< its places in the memory of a row
    int row;
    bool inside;
    std::int64_t row_stride;
    int height;

    FUSEDSC_DEVICE Carrier(const DepthwiseMatrixParameters& p, std::uint32_t* memory, const Line& line, int column,
                           int channel, int group, int arriving_place, int sorted_place)
        : arriving(memory + 4 * arriving_place),
          sorted(memory + (kAhead + 1) * kArriving + 4 * group * kPlane + sorted_place),
          row(line.row - p.shape.padding_top),
          row_stride(p.x.row),
          height(p.shape.input_height) {
      column += line.column - p.shape.padding_left;
      inside = line.exists && column >= 0 && column < p.shape.input_width && channel < p.shape.channels;
      next = elements_of<T>(p.x) + p.x.offset(line.image, channel, row, column);
    }
    FUSEDSC_DEVICE void ask(int slot) {
      start_copy<16>(arriving + slot * kArriving, next, inside && row >= 0 && row < height);
      next += row_stride;
      ++row;
    }
    FUSEDSC_DEVICE void sort(int slot, int buffer) const {
      const auto words = *reinterpret_cast<const Aligned<std::uint32_t, 4>*>(arriving + slot * kArriving);
#pragma unroll
      for (int i = 0; i < 4; ++i) sorted[i * kPlane + buffer] = words.elements[i];
    }
  };

  FUSEDSC_DEVICE static void run(const DepthwiseMatrixParameters& p) {
    const int thread = thread_index(), lane = thread % 32, g = lane / 4, t = lane % 4;
    auto* memory = static_cast<std::uint32_t*>(shared_memory());
    std::uint32_t channel_block = block_index();
    const std::uint32_t first_line = p.channel_blocks.divide(channel_block) * kLines;
    const int first_channel = static_cast<int>(channel_block) * kChannels;

    // What the thread copies and stores: 8 channels of a position.
    const int group = thread % kGroups, position = thread / kGroups, stored_channel = first_channel + 8 * group;
    const Line line(p, first_line + static_cast<unsigned>(position / kColumns));
    Carrier main(p, memory, line, position % kColumns, stored_channel, group, thread, position);
    const bool has_tail = thread < kTailThreads;
    const int tail_line = has_tail ? position / kTail : 0;
    Carrier tail(p, memory, Line(p, first_line + static_cast<unsigned>(tail_line)), kColumns + position % kTail,
                 stored_channel, group, kThreads + thread, kLines * kColumns + position);
    const int rows = p.strip_rows + kKernel - 1;
#pragma unroll
    for (int r = 0; r < kAhead; ++r) {
      if (r < rows) {
        main.ask(r);
        if (has_tail) tail.ask(r);
      }
      commit_copies();
    }
    const int stored_column = line.column + position % kColumns;
    T* store_to = elements_of<T>(p.y) + p.y.offset(line.image, stored_channel, line.row, stored_column);
    int rows_to_store = least(p.strip_rows, p.shape.output_height - line.row);
    if (!line.exists || stored_column >= p.shape.output_width || stored_channel >= p.shape.channels) rows_to_store = 0;

    // What its wave multiplies: two channels.
    const int pair = thread / 32;
    std::uint32_t weights[kKernel][2][2];
    float bias[2];
    load_weights(p, first_channel + 2 * pair, 2 * t - g, weights, bias);

    std::uint32_t* sorted = memory + (kAhead + 1) * kArriving;
    std::uint32_t* results = sorted + 2 * kRow;
    std::uint32_t* write_to = results + pair * kResultPlane + g * kColumns + 2 * t;
    const std::uint32_t* read_from = results + 4 * group * kResultPlane + position;
    const std::uint32_t* read_row = sorted + pair * kPlane;
    float sums[kKernel][2][4] = {};
    int slot = 0, asked_slot = kAhead, buffer = 0;  // buffer 0 or 1
    int row = -kKernel;                             // of y, in the other buffer of results
    const auto store_row = [&] {
      if (row >= 0 && row < rows_to_store) {
        Aligned<std::uint32_t, 4> words;
#pragma unroll
        for (int i = 0; i < 4; ++i) words.elements[i] = read_from[i * kResultPlane + (1 - buffer) * kResult];
        *reinterpret_cast<Aligned<std::uint32_t, 4>*>(store_to) = words;
        store_to += p.y.row;
      }
      ++row;
    };
    const auto sort_row = [&](int to_buffer) {
      wait_for_copies<kAhead - 1>();
      main.sort(slot, to_buffer * kRow);
      if (has_tail) tail.sort(slot, to_buffer * kRow);
      slot = slot == kAhead ? 0 : slot + 1;
    };
    sort_row(0);
    for (int first = 0; first < rows; first += kKernel) {
#pragma unroll
      for (int r = 0; r < kKernel; ++r) {
        if (first + r >= rows) break;
        if (first + r + kAhead < rows) {
          main.ask(asked_slot);
          if (has_tail) tail.ask(asked_slot);
        }
        asked_slot = asked_slot == kAhead ? 0 : asked_slot + 1;
        commit_copies();
        block_barrier();
        store_row();

        const std::uint32_t* from = read_row + buffer * kRow;
        std::uint32_t words[4][2] = {};  // line g, then g + 8; then of the columns beyond
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          read_pair(from + (g + 8 * i) * kColumns + 2 * t, words[i]);
          if (2 * t < kTail) read_pair(from + kLines * kColumns + (g + 8 * i) * kTail + 2 * t, words[2 + i]);
        }
#pragma unroll
        for (int v = 0; v < 2; ++v) {
          WaveFragments fragments;
#pragma unroll
          for (int i = 0; i < 4; ++i) fragments.a[i] = halves(words[i][0], words[i][1], v);
#pragma unroll
          for (int i = 0; i < 4; ++i) sums[r][v][i] = bias[v];
#pragma unroll
          for (int kh = 0; kh < kKernel; ++kh) {
#pragma unroll
            for (int k = 0; k < 2; ++k) fragments.b[k] = weights[kh][v][k];
            wave_multiply_add(sums[(r - kh + kKernel) % kKernel][v], fragments, T());
          }
        }
        sort_row(1 - buffer);
        float(&done)[2][4] = sums[(r + 1) % kKernel];
        float any = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) any += done[i / 4][i % 4];
        if (!is_finite(any)) {
          compute_again(p, first_line + static_cast<unsigned>(g), 2 * t, first_channel + 2 * pair,
                        first + r - (kKernel - 1), bias, done);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          Aligned<std::uint32_t, 2> pairs;
#pragma unroll
          for (int c = 0; c < 2; ++c) pairs.elements[c] = to_bits(done[0][2 * i + c], done[1][2 * i + c], T());
          *reinterpret_cast<Aligned<std::uint32_t, 2>*>(write_to + 8 * i * kColumns + buffer * kResult) = pairs;
        }
        buffer = 1 - buffer;
      }
    }
    block_barrier();
    store_row();
  }

  /// Where zeros of the other operand have made NaNs: outputs that do not see one, of two channels and columns of row
  /// `row` of two lines, each from its own channels.
  FUSEDSC_DEVICE static void compute_again(const DepthwiseMatrixParameters& p, std::uint32_t first_line, int column,
                                           int channel, int row, const float (&bias)[2], float (&y)[2][4]) {
    if (channel >= p.shape.channels || row < 0) return;
    using Taps = DepthwiseTaps<1>;
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      const Line line(p, first_line + static_cast<unsigned>(i / 2 * 8));
      const int own_row = line.row + row, own_column = line.column + column + i % 2;
      if (!line.exists || own_row >= p.shape.output_height || own_column >= p.shape.output_width) continue;
      const DepthwiseWindowSum<T, kKernel, Taps> window(
          p.x, p.weight, line.image, p.shape.input_height, p.shape.input_width,
          Taps(own_row, own_column, p.shape.padding_top, p.shape.padding_left));
      float seen[2], outputs[2] = {}, sums[2] = {bias[0], bias[1]};
#pragma unroll
      for (int j = 0; j < 8; ++j) outputs[j / 4] = i == j % 4 ? y[j / 4][j % 4] : outputs[j / 4];
      if (is_finite(outputs[0]) && is_finite(outputs[1])) continue;
      window.template read_one<2>(channel).widen(seen);
      if (!is_in_doubt(outputs[0], seen[0]) && !is_in_doubt(outputs[1], seen[1])) continue;
      window.template add_to<3>(sums, channel, [](float(&)[2]) {});
#pragma unroll
      for (int j = 0; j < 8; ++j) y[j / 4][j % 4] = i == j % 4 ? sums[j / 4] : y[j / 4][j % 4];
    }
  }

  /// Of two channels, as B: the weight of row k of it and of column g is that of tap k - g. `tap`: of the thread's
  /// first row.
  FUSEDSC_DEVICE static void load_weights(const DepthwiseMatrixParameters& p, int channel, int tap,
                                          std::uint32_t (&weights)[kKernel][2][2], float (&bias)[2]) {
    const int row_stride = static_cast<int>(p.weight.row), column_stride = static_cast<int>(p.weight.column);
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      const bool exists = channel + v < p.shape.channels;
      bias[v] = exists && p.bias != nullptr ? to_accumulator(static_cast<const T*>(p.bias)[channel + v]) : 0;
      const T* row = elements_of<T>(p.weight) + (channel + v) * p.weight.image;
#pragma unroll
      for (int kh = 0; kh < kKernel; ++kh) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          std::uint32_t bits[2];
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int kw = tap + i + 8 * k;
            bits[i] = exists && kw >= 0 && kw < kKernel ? row[kw * column_stride].bits : 0u;
          }
          weights[kh][v][k] = bits[0] | bits[1] << 16;
        }
        row += row_stride;
      }
    }
  }

  FUSEDSC_DEVICE static void read_pair(const std::uint32_t* from, std::uint32_t (&to)[2]) {
    const auto pair = *reinterpret_cast<const Aligned<std::uint32_t, 2>*>(from);
    to[0] = pair.elements[0];
    to[1] = pair.elements[1];
  }

  /// The low halves of two words, or the high ones, together.
  FUSEDSC_DEVICE static std::uint32_t halves(std::uint32_t first, std::uint32_t second, int which) {
    return which == 0 ? (first & 0xffffu) | second << 16 : first >> 16 | (second & 0xffff0000u);
  }
};

}  // namespace fusedsc::gpu
