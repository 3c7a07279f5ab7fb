/// Pointwise convolution on GPUs to few outputs, forward.
#pragma once

#include "fusedsc/common/gpu/following_kernel.h"
#include "fusedsc/common/gpu/moments.h"
#include "fusedsc/common/gpu/pointwise_few.h"

namespace fusedsc::gpu {

struct PointwiseFewParameters {
  FewTensor x, residual;
  FewOutput y;
  ConstDeviceTensor weight;
  const void* bias = nullptr;
  DevicePrologue prologue, epilogue;
  void* partials = nullptr;  ///< of the statistics, where they are wanted: [split][mean, m2, count][channel]
  int channels = 0, outputs = 0;
  FewPositions positions;  ///< neighbouring channels: vectors of one
  int lanes = 1;           ///< neighbouring channels: that share a position, a power of two
};

/// Finished outputs of single positions: bias, statistics, epilogue, and into memory.
template <class T, int kOutputs>
struct FewSink {
  using A = Accumulator<T>;

  const PointwiseFewParameters& p;
  A bias[kOutputs], scale[kOutputs], shift[kOutputs];
  ShiftedMoments<A, kOutputs> moments;

  FUSEDSC_DEVICE explicit FewSink(const PointwiseFewParameters& p_) : p(p_) {
#pragma unroll
    for (int m = 0; m < kOutputs; ++m) {
      const int output = m < p.outputs ? m : 0;
      bias[m] = p.bias != nullptr ? to_accumulator(static_cast<const T*>(p.bias)[output]) : A(0);
      scale[m] = p.epilogue.scale != nullptr ? static_cast<const A*>(p.epilogue.scale)[output] : A(1);
      shift[m] = p.epilogue.shift != nullptr ? static_cast<const A*>(p.epilogue.shift)[output] : A(0);
    }
  }

  FUSEDSC_DEVICE void finish(int image, int position, A (&y)[kOutputs]) {
#pragma unroll
    for (int m = 0; m < kOutputs; ++m) y[m] += bias[m];
    if (p.partials != nullptr) {
      moments.template add<1>(y, 1);
    } else {
#pragma unroll
      for (int m = 0; m < kOutputs; ++m) y[m] = y[m] * scale[m] + shift[m];
      activate(p.epilogue.activation, y);
    }
#pragma unroll
    for (int m = 0; m < kOutputs; ++m) {
      if (m >= p.outputs) continue;
      if (p.residual.data != nullptr) y[m] += to_accumulator(*p.residual.at<T>(image, m, position));
      from_accumulator(y[m], *p.y.at<T>(image, m, position));
    }
  }

  /// The block's. In block memory: counts, means and M2s of all threads.
  FUSEDSC_DEVICE void leave_moments() const {
    if (p.partials == nullptr) return;
    A* count = static_cast<A*>(block_memory());
    A *mean = count + kFewThreads, *m2 = mean + kFewThreads;
    const int thread = thread_index();
#pragma unroll
    for (int m = 0; m < kOutputs; ++m) {
      block_barrier();
      count[thread] = moments.count;
      mean[thread] = moments.mean(m);
      m2[thread] = moments.m2(m);
      for (int reach = kFewThreads / 2; reach > 0; reach /= 2) {
        block_barrier();
        if (thread >= reach) continue;
        merge_moments(count[thread], mean[thread], m2[thread], count[thread + reach], mean[thread + reach],
                      m2[thread + reach]);
      }
      if (thread != 0 || m >= p.outputs) continue;
      A* row = static_cast<A*>(p.partials) + static_cast<std::int64_t>(block_index()) * 3 * p.outputs + m;
      row[0] = mean[0];
      row[p.outputs] = m2[0];
      row[2 * p.outputs] = count[0];
    }
  }
};

/// What a channel is multiplied with, in block memory: weights, scale, shift. Those of each kApart-th channel follow
/// each other: threads beside each other have vectors of so many.
template <class T, int kOutputs, int kApart>
struct FewCoefficients {
  using A = Accumulator<T>;
  static constexpr int kPitch = (kOutputs + 2 + 3) / 4 * 4;

