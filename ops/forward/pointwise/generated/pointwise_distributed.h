/// Pointwise convolution by channel distribution: Liu et al., "Optimizing depthwise separable convolution on DCU",
/// sections 5.1.2 and 5.2, Figs. 8 and 9, Algorithm 2. Instances are generated at run time for a problem's tiling
/// (ops/tuning/generator/pointwise_tiling.h).
///
/// Input channels come in groups of kGroupC. Each of a group's channels belongs to one of as many neighbouring lanes,
/// which multiplies what it holds of it: kWaveW positions by kThreadC filters. Two buffers take turns in shared memory,
/// what comes next waits in registers; in the end neighbouring lanes add up what they have.
#pragma once

#include "fusedsc/common/gpu/activation.h"
#include "fusedsc/common/gpu/products/wave.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_kernel.h"

namespace fusedsc::gpu {

/// Table 1, and the threads of a wave.
template <int kWave_, int kWaveW_, int kWaveC_, int kRepeatW_, int kRepeatC_, int kGroupC_>
struct DistributedTiling {
  static constexpr int kWave = kWave_, kWaveW = kWaveW_, kWaveC = kWaveC_, kRepeatW = kRepeatW_, kRepeatC = kRepeatC_,
                       kGroupC = kGroupC_;
  static constexpr int kThreads = kRepeatW * kRepeatC * kWave;
  static constexpr int kFilters = kWave / kGroupC;    ///< F_num
  static constexpr int kThreadC = kWaveC / kFilters;  ///< Thread_C
  static constexpr int kPositions = kRepeatW * kWaveW, kChannels = kRepeatC * kWaveC;
  static constexpr int kInputs = kPositions * kGroupC, kWeights = kChannels * kGroupC;  ///< of a buffer
  static constexpr int kLoadedInputs = (kInputs + kThreads - 1) / kThreads;             ///< of a thread
  static constexpr int kLoadedWeights = (kWeights + kThreads - 1) / kThreads;
  static constexpr int kResults = kWaveW * kThreadC;
  static_assert(kWave % kGroupC == 0 && kGroupC <= 32 && kWaveC % kFilters == 0);

  /// Of a block: Eq. 3.
  template <class A>
  static constexpr int kBytes = static_cast<int>(sizeof(A)) * (kInputs + kWeights) * 2;
};

/// What is fused, known when the text is made.
template <bool kBias_, bool kPrologue_, Activation kPrologueActivation_, bool kEpilogue_,
          Activation kEpilogueActivation_, bool kResidual_>
struct DistributedFusion {
  static constexpr bool kBias = kBias_;
  static constexpr bool kPrologue = kPrologue_, kEpilogue = kEpilogue_;  ///< a scale or a shift
  static constexpr Activation kPrologueActivation = kPrologueActivation_, kEpilogueActivation = kEpilogueActivation_;
  static constexpr bool kResidual = kResidual_;
};

/// kChannelsInner: the tensors' channels are neighbours, else their positions.
template <class T, class Tiling, bool kChannelsInner, class Fusion>
class PointwiseDistributed {
 public:
  using A = Accumulator<T>;

  FUSEDSC_DEVICE static void run(const PointwiseParameters& p) {
    wait_for_previous_kernel();
    PointwiseDistributed(p).compute();
  }

 private:
  static constexpr int kGroupC = Tiling::kGroupC, kWaveW = Tiling::kWaveW, kThreadC = Tiling::kThreadC,
                       kThreads = Tiling::kThreads, kFilters = Tiling::kFilters;
  static constexpr int kBuffer = Tiling::kInputs + Tiling::kWeights;

