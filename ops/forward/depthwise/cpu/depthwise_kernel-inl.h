/// Register-blocked depthwise kernels on tiles. Channels are the vector, so nothing is ever shuffled; a block of output
/// positions shares each loaded input vector and each weight. Everything here runs on whole vectors: tiles are padded.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_FORWARD_DEPTHWISE_CPU_DEPTHWISE_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_FORWARD_DEPTHWISE_CPU_DEPTHWISE_KERNEL_INL_H_
#undef FUSEDSC_FORWARD_DEPTHWISE_CPU_DEPTHWISE_KERNEL_INL_H_
#else
#define FUSEDSC_FORWARD_DEPTHWISE_CPU_DEPTHWISE_KERNEL_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include "fusedsc/common/cpu/moments-inl.h"
#include "fusedsc/common/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// Output columns that a 3x3 kernel computes together, times two rows: with the nine weights they fill the registers.
inline constexpr std::int64_t kDepthwiseColumns[] = {kManyRegisters ? 8 : 4, kManyRegisters ? 7 : 3, 4, 2, 1};
inline constexpr std::int64_t kDepthwiseRows = 2;

/// The widest blocks that leave no remainder of a row of `width` output columns, or the widest there are.
inline std::int64_t widest_block_columns(std::int64_t width) {
  return width % kDepthwiseColumns[0] != 0 && width % kDepthwiseColumns[1] == 0 ? kDepthwiseColumns[1]
                                                                                : kDepthwiseColumns[0];
}

/// How to cover a row with blocks of up to `most` columns, one of kDepthwiseColumns: greedily.
inline std::int64_t next_block_columns(std::int64_t most, std::int64_t left) {
  for (const std::int64_t columns : kDepthwiseColumns) {
    if (columns <= std::min(most, left)) return columns;
  }
  return 1;
}

/// The most input positions that a block's windows cover: two rows at stride 2.
inline constexpr int kBlockInputs = ((kDepthwiseRows - 1) * 2 + 3) * ((kDepthwiseColumns[0] - 1) * 2 + 3);

/// Input of a block: a pointer per input position, row by row. Positions outside the image point to zeros, so borders
/// cost nothing and neither layout nor padding concerns the kernel. Where all positions are `pitch` apart in their rows
/// a pointer per row is enough: few channels are computed in less time than all those pointers take to write.
template <class T>
struct BlockInput {
  const T* at[kBlockInputs];
  std::int64_t pitch = 0;  ///< 0: `at` has all positions
  /// The same columns of the rows that the blocks below will read first; fetched while this block is computed, because
  /// a block visits too many places at once for the hardware to see that it walks along rows. Null: nothing to fetch.
  const T* ahead[kDepthwiseRows * 2];
};

/// Output of a block: where its first column goes in each row. Nothing is stored where `rows` is null.
template <class T>
struct BlockOutput {
  T* const* rows;
  std::int64_t pitch;
  std::int64_t ahead = 0;  ///< how far on the rows below will be stored, to be fetched likewise; 0: nothing to fetch
  bool streams = false;    ///< vectors are whole cache lines, to be stored around the caches; by 3x3 kernels
};

/// Weights as [tap][weight pitch], and a bias per channel or null.
template <class T>
struct DepthwiseWeights {
  const T* taps;
  std::int64_t pitch;
  const T* bias;
};

