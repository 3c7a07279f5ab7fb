/// Pointwise convolution on GPUs to few outputs, its gradients, all that are wanted from one pass over x: each element
/// of grad_x is the sum of a few products, and each element of x adds to a few of the weight's gradient.
#pragma once

#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/pointwise/skinny/pointwise_skinny.h"

namespace fusedsc::gpu {

struct PointwiseSkinnyGradientsParameters {
  SkinnyTensor x, grad_y;
  SkinnyOutput grad_x;
  ConstDeviceTensor weight;
  DevicePrologue prologue;
  const void* mean = nullptr;     ///< with the sums of grad_x
  void* partials = nullptr;       ///< [split][output..., sum, centered sum][channel]
  void* bias_partials = nullptr;  ///< [split][output]
  int rows = 0;                   ///< of partials: outputs if the weight's gradient is wanted, and 2 with sums
  bool has_weight = false, has_sums = false;
  int channels = 0, outputs = 0, splits = 1;
  SkinnyPositions positions;  ///< neighbouring channels: vectors of one
  int split_vectors = 1;      ///< of these
  int lanes = 1;              ///< neighbouring channels: that have a vector each
  Divisor by_groups;          ///< of blocks: channels; neighbouring channels: groups of `lanes` vectors of them
};

/// Puts a block's sum of a channel where it belongs: number i of outputs' weights, the two sums of grad_x, and the
/// outputs' biases, which channel 0 has.
template <int kOutputs, class A>
FUSEDSC_DEVICE void leave_skinny(const PointwiseSkinnyGradientsParameters& p, int split, int channel, int i, A sum) {
  const int weights = p.has_weight ? p.outputs : 0;
  const auto put = [&](int row) {
    static_cast<A*>(p.partials)[(static_cast<std::int64_t>(split) * p.rows + row) * p.channels + channel] = sum;
  };
  if (i < kOutputs) {
    if (i < weights) put(i);
  } else if (i < kOutputs + 2) {
    if (p.has_sums) put(weights + i - kOutputs);
  } else if (p.bias_partials != nullptr && channel == 0 && i - kOutputs - 2 < p.outputs) {
    static_cast<A*>(p.bias_partials)[static_cast<std::int64_t>(split) * p.outputs + i - kOutputs - 2] = sum;
  }
}

/// Neighbouring positions: a block has one channel.
template <class T, int kOutputs, int kVector>
struct PointwiseSkinnyPlanesGradients {
  using A = Accumulator<T>;
  static constexpr int kSums = 2 * kOutputs + 2, kAtOnce = 2, kBlocks = 2;