  FUSEDSC_HOST_DEVICE static constexpr int size(int channels) {
    return (channels + kApart - 1) / kApart * kApart * kPitch;
  }
  FUSEDSC_DEVICE static int place(int channels, int channel) {
    return (channel % kApart * ((channels + kApart - 1) / kApart) + channel / kApart) * kPitch;
  }

  FUSEDSC_DEVICE static void bring(const PointwiseFewParameters& p, A* to) {
    for (int c = thread_index(); c < p.channels; c += kFewThreads) {
      A* row = to + place(p.channels, c);
#pragma unroll
      for (int m = 0; m < kOutputs; ++m) {
        row[m] = m < p.outputs ? to_accumulator(elements_of<T>(p.weight)[p.weight.offset(m, c, 0, 0)]) : A(0);
      }
      row[kOutputs] = p.prologue.scale != nullptr ? static_cast<const A*>(p.prologue.scale)[c] : A(1);
      row[kOutputs + 1] = p.prologue.shift != nullptr ? static_cast<const A*>(p.prologue.shift)[c] : A(0);
    }
  }
  FUSEDSC_DEVICE static void read(const A* from, A (&to)[kPitch]) {
#pragma unroll
    for (int i = 0; i < kPitch; i += 4) {
      const auto run = *reinterpret_cast<const Aligned<A, 4>*>(from + i);
#pragma unroll
      for (int j = 0; j < 4; ++j) to[i + j] = run.elements[j];
    }
  }
};

/// Neighbouring positions: 32 lanes have a vector of them each, and the block's parts every eighth channel.
template <class T, int kOutputs, int kVector>
struct PointwiseFewPlanes {
  using A = Accumulator<T>;
  using Coefficients = FewCoefficients<T, kOutputs, 1>;
  static constexpr int kLanes = 32, kParts = kFewThreads / kLanes, kTile = kLanes * kVector;
  static constexpr int kAtOnce = sizeof(T) == 8 ? 4 : 8;  ///< channels of a thread that are loaded at once

  /// Vectors of a tile.
  FUSEDSC_HOST_DEVICE static constexpr int tile_vectors(int /*lanes*/) { return kLanes; }
  FUSEDSC_HOST_DEVICE static constexpr int memory_bytes(int channels) {
    const int sums = kParts * kOutputs * kTile, moments = 3 * kFewThreads;
    return ((sums > moments ? sums : moments) + Coefficients::size(channels)) * static_cast<int>(sizeof(A));
  }

  FUSEDSC_DEVICE static void run(const PointwiseFewParameters& p) {
    A* all_sums = static_cast<A*>(block_memory());
    constexpr int kSums = kParts * kOutputs * kTile, kMoments = 3 * kFewThreads;
    A* coefficients = all_sums + (kSums > kMoments ? kSums : kMoments);
    Coefficients::bring(p, coefficients);
    FewSink<T, kOutputs> sink(p);
    const int lane = thread_index() % kLanes, part = thread_index() / kLanes;
    block_barrier();
    const int tiles = (p.positions.vectors + kLanes - 1) / kLanes;
    for (int tile = static_cast<int>(block_index()); tile < tiles; tile += static_cast<int>(block_count())) {
      A sums[kOutputs * kVector] = {};
      const int vector = tile * kLanes + lane;
      if (vector < p.positions.vectors) {
        const FewPositions::Place place = p.positions.place(vector);
        add_channels(p, p.x.at<T>(place.image, part, 0) + place.vector * kVector, part, coefficients, sums);
      }
      block_barrier();  // sums of the tile before have been read
#pragma unroll
      for (int m = 0; m < kOutputs; ++m) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          all_sums[(part * kOutputs + m) * kTile + lane * kVector + v] = sums[m * kVector + v];
        }
      }
      block_barrier();
      for (int i = thread_index(); i < kTile; i += kFewThreads) {
        const int own = tile * kLanes + i / kVector;
        if (own >= p.positions.vectors) continue;
        const FewPositions::Place place = p.positions.place(own);
        A y[kOutputs];
#pragma unroll
        for (int m = 0; m < kOutputs; ++m) {
          y[m] = 0;
#pragma unroll
          for (int other = 0; other < kParts; ++other) y[m] += all_sums[(other * kOutputs + m) * kTile + i];
        }
        sink.finish(place.image, place.vector * kVector + i % kVector, y);
      }
    }
    sink.leave_moments();
  }

 private:
  FUSEDSC_DEVICE static void add_channels(const PointwiseFewParameters& p, const T* from, int part,
                                          const A* coefficients, A (&sums)[kOutputs * kVector]) {
    const std::int64_t step = kParts * p.x.channel;
    for (int first = part; first < p.channels; first += kParts * kAtOnce) {
      Vector<T, kVector> loaded[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const bool exists = first + i * kParts < p.channels;
        loaded[i] = load<kVector>(exists ? from + i * step : from);
      }
      from += kAtOnce * step;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int channel = first + i * kParts;
        if (channel >= p.channels) continue;
        A x[kVector], of[Coefficients::kPitch];
        Coefficients::read(coefficients + Coefficients::place(p.channels, channel), of);
        loaded[i].widen(x);
#pragma unroll
        for (int v = 0; v < kVector; ++v) x[v] = x[v] * of[kOutputs] + of[kOutputs + 1];
        activate(p.prologue.activation, x);
#pragma unroll
        for (int m = 0; m < kOutputs; ++m) {
#pragma unroll
          for (int v = 0; v < kVector; ++v) sums[m * kVector + v] += x[v] * of[m];
        }
      }
    }
  }
};

