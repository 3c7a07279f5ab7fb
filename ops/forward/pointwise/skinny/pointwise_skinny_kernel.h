/// Pointwise convolution on GPUs to one output, forward: a matrix-vector product for each image.
#pragma once

#include "fusedsc/common/gpu/sums/moments.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/pointwise/skinny/pointwise_skinny.h"

namespace fusedsc::gpu {

struct PointwiseSkinnyParameters {
  SkinnyTensor x, residual;
  SkinnyOutput y;
  ConstDeviceTensor weight;
  const void* bias = nullptr;
  DevicePrologue prologue, epilogue;
  void* partials = nullptr;  ///< of the statistics, where they are wanted: [split][mean, m2, count]
  int channels = 0;
  SkinnyPositions positions;  ///< neighbouring channels: vectors of one
  int lanes = 1;              ///< neighbouring channels: that share a position, a power of two
};

/// Finished outputs: bias, statistics, epilogue, and into memory.
template <class T>
struct SkinnySink {
  using A = Accumulator<T>;

  const PointwiseSkinnyParameters& p;
  A bias, scale, shift;
  ShiftedMoments<A, 1> moments;

  FUSEDSC_DEVICE explicit SkinnySink(const PointwiseSkinnyParameters& p_)
      : p(p_),
        bias(p.bias != nullptr ? to_accumulator(*static_cast<const T*>(p.bias)) : A(0)),
        scale(p.epilogue.scale != nullptr ? *static_cast<const A*>(p.epilogue.scale) : A(1)),
        shift(p.epilogue.shift != nullptr ? *static_cast<const A*>(p.epilogue.shift) : A(0)) {}

  FUSEDSC_DEVICE void finish(int image, int position, A sum) {
    A y[1] = {sum + bias};
    if (p.partials != nullptr) {
      moments.template add<1>(y, 1);
    } else {
      y[0] = y[0] * scale + shift;
      activate(p.epilogue.activation, y);
    }
    if (p.residual.data != nullptr) y[0] += to_accumulator(*p.residual.at<T>(image, 0, position));
    from_accumulator(y[0], *p.y.at<T>(image, 0, position));
  }

  /// The block's. In shared memory: counts, means and M2s of all threads.
  FUSEDSC_DEVICE void leave_moments() const {
    if (p.partials == nullptr) return;
    A* count = static_cast<A*>(shared_memory());
    A *mean = count + kSkinnyThreads, *m2 = mean + kSkinnyThreads;
    const int thread = thread_index();
    block_barrier();  // what was there has been read
    count[thread] = moments.count;
    mean[thread] = moments.mean(0);
    m2[thread] = moments.m2(0);
    for (int reach = kSkinnyThreads / 2; reach > 0; reach /= 2) {
      block_barrier();
      if (thread >= reach) continue;
      merge_moments(count[thread], mean[thread], m2[thread], count[thread + reach], mean[thread + reach],
                    m2[thread + reach]);
    }
    if (thread != 0) return;
    A* row = static_cast<A*>(p.partials) + static_cast<std::int64_t>(block_index()) * 3;
    row[0] = mean[0];
    row[1] = m2[0];
    row[2] = count[0];
  }
};

/// What a channel is multiplied with, in shared memory: scale, shift, weight. Those of each kApart-th channel follow
/// each other: threads beside each other have vectors of so many.
template <class T, int kApart>
struct SkinnyCoefficients {
  using A = Accumulator<T>;
  struct alignas(4 * sizeof(A)) Row {
    A scale, shift, weight, unused;
  };

  FUSEDSC_HOST_DEVICE static constexpr int size(int channels) { return (channels + kApart - 1) / kApart * kApart * 4; }
  FUSEDSC_DEVICE static int place(int channels, int channel) {
    return channel % kApart * ((channels + kApart - 1) / kApart) + channel / kApart;
  }