  FUSEDSC_DEVICE static void run(const PointwiseSkinnyGradientsParameters& p) {
    std::uint32_t group = block_index();
    const int split = static_cast<int>(p.by_groups.divide(group)), channel = static_cast<int>(group);
    A weight[kOutputs], values[kSums] = {};
#pragma unroll
    for (int m = 0; m < kOutputs; ++m) {
      weight[m] = m < p.outputs ? to_accumulator(elements_of<T>(p.weight)[p.weight.offset(m, channel, 0, 0)]) : A(0);
    }
    const auto of_channel = [&](const void* vector, A otherwise) {
      return vector != nullptr ? static_cast<const A*>(vector)[channel] : otherwise;
    };
    const A scale = of_channel(p.prologue.scale, A(1)), shift = of_channel(p.prologue.shift, A(0)),
            mean = of_channel(p.mean, A(0));
    const int begin = split * p.split_vectors, end = least(begin + p.split_vectors, p.positions.vectors);
    for (int first = begin + thread_index(); first < end; first += kSkinnyThreads * kAtOnce) {
      SkinnyPositions::Place places[kAtOnce];
      Vector<T, kVector> loaded[kAtOnce], grads[kAtOnce][kOutputs];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int vector = first + i * kSkinnyThreads;
        places[i] = p.positions.place(vector < end ? vector : first);
        loaded[i] = load<kVector>(p.x.at<T>(places[i].image, channel, 0) + places[i].vector * kVector);
#pragma unroll
        for (int m = 0; m < kOutputs; ++m) {
          grads[i][m] =
              load<kVector>(p.grad_y.at<T>(places[i].image, m < p.outputs ? m : 0, 0) + places[i].vector * kVector);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i * kSkinnyThreads >= end) continue;
        A x[kVector], z[kVector], a[kVector], g[kVector] = {};
        loaded[i].widen(x);
#pragma unroll
        for (int v = 0; v < kVector; ++v) a[v] = z[v] = x[v] * scale + shift;
        activate(p.prologue.activation, a);
#pragma unroll
        for (int m = 0; m < kOutputs; ++m) {
          if (m >= p.outputs) continue;
          A grad[kVector];
          grads[i][m].widen(grad);
#pragma unroll
          for (int v = 0; v < kVector; ++v) {
            g[v] += grad[v] * weight[m];
            values[m] += grad[v] * a[v];
            values[kOutputs + 2 + m] += grad[v];
          }
        }
        activate_backward(p.prologue.activation, z, g);
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          values[kOutputs] += g[v];
          values[kOutputs + 1] += g[v] * (x[v] - mean);
        }
        if (p.grad_x.data != nullptr) {
          store<kVector>(g, p.grad_x.at<T>(places[i].image, channel, 0) + places[i].vector * kVector);
        }
      }
    }
    leave_sums(p, split, channel, values);
  }

  FUSEDSC_HOST_DEVICE static constexpr int memory_bytes() {
    return kSums * kSkinnyThreads / 32 * static_cast<int>(sizeof(A));
  }

 private:
  FUSEDSC_DEVICE static void leave_sums(const PointwiseSkinnyGradientsParameters& p, int split, int channel,
                                        const A (&values)[kSums]) {
    A* memory = static_cast<A*>(shared_memory());
    const int wave = thread_index() / wave_size(), waves = kSkinnyThreads / wave_size();
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const A sum = wave_sum(values[i]);
      if (thread_index() % wave_size() == 0) memory[i * waves + wave] = sum;
    }
    block_barrier();
    const int i = thread_index();
    if (i >= kSums) return;
    A sum = 0;
    for (int from = 0; from < waves; ++from) sum += memory[i * waves + from];
    leave_skinny<kOutputs>(p, split, channel, i, sum);
  }
};

/// Neighbouring channels: lanes have a vector of them, rows of lanes go over positions.
template <class T, int kOutputs, int kVector>
struct PointwiseSkinnyChannelsGradients {
  using A = Accumulator<T>;
  static constexpr int kSums = 2 * kOutputs + 2, kAtOnce = 4;
  static constexpr int kBlocks = kOutputs > 1 && kVector > 1 ? 1 : 2;  ///< of a multiprocessor, as registers allow