/// A block of kRows x kColumns outputs of a 3x3 kernel without dilation, for all channels. kPitched: input.pitch is
/// given.
template <class T, int kStride, int kRows, int kColumns, bool kPitched>
HWY_NOINLINE void depthwise_3x3_block(const BlockInput<T>& input, const DepthwiseWeights<T>& weights,
                                      std::int64_t channels, const BlockOutput<T>& output, Moments<T>& moments) {
  constexpr int kInputRows = (kRows - 1) * kStride + 3;
  constexpr int kInputColumns = (kColumns - 1) * kStride + 3;
  constexpr int kCount = kRows * kColumns;
  const Tag<T> d;
  const MergeWeights<T> merge_weights(moments.count, kCount);
  constexpr std::int64_t kNewColumns = kColumns * kStride, kNewRows = kRows * kStride;
  // What the stores below could change, as far as the compiler knows, is read once, here.
  const bool stored = output.rows != nullptr, streams = output.streams, wants_moments = static_cast<bool>(moments);
  const std::int64_t output_pitch = output.pitch, output_ahead = output.ahead;
  T* output_rows[kRows] = {};
  for (int r = 0; r < kRows && stored; ++r) output_rows[r] = output.rows[r];
  const T *const first_tap = weights.taps, *const bias = weights.bias;
  const std::int64_t tap_pitch = weights.pitch, input_pitch = input.pitch;
  for (std::int64_t c = 0; c < channels; c += kLanes<T>) {
    if (input.ahead[0] != nullptr) {
      HWY_UNROLL(4)
      for (int i = 0; i < kNewRows; ++i)
        prefetch(input.ahead[i] + c * kNewColumns, kNewColumns * kLanes<T> * sizeof(T));
    }
    if (output_ahead != 0) {
      HWY_UNROLL(2)
      for (int r = 0; r < kRows; ++r) {
        prefetch(output_rows[r] + output_ahead + c * kColumns, kColumns * kLanes<T> * sizeof(T));
      }
    }
    const auto start = bias != nullptr ? load_as<T>(bias + c) : hn::Zero(d);
    Vec<T> sum[kRows][kColumns];
    HWY_UNROLL(16)
    for (int i = 0; i < kCount; ++i) sum[i / kColumns][i % kColumns] = start;
    HWY_UNROLL(8)
    for (int i = 0; i < kInputRows; ++i) {
      // Only the weights of the output rows that this row reaches: nine would not fit sixteen registers beside the
      // sums. The compiler must not see that they are the same at each row, or it would keep them all, on the stack.
      const T* taps = first_tap + c;
      asm("" : "+r"(taps));
      Vec<T> weight[kRows][3];
      HWY_UNROLL(2)
      for (int r = 0; r < kRows; ++r) {
        const int kh = i - r * kStride;
        if (kh < 0 || kh > 2) continue;
        HWY_UNROLL(3)
        for (int kw = 0; kw < 3; ++kw) weight[r][kw] = load_as<T>(taps + (kh * 3 + kw) * tap_pitch);
      }
      const T* position = kPitched ? input.at[i] + c : nullptr;
      HWY_UNROLL(32)
      for (int j = 0; j < kInputColumns; ++j) {
        const auto value = load_as<T>(kPitched ? position : input.at[i * kInputColumns + j] + c);
        if constexpr (kPitched) position += input_pitch;
        HWY_UNROLL(2)
        for (int r = 0; r < kRows; ++r) {
          const int kh = i - r * kStride;
          if (kh < 0 || kh > 2) continue;
          HWY_UNROLL(8)
          for (int t = 0; t < kColumns; ++t) {
            const int kw = j - t * kStride;
            if (kw >= 0 && kw <= 2) sum[r][t] = hn::MulAdd(value, weight[r][kw], sum[r][t]);
          }
        }
      }
    }
    if (stored) {
      HWY_UNROLL(16)
      for (int i = 0; i < kCount; ++i) {
        store_line<T>(sum[i / kColumns][i % kColumns], output_rows[i / kColumns] + (i % kColumns) * output_pitch + c,
                      streams);
      }
    }
    if (wants_moments) {
      auto total = sum[0][0];
      HWY_UNROLL(16)
      for (int i = 1; i < kCount; ++i) total = hn::Add(total, sum[i / kColumns][i % kColumns]);
      const auto mean = hn::Mul(total, hn::Set(d, T(1) / T(kCount)));
      auto m2 = hn::Zero(d), m2_odd = hn::Zero(d);
      HWY_UNROLL(16)
      for (int i = 0; i < kCount; ++i) {
        const auto deviation = hn::Sub(sum[i / kColumns][i % kColumns], mean);
        if (i % 2 == 0) m2 = hn::MulAdd(deviation, deviation, m2);
        else m2_odd = hn::MulAdd(deviation, deviation, m2_odd);
      }
      moments.merge(c, mean, hn::Add(m2, m2_odd), merge_weights);
    }
  }
  if (wants_moments) moments.count += kCount;
}