  FUSEDSC_DEVICE static void bring(const PointwiseSkinnyParameters& p, Row* to) {
    for (int c = thread_index(); c < p.channels; c += kSkinnyThreads) {
      Row& row = to[place(p.channels, c)];
      row.scale = p.prologue.scale != nullptr ? static_cast<const A*>(p.prologue.scale)[c] : A(1);
      row.shift = p.prologue.shift != nullptr ? static_cast<const A*>(p.prologue.shift)[c] : A(0);
      row.weight = to_accumulator(elements_of<T>(p.weight)[p.weight.offset(0, c, 0, 0)]);
    }
  }
};

/// Neighbouring positions: 32 lanes have a vector of them each, and the block's parts every eighth channel.
template <class T, int kVector>
struct PointwiseSkinnyPlanes {
  using A = Accumulator<T>;
  using Coefficients = SkinnyCoefficients<T, 1>;
  static constexpr int kLanes = 32, kParts = kSkinnyThreads / kLanes, kTile = kLanes * kVector;
  static constexpr int kAtOnce = sizeof(T) == 8 ? 4 : 8;  ///< channels of a thread that are loaded at once
  static constexpr int kBlocks = 3;                       ///< of a multiprocessor, as registers allow

  /// Vectors of a tile.
  FUSEDSC_HOST_DEVICE static constexpr int tile_vectors(int /*lanes*/) { return kLanes; }
  FUSEDSC_HOST_DEVICE static constexpr int memory_bytes(int channels) {
    return (sums_size() + Coefficients::size(channels)) * static_cast<int>(sizeof(A));
  }

  FUSEDSC_DEVICE static void run(const PointwiseSkinnyParameters& p) {
    A* all_sums = static_cast<A*>(shared_memory());
    auto* coefficients = reinterpret_cast<typename Coefficients::Row*>(all_sums + sums_size());
    Coefficients::bring(p, coefficients);
    SkinnySink<T> sink(p);
    const int lane = thread_index() % kLanes, part = thread_index() / kLanes;
    block_barrier();
    const int tiles = (p.positions.vectors + kLanes - 1) / kLanes;
    for (int tile = static_cast<int>(block_index()); tile < tiles; tile += static_cast<int>(block_count())) {
      A sums[kVector] = {};
      const int vector = tile * kLanes + lane;
      if (vector < p.positions.vectors) {
        const SkinnyPositions::Place place = p.positions.place(vector);
        add_channels(p, p.x.at<T>(place.image, part, 0) + place.vector * kVector, part, coefficients, sums);
      }
      block_barrier();  // sums of the tile before have been read
#pragma unroll
      for (int v = 0; v < kVector; ++v) all_sums[part * kTile + lane * kVector + v] = sums[v];
      block_barrier();
      for (int i = thread_index(); i < kTile; i += kSkinnyThreads) {
        const int own = tile * kLanes + i / kVector;
        if (own >= p.positions.vectors) continue;
        const SkinnyPositions::Place place = p.positions.place(own);
        A sum = 0;
#pragma unroll
        for (int other = 0; other < kParts; ++other) sum += all_sums[other * kTile + i];
        sink.finish(place.image, place.vector * kVector + i % kVector, sum);
      }
    }
    sink.leave_moments();
  }

 private:
  FUSEDSC_HOST_DEVICE static constexpr int sums_size() {
    return kParts * kTile > 3 * kSkinnyThreads ? kParts * kTile : 3 * kSkinnyThreads;
  }

  FUSEDSC_DEVICE static void add_channels(const PointwiseSkinnyParameters& p, const T* from, int part,
                                          const typename Coefficients::Row* coefficients, A (&sums)[kVector]) {
    const std::int64_t step = kParts * p.x.channel;
#pragma unroll 1
    for (int first = part; first < p.channels; first += kParts * kAtOnce) {
      Vector<T, kVector> loaded[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        loaded[i] = load<kVector>(first + i * kParts < p.channels ? from + i * step : from);
      }
      from += kAtOnce * step;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i * kParts >= p.channels) continue;
        const typename Coefficients::Row of = coefficients[first + i * kParts];
        A x[kVector];
        loaded[i].widen(x);
#pragma unroll
        for (int v = 0; v < kVector; ++v) x[v] = x[v] * of.scale + of.shift;
        activate(p.prologue.activation, x);
#pragma unroll
        for (int v = 0; v < kVector; ++v) sums[v] += x[v] * of.weight;
      }
    }
  }
};