  FUSEDSC_DEVICE static void run(const PointwiseSkinnyGradientsParameters& p) {
    std::uint32_t group = block_index();
    const int split = static_cast<int>(p.by_groups.divide(group)), rows = kSkinnyThreads / p.lanes;
    const int lane = thread_index() % p.lanes, row = thread_index() / p.lanes;
    const int channel = (static_cast<int>(group) * p.lanes + lane) * kVector;
    const bool has_work = row < rows && channel < p.channels;
    const int safe_channel = has_work ? channel : 0;
    A scale[kVector], shift[kVector], mean[kVector], weight[kOutputs][kVector];
    load_channels(p.prologue.scale, safe_channel, A(1), scale, A());
    load_channels(p.prologue.shift, safe_channel, A(0), shift, A());
    load_channels(p.mean, safe_channel, A(0), mean, A());
#pragma unroll
    for (int m = 0; m < kOutputs; ++m) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        weight[m][v] =
            m < p.outputs ? to_accumulator(elements_of<T>(p.weight)[p.weight.offset(m, safe_channel + v, 0, 0)]) : A(0);
      }
    }
    A sums[kOutputs + 2][kVector] = {}, bias[kOutputs] = {};
    const int begin = split * p.split_vectors, end = least(begin + p.split_vectors, p.positions.vectors);
    for (int first = begin + row; first < end && has_work; first += rows * kAtOnce) {
      Vector<T, kVector> loaded[kAtOnce];
      A grads[kAtOnce][kOutputs];
      SkinnyPositions::Place places[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int position = first + i * rows;
        places[i] = p.positions.place(position < end ? position : first);
        loaded[i] = load<kVector>(p.x.at<T>(places[i].image, 0, places[i].vector) + channel);
#pragma unroll
        for (int m = 0; m < kOutputs; ++m) {
          grads[i][m] = to_accumulator(*p.grad_y.at<T>(places[i].image, m < p.outputs ? m : 0, places[i].vector));
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i * rows >= end) continue;
        A x[kVector], z[kVector], a[kVector], g[kVector] = {};
        loaded[i].widen(x);
#pragma unroll
        for (int v = 0; v < kVector; ++v) a[v] = z[v] = x[v] * scale[v] + shift[v];
        activate(p.prologue.activation, a);
#pragma unroll
        for (int m = 0; m < kOutputs; ++m) {
          if (m >= p.outputs) continue;
          bias[m] += grads[i][m];
#pragma unroll
          for (int v = 0; v < kVector; ++v) {
            g[v] += grads[i][m] * weight[m][v];
            sums[m][v] += grads[i][m] * a[v];
          }
        }
        activate_backward(p.prologue.activation, z, g);
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          sums[kOutputs][v] += g[v];
          sums[kOutputs + 1][v] += g[v] * (x[v] - mean[v]);
        }
        if (p.grad_x.data != nullptr) {
          store<kVector>(g, p.grad_x.at<T>(places[i].image, 0, places[i].vector) + channel);
        }
      }
    }
    leave_sums(p, split, static_cast<int>(group), sums, bias);
  }

  FUSEDSC_HOST_DEVICE static constexpr int memory_bytes() {
    return kVector * kSkinnyThreads * static_cast<int>(sizeof(A));
  }

 private:
  /// Of the block's rows, in their order.
  FUSEDSC_DEVICE static void leave_sums(const PointwiseSkinnyGradientsParameters& p, int split, int group,
                                        const A (&sums)[kOutputs + 2][kVector], const A (&bias)[kOutputs]) {
    A* memory = static_cast<A*>(shared_memory());
    const int rows = kSkinnyThreads / p.lanes, used = rows * p.lanes, thread = thread_index();
    const auto add = [&](int v, int lane) {
      A sum = 0;
      for (int from = lane; from < used; from += p.lanes) sum += memory[v * kSkinnyThreads + from];
      return sum;
    };
#pragma unroll
    for (int i = 0; i < kOutputs + 2; ++i) {
      block_barrier();
#pragma unroll
      for (int v = 0; v < kVector; ++v) memory[v * kSkinnyThreads + thread] = sums[i][v];
      block_barrier();
      for (int at = thread; at < kVector * p.lanes; at += kSkinnyThreads) {
        const int v = at / p.lanes, lane = at - v * p.lanes, channel = (group * p.lanes + lane) * kVector + v;
        if (channel < p.channels) leave_skinny<kOutputs>(p, split, channel, i, add(v, lane));
      }
    }
    if (p.bias_partials == nullptr || group != 0) return;
#pragma unroll
    for (int m = 0; m < kOutputs; ++m) {
      block_barrier();
      memory[thread] = bias[m];
      block_barrier();
      if (thread == 0) leave_skinny<kOutputs>(p, split, 0, kOutputs + 2 + m, add(0, 0));
    }
  }
};

}  // namespace fusedsc::gpu