/// input.pitch may be given for whole blocks only: kDepthwiseRows rows and one of the two largest numbers of columns.
template <class T, int kStride, int kRows>
void depthwise_3x3_block(std::int64_t columns, const BlockInput<T>& input, const DepthwiseWeights<T>& weights,
                         std::int64_t channels, const BlockOutput<T>& output, Moments<T>& moments) {
  const auto run = [&]<int kColumns, bool kPitched>() {
    depthwise_3x3_block<T, kStride, kRows, kColumns, kPitched>(input, weights, channels, output, moments);
  };
  constexpr int kMost = kDepthwiseColumns[0], kMore = kDepthwiseColumns[1];
  if constexpr (kRows == kDepthwiseRows) {
    if (input.pitch != 0) {
      return columns == kMost ? run.template operator()<kMost, true>() : run.template operator()<kMore, true>();
    }
  }
  switch (columns) {
    case kMost: return run.template operator()<kMost, false>();
    case kMore: return run.template operator()<kMore, false>();
#if HWY_TARGET <= HWY_AVX3 || HWY_TARGET == HWY_NEON
    case 4: return run.template operator()<4, false>();
#endif
    case 2: return run.template operator()<2, false>();
    default: return run.template operator()<1, false>();
  }
}

/// One tap of a window of any shape: its weight (an index into the taps), and where it reads for the first output.
template <class T>
struct Tap {
  std::int64_t weight;
  const T* input;
};

/// kColumns outputs, each the sum of the same taps, `input_step` further on in the input and `output_step` in the
/// output for each next one. Forward: the taps of one row of windows. Input gradient: the taps that reach one parity of
/// columns.
template <class T, int kColumns>
void depthwise_taps_block(const Tap<T>* taps, std::int64_t tap_count, std::int64_t input_step,
                          const DepthwiseWeights<T>& weights, std::int64_t channels, T* output,
                          std::int64_t output_step) {
  const Tag<T> d;
  for (std::int64_t c = 0; c < channels; c += kLanes<T>) {
    const auto start = weights.bias != nullptr ? load_as<T>(weights.bias + c) : hn::Zero(d);
    Vec<T> sum[kColumns];
    HWY_UNROLL(8)
    for (int t = 0; t < kColumns; ++t) sum[t] = start;
    for (std::int64_t i = 0; i < tap_count; ++i) {
      const auto weight = load_as<T>(weights.taps + taps[i].weight * weights.pitch + c);
      const T* input = taps[i].input + c;
      HWY_UNROLL(8)
      for (int t = 0; t < kColumns; ++t) sum[t] = hn::MulAdd(load_as<T>(input + t * input_step), weight, sum[t]);
    }
    HWY_UNROLL(8)
    for (int t = 0; t < kColumns; ++t) store_as<T>(sum[t], output + t * output_step + c);
  }
}

/// `columns` outputs as above, in blocks of eight, four and one. Moves the taps along.
template <class T>
void depthwise_taps_row(Tap<T>* taps, std::int64_t tap_count, std::int64_t input_step,
                        const DepthwiseWeights<T>& weights, std::int64_t channels, T* output, std::int64_t output_step,
                        std::int64_t columns) {
  while (columns > 0) {
    std::int64_t done = 1;
    if (columns >= 8) {
      depthwise_taps_block<T, 8>(taps, tap_count, input_step, weights, channels, output, output_step);
      done = 8;
    } else if (columns >= 4) {
      depthwise_taps_block<T, 4>(taps, tap_count, input_step, weights, channels, output, output_step);
      done = 4;
    } else {
      depthwise_taps_block<T, 1>(taps, tap_count, input_step, weights, channels, output, output_step);
    }
    for (std::int64_t i = 0; i < tap_count; ++i) taps[i].input += done * input_step;
    output += done * output_step;
    columns -= done;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
