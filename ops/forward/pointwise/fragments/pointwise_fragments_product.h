/// The product of the forward pass and of the input gradient by warps that read activations from memory as
/// instructions take them: no barrier, and no way of activations or results through other threads' hands.
#pragma once

#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/pointwise/fragments/pointwise_fragments_runs.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_product.h"

namespace fusedsc::gpu {

/// A thread's 16 bytes of its positions on their way: copied to shared memory ahead of their use, and read by nobody
/// else, so that no barrier is needed.
template <class T, class Tile>
class FragmentRows {
 public:
  static constexpr int kStageBytes = Tile::kPositionTiles * Tile::kThreads * 16;

  FUSEDSC_DEVICE FragmentRows(const PointwiseMatrix& matrix, int group, void* memory, int stage_bytes)
      : stride_(matrix.first),
        base_(static_cast<const T*>(matrix.data) + group * matrix.group + FragmentPlace().inner * Tile::kDepthRun),
        memory_(static_cast<unsigned char*>(memory) + thread_index() * 16),
        stage_bytes_(stage_bytes) {}

  /// From position `first` on, of which so many are left.
  FUSEDSC_DEVICE void aim(int first, int left) {
    from_ = base_ + (first + FragmentPlace().outer) * stride_;
    left_ = left - FragmentPlace().outer;
  }
  /// Values of k from `k` on, of `depth`.
  FUSEDSC_DEVICE void start(int slot, int k, int depth) const {
    const int left = k + FragmentPlace().inner * Tile::kDepthRun < depth ? left_ : 0;
    unsigned char* const to = memory_ + slot * stage_bytes_;
#pragma unroll
    for (int i = 0; i < Tile::kPositionTiles; ++i) {
      const bool has = 8 * i < left;
      start_copy<16>(to + i * Tile::kThreads * 16, has ? from_ + 8 * i * stride_ + k : base_, has);
    }
  }
  FUSEDSC_DEVICE void read(int slot, FragmentWords (&to)[Tile::kPositionTiles]) const {
    const unsigned char* const from = memory_ + slot * stage_bytes_;
#pragma unroll
    for (int i = 0; i < Tile::kPositionTiles; ++i) {
      to[i] = *reinterpret_cast<const FragmentWords*>(from + i * Tile::kThreads * 16);
    }
  }

 private:
  std::int64_t stride_;
  const T* base_;
  unsigned char* memory_;
  int stage_bytes_;
  const T* from_ = nullptr;
  int left_ = 0;
};

/// Coefficients of a prologue by k, in shared memory: scale, shift, and scale of the other tensor.
class FragmentPrologue {
 public:
  FUSEDSC_HOST_DEVICE static constexpr int bytes(int padded_depth) { return 3 * padded_depth * 4; }

  FUSEDSC_DEVICE FragmentPrologue(const PointwisePrologue& prologue, void* memory, int padded_depth)
      : prologue_(prologue), memory_(static_cast<float*>(memory)), padded_depth_(padded_depth) {}

  /// 0 beyond the end, so that what is multiplied there is activation(0) = 0. kOfWord: of a chunk's 16 words of so many
  /// elements a thread has every fourth; 0: it has neighbours.
  template <int kThreads, int kOfWord>
  FUSEDSC_DEVICE void load_all(int first, int depth) const {
    load_one<kThreads, kOfWord>(memory_, prologue_.scale, 1, first, depth);
    load_one<kThreads, kOfWord>(memory_ + padded_depth_, prologue_.shift, 0, first, depth);
    load_one<kThreads, kOfWord>(memory_ + 2 * padded_depth_, prologue_.other_scale, 0, first, depth);
  }