/// Neighbouring channels: some lanes share a position, with vectors of channels, and add their sums up. What comes next
/// is loaded before what has come is computed with.
template <class T, int kVector>
struct PointwiseSkinnyChannels {
  using A = Accumulator<T>;
  using Coefficients = SkinnyCoefficients<T, kVector>;
  static constexpr int kAtOnce = 4;  ///< positions of a lane
  static constexpr int kBlocks = 2;  ///< of a multiprocessor, as registers allow

  FUSEDSC_HOST_DEVICE static constexpr int tile_vectors(int lanes) { return kSkinnyThreads / lanes * kAtOnce; }
  FUSEDSC_HOST_DEVICE static constexpr int memory_bytes(int channels) {
    const int coefficients = Coefficients::size(channels), moments = 3 * kSkinnyThreads;
    return (coefficients > moments ? coefficients : moments) * static_cast<int>(sizeof(A));
  }

  FUSEDSC_DEVICE static void run(const PointwiseSkinnyParameters& p) {
    auto* coefficients = static_cast<typename Coefficients::Row*>(shared_memory());
    const int lane = thread_index() % p.lanes, group = thread_index() / p.lanes, groups = kSkinnyThreads / p.lanes;
    const int tile_positions = tile_vectors(p.lanes), all = p.positions.vectors,
              step = static_cast<int>(block_count()) * tile_positions;
    const int first_channel = lane * kVector, channel_step = p.lanes * kVector;
    int tile = static_cast<int>(block_index()) * tile_positions, channel = first_channel;
    Chunk next;
    if (tile < all) next.ask(p, tile + group, groups, channel);
    Coefficients::bring(p, coefficients);
    SkinnySink<T> sink(p);
    block_barrier();
    A sums[kAtOnce] = {};
    while (tile < all) {
      const Chunk chunk = next;
      const bool is_last = channel - first_channel + channel_step >= p.channels;  // the same for all lanes
      const int next_tile = is_last ? tile + step : tile,
                next_channel = is_last ? first_channel : channel + channel_step;
      if (next_tile < all) next.ask(p, next_tile + group, groups, next_channel);
      if (channel < p.channels) chunk.add(p, coefficients, channel, sums);
      if (is_last) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) sums[i] = wave_sum(sums[i], p.lanes);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int position = tile + i * groups + group;
          if (lane == i % p.lanes && position < all) {
            const SkinnyPositions::Place place = p.positions.place(position);
            sink.finish(place.image, place.vector, sums[i]);
          }
          sums[i] = 0;
        }
      }
      tile = next_tile;
      channel = next_channel;
    }
    sink.leave_moments();
  }

 private:
  /// Vectors of channels of kAtOnce positions.
  struct Chunk {
    Vector<T, kVector> loaded[kAtOnce];

    FUSEDSC_DEVICE void ask(const PointwiseSkinnyParameters& p, int position, int apart, int channel) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = position + i * apart;
        const SkinnyPositions::Place place = p.positions.place(at < p.positions.vectors ? at : 0);
        loaded[i] = load<kVector>(p.x.at<T>(place.image, 0, place.vector) + (channel < p.channels ? channel : 0));
      }
    }

    FUSEDSC_DEVICE void add(const PointwiseSkinnyParameters& p, const typename Coefficients::Row* coefficients,
                            int channel, A (&sums)[kAtOnce]) const {
      typename Coefficients::Row of[kVector];
#pragma unroll
      for (int v = 0; v < kVector; ++v) of[v] = coefficients[Coefficients::place(p.channels, channel + v)];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        A x[kVector];
        loaded[i].widen(x);
#pragma unroll
        for (int v = 0; v < kVector; ++v) x[v] = x[v] * of[v].scale + of[v].shift;
        activate(p.prologue.activation, x);
#pragma unroll
        for (int v = 0; v < kVector; ++v) sums[i] += x[v] * of[v].weight;
      }
    }
  };
};

}  // namespace fusedsc::gpu