/// Neighbouring channels: some lanes share a position, with vectors of channels, and add their sums up.
template <class T, int kOutputs, int kVector>
struct PointwiseFewChannels {
  using A = Accumulator<T>;
  using Coefficients = FewCoefficients<T, kOutputs, kVector>;
  static constexpr int kAtOnce = kOutputs > 2 ? 2 : 4;  ///< positions of a lane

  FUSEDSC_HOST_DEVICE static constexpr int tile_vectors(int lanes) { return kFewThreads / lanes * kAtOnce; }
  FUSEDSC_HOST_DEVICE static constexpr int memory_bytes(int channels) {
    const int coefficients = Coefficients::size(channels), moments = 3 * kFewThreads;
    return (coefficients > moments ? coefficients : moments) * static_cast<int>(sizeof(A));
  }

  FUSEDSC_DEVICE static void run(const PointwiseFewParameters& p) {
    A* coefficients = static_cast<A*>(block_memory());
    Coefficients::bring(p, coefficients);
    FewSink<T, kOutputs> sink(p);
    const int lane = thread_index() % p.lanes, group = thread_index() / p.lanes, groups = kFewThreads / p.lanes;
    block_barrier();
    const int tile_positions = tile_vectors(p.lanes), all = p.positions.vectors;
    for (int tile = static_cast<int>(block_index()) * tile_positions; tile < all;
         tile += static_cast<int>(block_count()) * tile_positions) {
      A sums[kAtOnce][kOutputs] = {};
      FewPositions::Place places[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int position = tile + i * groups + group;
        places[i] = p.positions.place(position < all ? position : 0);
      }
      for (int channel = lane * kVector; channel < p.channels; channel += p.lanes * kVector) {
        Vector<T, kVector> loaded[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          loaded[i] = load<kVector>(p.x.at<T>(places[i].image, 0, places[i].vector) + channel);
        }
        A x[kAtOnce][kVector];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) loaded[i].widen(x[i]);
        A of[kVector][Coefficients::kPitch];
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          Coefficients::read(coefficients + Coefficients::place(p.channels, channel + v), of[v]);
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
          for (int v = 0; v < kVector; ++v) x[i][v] = x[i][v] * of[v][kOutputs] + of[v][kOutputs + 1];
          activate(p.prologue.activation, x[i]);
#pragma unroll
          for (int m = 0; m < kOutputs; ++m) {
#pragma unroll
            for (int v = 0; v < kVector; ++v) sums[i][m] += x[i][v] * of[v][m];
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
        for (int m = 0; m < kOutputs; ++m) sums[i][m] = wave_sum(sums[i][m], p.lanes);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (lane != (p.lanes < kAtOnce ? i % p.lanes : i) || tile + i * groups + group >= all) continue;
        sink.finish(places[i].image, places[i].vector, sums[i]);
      }
    }
    block_barrier();  // coefficients have been read
    sink.leave_moments();
  }
};

}  // namespace fusedsc::gpu