  FUSEDSC_DEVICE explicit PointwiseDistributed(const PointwiseParameters& p)
      : p_(p),
        share_(p.product),
        first_position_(share_.split * Tiling::kPositions),
        first_channel_(share_.channel_tile * Tiling::kChannels),
        memory_(static_cast<A*>(shared_memory())) {
    const PointwiseMatrix &x = p.product.activations, &weight = p.product.weight;
#pragma unroll
    for (int i = 0; i < Tiling::kLoadedInputs; ++i) {
      const int number = thread_index() + i * kThreads;
      const int position = first_position_ + position_of(number);
      has_position_[i] = number < Tiling::kInputs && position < p.product.pixels;
      inputs_[i] = static_cast<const T*>(x.data) + share_.group * x.group +
                   (has_position_[i] ? x.first_offset(position) : 0) + channel_of(number) * x.second;
    }
#pragma unroll
    for (int i = 0; i < Tiling::kLoadedWeights; ++i) {
      const int number = thread_index() + i * kThreads;
      const int filter = first_channel_ + number / kGroupC;
      has_filter_[i] = number < Tiling::kWeights && filter < p.product.channels;
      weights_[i] = static_cast<const T*>(weight.data) + share_.group * weight.group +
                    (has_filter_[i] ? filter * weight.first : 0) + number % kGroupC * weight.second;
    }
  }

  // Neighbouring threads load neighbouring elements.
  FUSEDSC_DEVICE static int position_of(int number) {
    return kChannelsInner ? number / kGroupC : number % Tiling::kPositions;
  }
  FUSEDSC_DEVICE static int channel_of(int number) {
    return kChannelsInner ? number % kGroupC : number / Tiling::kPositions;
  }

  FUSEDSC_DEVICE void compute() {
    A results[Tiling::kResults];
#pragma unroll
    for (int i = 0; i < Tiling::kResults; ++i) results[i] = 0;
    const int depth = p_.product.depth;
    fetch(0);
    leave(memory_);
    block_barrier();
    A *now = memory_, *next = memory_ + kBuffer;
#pragma unroll 1
    for (int k = 0; k < depth; k += kGroupC) {
      const bool has_more = k + kGroupC < depth;
      if (has_more) fetch(k + kGroupC);
      multiply(now, results);
      if (has_more) leave(next);
      block_barrier();
      A* const before = now;
      now = next;
      next = before;
    }
    let_next_kernel_start();
    finish(results);
  }

  /// A group of input channels, from the k-th on, to registers.
  FUSEDSC_DEVICE void fetch(int k) {
    const int left = p_.product.depth - k;
#pragma unroll
    for (int i = 0; i < Tiling::kLoadedInputs; ++i) {
      const int channel = channel_of(thread_index() + i * kThreads);
      const bool has = has_position_[i] && channel < left;
      A value = has ? to_accumulator(*inputs_[i]) : A(0);
      if (has) value = prologue(value, share_.group * p_.product.depth + k + channel);
      fetched_inputs_[i] = value;
      inputs_[i] += kGroupC * p_.product.activations.second;
    }
#pragma unroll
    for (int i = 0; i < Tiling::kLoadedWeights; ++i) {
      const bool has = has_filter_[i] && (thread_index() + i * kThreads) % kGroupC < left;
      fetched_weights_[i] = has ? to_accumulator(*weights_[i]) : A(0);
      weights_[i] += kGroupC * p_.product.weight.second;
    }
  }

  FUSEDSC_DEVICE A prologue(A value, int channel) const {
    const PointwisePrologue& prologue = p_.product.prologue;
    if constexpr (Fusion::kPrologue) value = affine(value, prologue.scale, prologue.shift, channel);
    return activated<Fusion::kPrologueActivation>(value);
  }

  FUSEDSC_DEVICE static A affine(A value, const void* scale, const void* shift, int channel) {
    const A factor = scale != nullptr ? static_cast<const A*>(scale)[channel] : A(1);
    return value * factor + (shift != nullptr ? static_cast<const A*>(shift)[channel] : A(0));
  }
  template <Activation kActivation>
  FUSEDSC_DEVICE static A activated(A value) {
    A z[1] = {value};
    activate(kActivation, z);
    return z[0];
  }

  /// To shared memory: [position][channel of the group], [filter][channel of the group].
  FUSEDSC_DEVICE void leave(A* to) const {
#pragma unroll
    for (int i = 0; i < Tiling::kLoadedInputs; ++i) {
      const int number = thread_index() + i * kThreads;
      if (number < Tiling::kInputs) to[position_of(number) * kGroupC + channel_of(number)] = fetched_inputs_[i];
    }
#pragma unroll
    for (int i = 0; i < Tiling::kLoadedWeights; ++i) {
      const int number = thread_index() + i * kThreads;
      if (number < Tiling::kWeights) to[Tiling::kInputs + number] = fetched_weights_[i];
    }
  }