  /// On 16 bytes of positions each, values of k from `k` on. A gradient's has no activation.
  template <class T, bool kHasOther, FragmentFusion kActivations, int kRows>
  FUSEDSC_DEVICE void apply(int k, FragmentWords (&rows)[kRows], const FragmentWords (&other)[kRows]) const {
    constexpr int kTogether = kRows % 2 == 0 ? 2 : 1, kOfWord = kPerWord<T>, kValues = 4 * kOfWord;
    float scale[kValues], shift[kValues], other_scale[kValues];
    read(k, scale);
    read(padded_depth_ + k, shift);
    if constexpr (kHasOther) read(2 * padded_depth_ + k, other_scale);
#pragma unroll
    for (int first = 0; first < kRows; first += kTogether) {
      float z[kValues * kTogether];
#pragma unroll
      for (int r = 0; r < kTogether; ++r) {
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          float values[kOfWord], others[kOfWord];
          to_numbers(rows[first + r].elements[w], values, T());
          if constexpr (kHasOther) to_numbers(other[first + r].elements[w], others, T());
#pragma unroll
          for (int v = 0; v < kOfWord; ++v) {
            const int i = kOfWord * w + v;
            float more = shift[i];
            if constexpr (kHasOther) more += others[v] * other_scale[i];
            z[kValues * r + i] = values[v] * scale[i] + more;
          }
        }
      }
      if constexpr (kActivations != FragmentFusion::none) {
        activate_by<kActivations == FragmentFusion::clamps>(prologue_.activation, z);
      }
#pragma unroll
      for (int r = 0; r < kTogether; ++r) {
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          rows[first + r].elements[w] = word_of(z + kValues * r + kOfWord * w, T());
        }
      }
    }
  }

 private:
  template <int kThreads, int kOfWord>
  FUSEDSC_DEVICE void load_one(float* to, const void* from, float otherwise, int first, int depth) const {
    for (int k = thread_index(); k < padded_depth_; k += kThreads) {
      float value = 0;
      if (k < depth) value = from != nullptr ? static_cast<const float*>(from)[first + k] : otherwise;
      int place = k;
      if constexpr (kOfWord > 0) {
        const int word = k / kOfWord % 16;
        place = (k / kOfWord / 16 * 16 + word % 4 * 4 + word / 4) * kOfWord + k % kOfWord;
      }
      to[place] = value;
    }
  }
  template <int kValues>
  FUSEDSC_DEVICE void read(int place, float (&to)[kValues]) const {
#pragma unroll
    for (int i = 0; i < kValues; i += 4) {
      const auto four = *reinterpret_cast<const Aligned<float, 4>*>(memory_ + place + i);
#pragma unroll
      for (int v = 0; v < 4; ++v) to[i + v] = four.elements[v];
    }
  }

  const PointwisePrologue& prologue_;
  float* memory_;
  int padded_depth_;
};

/// Steps of a block's tiles in their order, as they are copied ahead of their use, each to the next stage.
template <int kStages>
class FragmentSteps {
 public:
  /// `steps`: of a tile.
  FUSEDSC_DEVICE FragmentSteps(int tiles, int steps) : tiles_(tiles), steps_(steps) {}

  /// aim(tile) before a tile's first step, and start(step, stage); neither where there are no more tiles.
  template <class Aim, class Start>
  FUSEDSC_DEVICE void start_next(const Aim& aim, const Start& start) {
    if (tile_ < tiles_) {
      if (step_ == 0) aim(tile_);
      start(step_, slot_);
      if (++step_ == steps_) {
        step_ = 0;
        ++tile_;
      }
    }
    slot_ = slot_ == kStages - 1 ? 0 : slot_ + 1;
    commit_copies();
  }

 private:
  int tiles_, steps_;
  int tile_ = 0, step_ = 0, slot_ = 0;
};

/// Hands a tile's sums to the sink. first_pixel: of the warp. Of kParts warps that have summed over different k each
/// takes some of the results, by way of `exchange`.
template <class Tile, class Sums, class Sink>
FUSEDSC_DEVICE void finish_fragments(const Sums& sums, float* exchange, int first_pixel, int pixels, int first_channel,
                                     int channels, int part, Sink& sink) {
  if constexpr (Tile::kParts > 1) {
    block_barrier();  // the last tile's have been read
    sums.leave(exchange);
    block_barrier();
  }
  const int first = first_pixel + Sums::first_position();
#pragma unroll
  for (int group = 0; group < Tile::kGroups; ++group) {
    const int channel = FragmentSweep<Tile>::channel(group * Tile::kRun);
    if (channel >= channels) continue;
    const FragmentRuns<Sums, Tile> runs{first, pixels - first, group, part};
    sink.take(group, runs, first_channel + channel, Tile::kRun, [&](int i, float(&to)[Tile::kRun]) {
      if constexpr (Tile::kParts > 1) Sums::gather(exchange, Sums::unit(i, group), to);
      else sums.read(i, group, to);
    });
  }
}

/// Of the input gradient the weight's depth comes first, and the prologue may have a second tensor.
template <class T, class Tile, bool kWeightDepthFirst, FragmentFusion kFusion>
struct FragmentProduct {
  using Weight = FragmentWeight<T, Tile>;
  using Sums = FragmentSums<T, Tile>;
  using Rows = FragmentRows<T, Tile>;
  static constexpr bool kHasFusion = kFusion != FragmentFusion::none, kMayHaveOther = kHasFusion && kWeightDepthFirst;

  FUSEDSC_HOST_DEVICE static constexpr std::size_t stages_bytes(bool has_other) {
    return static_cast<std::size_t>(Tile::kStages) * Rows::kStageBytes * (has_other ? 2 : 1);
  }

  /// Of a block: rows under way, sums of parts, coefficients and the weight; in the end what the sink needs.
  template <class Sink>
  FUSEDSC_HOST_DEVICE static constexpr std::size_t memory_bytes(int depth, bool has_other) {
    const std::size_t prologue = kHasFusion ? FragmentPrologue::bytes(Tile::chunks(depth) * Tile::kChunk) : 0;
    const std::size_t bytes = stages_bytes(has_other) + Sums::kExchangeBytes + prologue +
                              static_cast<std::size_t>(Tile::chunks(depth)) * Weight::kChunkBytes;
    return bytes > Sink::kFinishBytes ? bytes : Sink::kFinishBytes;
  }