  FUSEDSC_DEVICE static int wave() { return thread_index() / Tiling::kWave; }
  FUSEDSC_DEVICE static int lane() { return thread_index() % Tiling::kWave; }
  /// Of the wave, in the block's tile.
  FUSEDSC_DEVICE static int wave_position() { return wave() % Tiling::kRepeatW * kWaveW; }
  FUSEDSC_DEVICE static int wave_channel() { return wave() / Tiling::kRepeatW * Tiling::kWaveC; }

  /// What a lane has of its channel: positions times filters.
  FUSEDSC_DEVICE static void multiply(const A* from, A (&results)[Tiling::kResults]) {
    const A* const inputs = from + wave_position() * kGroupC + lane() % kGroupC;
    const A* const weights = from + Tiling::kInputs + wave_channel() * kGroupC + lane();
    A input[kWaveW], weight[kThreadC];
#pragma unroll
    for (int w = 0; w < kWaveW; ++w) input[w] = inputs[w * kGroupC];
#pragma unroll
    for (int t = 0; t < kThreadC; ++t) weight[t] = weights[t * Tiling::kWave];
#pragma unroll
    for (int w = 0; w < kWaveW; ++w) {
#pragma unroll
      for (int t = 0; t < kThreadC; ++t) results[result_of(w, t)] += input[w] * weight[t];
    }
  }

  /// Neighbouring results are neighbours in memory, as lanes that add up keep neighbouring ones.
  FUSEDSC_DEVICE static constexpr int result_of(int w, int t) {
    return kChannelsInner ? w * kThreadC + t : t * kWaveW + w;
  }

  /// The segmented reduction, the epilogue, and into memory.
  FUSEDSC_DEVICE void finish(A (&results)[Tiling::kResults]) const {
    int count = Tiling::kResults;
    const int first = share_sums<kGroupC / 2, 1>(results, count);
    constexpr int kKept = (Tiling::kResults + kGroupC - 1) / kGroupC;
    const int filter = lane() / kGroupC;
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      const int result = first + i;
      const int w = kChannelsInner ? result / kThreadC : result % kWaveW;
      const int t = kChannelsInner ? result % kThreadC : result / kWaveW;
      const int position = first_position_ + wave_position() + w;
      const int channel = first_channel_ + wave_channel() + filter + t * kFilters;
      if (i < count && position < p_.product.pixels && channel < p_.product.channels) {
        store_result(results[i], position, channel);
      }
    }
  }

  FUSEDSC_DEVICE void store_result(A y, int position, int channel) const {
    const int all = share_.group * p_.product.channels + channel;
    if constexpr (Fusion::kBias) y += to_accumulator(static_cast<const T*>(p_.bias)[all]);
    if constexpr (Fusion::kEpilogue) y = affine(y, p_.epilogue.scale, p_.epilogue.shift, all);
    y = activated<Fusion::kEpilogueActivation>(y);
    if constexpr (Fusion::kResidual) {
      const PointwiseMatrix& residual = p_.residual;
      y += to_accumulator(static_cast<const T*>(
          residual.data)[share_.group * residual.group + residual.first_offset(position) + channel * residual.second]);
    }
    store<1>(&y, static_cast<T*>(p_.y.data) + share_.group * p_.y.group + p_.y.first_offset(position) +
                     channel * p_.y.second);
  }

  const PointwiseParameters& p_;
  const PointwiseShare share_;
  const int first_position_, first_channel_;
  A* const memory_;
  const T *inputs_[Tiling::kLoadedInputs], *weights_[Tiling::kLoadedWeights];
  bool has_position_[Tiling::kLoadedInputs], has_filter_[Tiling::kLoadedWeights];
  A fetched_inputs_[Tiling::kLoadedInputs], fetched_weights_[Tiling::kLoadedWeights];
};

}  // namespace fusedsc::gpu