  template <class Sink, class Parameters>
  FUSEDSC_DEVICE static void run(const Parameters& parameters) {
    with_other<kMayHaveOther>(parameters.product.prologue.other.data,
                              [&](auto has_other) { run_with<Sink, has_other>(parameters); });
  }

 private:
  template <class Sink, bool kHasOther, class Parameters>
  FUSEDSC_DEVICE static void run_with(const Parameters& parameters) {
    const PointwiseProductParameters& p = parameters.product;
    const PointwiseShare share(p);
    const int first_channel = share.channel_tile * Tile::kColumns, channels = p.channels - first_channel;
    const int all_chunks = Tile::chunks(p.depth);
    auto* const memory = static_cast<unsigned char*>(shared_memory());
    constexpr int kStage = Rows::kStageBytes * (kHasOther ? 2 : 1);
    unsigned char* const exchange = memory + Tile::kStages * kStage;
    unsigned char* const coefficients = exchange + Sums::kExchangeBytes;
    const FragmentPrologue prologue(p.prologue, coefficients, all_chunks * Tile::kChunk);
    const Weight weight(coefficients + (kHasFusion ? FragmentPrologue::bytes(all_chunks * Tile::kChunk) : 0));

    wait_for_previous_kernel();
    const T* const from = static_cast<const T*>(p.weight.data) + share.group * p.weight.group;
    if constexpr (kWeightDepthFirst) {
      weight.start_transposed(from + first_channel, p.weight.first, channels, p.depth);
    } else {
      weight.start(from + first_channel * p.weight.first, p.weight.first, channels, p.depth);
    }
    Rows rows(p.activations, share.group, memory, kStage);
    Rows other(kHasOther ? p.prologue.other : p.activations, share.group, memory + Rows::kStageBytes, kStage);

    const int part = FragmentPlace().warp % Tile::kParts, row_group = FragmentPlace().warp / Tile::kParts;
    const int tiles = (p.pixel_tiles - share.split + p.splits - 1) / p.splits;
    const int steps = all_chunks / Tile::kParts;
    const auto first_pixel = [&](int tile) {
      return (share.split + tile * p.splits) * Tile::kRows + row_group * Tile::kWarpRows;
    };
    FragmentSteps<Tile::kStages> ahead(tiles, steps);
    const auto start_next = [&] {
      ahead.start_next(
          [&](int tile) {
            const int first = first_pixel(tile);
            rows.aim(first, p.pixels - first);
            if constexpr (kHasOther) other.aim(first, p.pixels - first);
          },
          [&](int step, int slot) {
            const int k = (step * Tile::kParts + part) * Tile::kChunk;
            rows.start(slot, k, p.depth);
            if constexpr (kHasOther) other.start(slot, k, p.depth);
          });
    };
#pragma unroll
    for (int i = 0; i < Tile::kStages - 1; ++i) start_next();
    if constexpr (kHasFusion) prologue.load_all<Tile::kThreads, 0>(share.group * p.depth, p.depth);
    Sink sink(parameters, share, first_channel);
    wait_for_copies<Tile::kStages - 2>();
    if constexpr (kWeightDepthFirst) weight.arrange_transposed(p.depth);
    else weight.arrange(p.depth);
    block_barrier();

    Sums sums;
    int slot = 0;
    for (int tile = 0; tile < tiles; ++tile) {
      for (int step = 0; step < steps; ++step) {
        wait_for_copies<Tile::kStages - 2>();
        FragmentWords a[Tile::kPositionTiles];
        rows.read(slot, a);
        const int chunk = step * Tile::kParts + part;
        if constexpr (kHasFusion) {
          FragmentWords b[Tile::kPositionTiles];
          if constexpr (kHasOther) other.read(slot, b);
          start_next();
          prologue.apply<T, kHasOther, kWeightDepthFirst ? FragmentFusion::none : kFusion>(
              chunk * Tile::kChunk + FragmentPlace().inner * Tile::kDepthRun, a, b);
        } else {
          start_next();
        }
        slot = slot == Tile::kStages - 1 ? 0 : slot + 1;
#pragma unroll
        for (FragmentWords& words : a) words = factors_of<T>(words);
        sums.multiply(a, weight, chunk);
      }
      finish_fragments<Tile>(sums, reinterpret_cast<float*>(exchange), first_pixel(tile), p.pixels, first_channel,
                             channels, part, sink);
      sums.clear();
    }
    let_next_kernel_start();
    sink.finish(SharedMemory<float, kMostBytes<Sink>>{reinterpret_cast<float*>(memory)});
  }

  template <class Sink>
  static constexpr std::size_t kMostBytes = Sink::kFinishBytes;
};

}  // namespace fusedsc::gpu
