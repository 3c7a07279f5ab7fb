/// Pointwise convolution on Hopper GPUs, both gradients from one pass over x: the gradient of 64 channels of x, and
/// that of their weights, for few outputs. A block goes through the positions, 64 at a time, which a warp of its own
/// has the copy engine bring: x, grad_y and the raw output. Groups of four warps take turns. Rows of both products are
/// channels: the first one makes the gradient of x, transposed; threads that hold it read x likewise, and the activated
/// x in their registers is what the second product takes to add up the gradient of the weight. While one group is busy
/// with elements, others multiply. Groups of neighbouring channels may share grad_y and output.
///
/// The gradient prologue is linear and never applied to an element. Of x's gradient its scales belong to the weight, of
/// which there are two then; its offset, times the weight, is one number per channel. Of the weight's gradient it is
/// applied to sums, as in pointwise_hopper_weight_kernel.h.
///
/// Without a prologue (kPlain) x stays as it is, and the second product takes it from block memory.
///
/// Of 32 channels and fewer, several positions lie in a row of 64: the weight repeats along its diagonal.
#pragma once

#include "fusedsc/backward/pointwise_hopper_gradients_parameters.h"
#include "fusedsc/common/gpu/activation.h"
#include "fusedsc/common/gpu/following_kernel.h"
#include "fusedsc/common/gpu/hopper_products.h"
#include "fusedsc/common/gpu/hopper_stages.h"
#include "fusedsc/common/gpu/pointwise_hopper_laid_out.h"

namespace fusedsc::gpu::hopper {

/// kDepth: outputs of all positions of a row, at most. kSharing: groups that share positions. kTeams: of these, which
/// take turns. kHasOutput: that there is a gradient prologue. kPlain: that there is no prologue.
template <class T, int kDepth_, int kSharing_, int kTeams_, bool kHasOutput_, bool kPlain_>
class PointwiseGradients {
 public:
  static constexpr int kDepth = kDepth_, kSharing = kSharing_, kTeams = kTeams_, kGroups = kSharing * kTeams;
  static constexpr int kProductThreads = kGroups * 128, kThreads = kProductThreads + 128;
  static constexpr bool kHasOutput = kHasOutput_, kPlain = kPlain_;
  static_assert(!kPlain || !kHasOutput);
  /// Columns of grad_y as it is copied.
  static constexpr int kWide = kDepth % 64 == 0 ? 64 : 32;

  FUSEDSC_HOST_DEVICE static constexpr int memory_bytes(int stages) {
    return 1024 + kGradTilesAt + most(kStagesAt - kGradTilesAt + stages * kStageBytes, kGroups * kSumFloats * 4);
  }

  FUSEDSC_DEVICE static void run(const PointwiseGradientsParameters& p) {
    static_assert(memory_bytes(kTeams) <= kMemoryLimit);  // a team is never more than a round behind
    if (uniform(thread_index() / 128) == kGroups) {
      set_registers<false, kCopyRegisters>();
      PointwiseGradients(p).copy_all();
    } else {
      set_registers<true, kProductRegisters>();
      PointwiseGradients(p).multiply_all();
    }
  }

 private:
  static constexpr int kRows = 64, kChannels = 64;   ///< of a tile
  static constexpr int kParts = kHasOutput ? 2 : 1;  ///< grad_y; output
  static constexpr int kBoxes = (kDepth + kWide - 1) / kWide, kBoxBytes = kRows * kWide * 2;
  static constexpr int kTileBytes = kRows * kChannels * 2, kXBytes = kSharing * kTileBytes,
                       kStageBytes = kXBytes + kParts * kBoxes * kBoxBytes;
  static constexpr int kWeightBytes = kParts * kDepth * kChannels * 2;
  static constexpr int kColumns = kSharing * kChannels;  ///< of a block
  /// Tiles of x's gradient of a group, so that one is filled while the other leaves.
  static constexpr int kGradTiles = 2;
  static_assert(kDepth % 32 == 0);

  // Vectors in block memory: by channels, the product of weight and offset; three scales by k; scratch.
  static constexpr int kScales = kColumns, kScratch = kScales + 3 * kDepth;
  static constexpr int kLanes = kProductThreads / kColumns;  ///< threads of a channel, while the weight is prepared
  static constexpr int kVectorFloats = kHasOutput ? kScratch + kLanes * kColumns + 32 : 0;
  /// What a group leaves at its end, for each k and for both sums.
  static constexpr int kVectorSums = kPlain ? 0 : 2;  ///< rows of partial results that are no weights
  static constexpr int kSumPitch = kChannels + 4, kSumFloats = (kDepth + kVectorSums) * kSumPitch;

  /// Of a thread; what the copying group does not need the others have.
  static constexpr int kCopyRegisters = kGroups < 3 ? 24 : 32, kProductRegisters = kGroups == 1   ? 232
                                                                                   : kGroups == 2 ? 240
                                                                                   : kGroups == 3 ? 160
                                                                                                  : 112;

  // Where in block memory things lie, in bytes. What groups leave at their ends takes the place of all tiles.
  static constexpr int kBarriersAt = kSharing * kWeightBytes,
                       kVectorsAt = kBarriersAt + (3 * kMostGradientStages + 1) * 8;
  static constexpr int kGradTilesAt = (kVectorsAt + kVectorFloats * 4 + 1023) / 1024 * 1024;
  static constexpr int kStagesAt = kGradTilesAt + kGroups * kGradTiles * kTileBytes;

  FUSEDSC_HOST_DEVICE static constexpr int most(int a, int b) { return a < b ? b : a; }

  /// Columns of the second product, of grad_y and of output, which lie side by side; at most 192 at once.
  static constexpr int kAll = kParts * kDepth, kFirst = kAll <= 192 ? kAll : kAll % 128 == 0 ? 128 : 192;
  static_assert(kParts == 1 || kDepth % kWide == 0);
  static_assert(kAll == kFirst || (kFirst % kWide == 0 && kAll - kFirst <= 192));
  using Four = Aligned<float, 4>;
  using Grad = float[kRows / 2];                   ///< of x: a lane's two channels by pairs of positions
  using Activated = std::uint32_t[kRows / 16][4];  ///< likewise, as products take them
  /// Threads read x while the first product runs, where there are registers for both.
  static constexpr bool kLoadsAhead = kAll <= 192;
  struct Sums {
    float products[kAll / 2];  ///< of a and grad_y, and of a and output
    // Of two channels; and of a.
    float grad[2], grad_times_centered[2], activated[2];
  };
  /// Of a lane's two channels.
  struct Channels {
    float scale[2] = {1, 1}, shift[2] = {}, mean[2] = {}, constant[2] = {};
  };

  FUSEDSC_DEVICE explicit PointwiseGradients(const PointwiseGradientsParameters& p) : p_(p) {
    group_ = uniform(thread_index() / 128);
    team_ = group_ / kSharing;
    share_ = group_ % kSharing;
    const int block = static_cast<int>(block_index()), with_last = p.last_splits * p.channel_tiles;
    if (block < with_last) {
      channel_tile_ = block % p.channel_tiles;
      split_ = block / p.channel_tiles;
    } else {
      channel_tile_ = (block - with_last) % (p.channel_tiles - 1);
      split_ = p.last_splits + (block - with_last) / (p.channel_tiles - 1);
    }
    splits_ = channel_tile_ == p.channel_tiles - 1 ? p.last_splits : p.splits;
    first_column_ = channel_tile_ * kColumns;
    tiles_ = split_ < p.row_tiles ? (p.row_tiles - split_ + splits_ - 1) / splits_ : 0;

    memory_ = static_cast<unsigned char*>(block_memory());
    memory_ += padding_before_tiles(memory_);
  }

  FUSEDSC_DEVICE unsigned char* weight_tile(int share) const { return memory_ + share * kWeightBytes; }
  FUSEDSC_DEVICE unsigned char* grad_tiles() const { return memory_ + kGradTilesAt + group_ * kGradTiles * kTileBytes; }
  FUSEDSC_DEVICE unsigned char* stage(int slot) const { return memory_ + kStagesAt + slot * kStageBytes; }
  FUSEDSC_DEVICE float* left() const { return reinterpret_cast<float*>(memory_ + kGradTilesAt); }
  FUSEDSC_DEVICE float* vectors() const { return reinterpret_cast<float*>(memory_ + kVectorsAt); }
  FUSEDSC_DEVICE Barrier* barriers() const { return reinterpret_cast<Barrier*>(memory_ + kBarriersAt); }
  FUSEDSC_DEVICE Barrier* full(int turn) const { return barriers() + turn; }
  FUSEDSC_DEVICE Barrier* empty(int slot) const { return barriers() + 2 * kMostGradientStages + slot; }
  FUSEDSC_DEVICE Barrier* weight_barrier() const { return barriers() + 3 * kMostGradientStages; }

  FUSEDSC_DEVICE int first_row(int tile) const { return (split_ + tile * splits_) * kRows; }

  // ------------------------------------------------------------------------------------------- by the copying group

  /// turn: as multiply_all() counts them.
  FUSEDSC_DEVICE void start_tile(int tile, int turn) const {
    unsigned char* to = stage(turn < p_.stages ? turn : turn - p_.stages);
    const int row = first_row(tile);
    expect(full(turn), kStageBytes);
#pragma unroll 1
    for (int i = 0; i < kSharing; ++i, to += kTileBytes) {
      start_load(to, p_.x, first_column_ + i * kChannels, row, full(turn));
    }
#pragma unroll 1
    for (int box = 0; box < kBoxes; ++box, to += kBoxBytes) {
      start_load(to, p_.grad_y, box * kWide, row, full(turn));
      if (kHasOutput) start_load(to + kBoxes * kBoxBytes, p_.output, box * kWide, row, full(turn));
    }
  }

  FUSEDSC_DEVICE void copy_all() const {
    const bool copies = thread_index() == kProductThreads;
    if (copies) {
      for (int i = 0; i < p_.stages; ++i) {
        initialise(full(i));
        initialise(full(p_.stages + i));
        initialise(empty(i), kSharing * 4);
      }
      initialise(weight_barrier());
      publish();
    }
    block_barrier();
    if (!copies) return;
    prefetch(p_.x);
    prefetch(p_.grad_y);
    wait_for_previous_kernel();
    if (copies_weight()) start_weight();
    StageTurn turn;
#pragma unroll 1
    for (int tile = 0; tile < tiles_; ++tile) {
      if (tile >= p_.stages) wait(empty(turn.slot), turn.parity ^ 1);
      start_tile(tile, turn.slot + turn.parity * p_.stages);
      turn.next(p_.stages);
    }
  }

  FUSEDSC_DEVICE void start_weight() const {
    expect(weight_barrier(), kSharing * kWeightBytes);
#pragma unroll 1
    for (int i = 0; i < kSharing; ++i) {
#pragma unroll 1
      for (int k = 0; k < kDepth; k += 32) {
        start_load(weight_tile(i) + k * kChannels * 2, p_.weight_tiles, first_column_ + i * kChannels, k,
                   weight_barrier());
      }
    }
  }

  // ------------------------------------------------------------------------------------------ by all other groups

  /// Where there is nothing to be done to it.
  FUSEDSC_DEVICE bool copies_weight() const { return !kHasOutput && p_.fold == 1 && p_.weight.is_dense(); }

  FUSEDSC_DEVICE void prepare() {
    if (copies_weight()) return wait(weight_barrier(), 0);
    if constexpr (kHasOutput) {
      const int column = thread_index() % kColumns;
      scale_weight(p_.fold == 1 ? first_column_ + column : column % p_.channels, column, thread_index() / kColumns);
    } else {
#pragma unroll
      for (int i = 0; i < kSharing; ++i) lay_out(weight_tile(i), first_column_ + i * kChannels);
    }
    publish();
    group_barrier<kProductThreads>(kGroups);
  }

  /// As it is.
  FUSEDSC_DEVICE void lay_out(unsigned char* to, int first_column) const {
    if (p_.fold == 1) {
      lay_out_weight<T, 32, 128>(p_.weight, {to, 32 * 128, 0, 32, first_column, 0, kDepth / 32}, thread_index(),
                                 kProductThreads);
      return;
    }
    constexpr int kRuns = kChannels / 8, kItems = (kDepth * kRuns + kProductThreads - 1) / kProductThreads;
    Aligned<std::uint32_t, 4> words[kItems] = {};
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int item = thread_index() + i * kProductThreads, column = item % kRuns * 8, position = column / p_.channels;
      const int output = item / kRuns - position * p_.outputs;
      if (item >= kDepth * kRuns || output < 0 || output >= p_.outputs) continue;
      const int first = p_.weight.first(output), channel = column % p_.channels;
      words[i] = p_.weight.in_runs<T>() ? p_.weight.run<T, true>(output, first, channel)
                                        : p_.weight.run<T, false>(output, first, channel);
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int item = thread_index() + i * kProductThreads;
      if (item >= kDepth * kRuns) break;
      *reinterpret_cast<Aligned<std::uint32_t, 4>*>(to + place_of_run<128>(item / kRuns, item % kRuns)) = words[i];
    }
  }

  /// The weight, times either scale of the gradient prologue and a power of two that keeps both from vanishing; and its
  /// product with the offset.
  FUSEDSC_DEVICE void scale_weight(int channel, int column, int lane) {
    const int thread = thread_index(), position = p_.fold == 1 ? 0 : column / p_.channels;
    const bool has = channel < p_.channels;
    float *scales = vectors() + kScales, *scratch = vectors() + kScratch;
    for (int k = thread; k < kDepth; k += kProductThreads) {
      const bool exists = k < p_.fold * p_.outputs;
      const int output = k % p_.outputs;
      scales[k] = exists ? p_.grad_scale[output] : 0.0f;
      scales[kDepth + k] = exists ? p_.output_scale[output] : 0.0f;
      scales[2 * kDepth + k] = exists ? p_.offset[output] : 0.0f;
    }
    constexpr int kItems = (kDepth + kLanes - 1) / kLanes;
    float weights[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int k = lane + i * kLanes, output = k - position * p_.outputs;
      const bool exists = has && output >= 0 && output < p_.outputs && k < kDepth;
      const std::int64_t offset = exists ? p_.weight.offset(output, p_.weight.first(output), channel) : -1;
      weights[i] = offset >= 0 ? to_float(static_cast<const T*>(p_.weight.data)[offset]) : 0.0f;
    }
    group_barrier<kProductThreads>(kGroups);
    float constant = 0, largest = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int k = lane + i * kLanes;
      if (k >= kDepth) break;
      constant += weights[i] * scales[2 * kDepth + k];
      largest = larger(larger(largest, weights[i] * scales[k]), weights[i] * scales[kDepth + k]);
    }
    scratch[lane * kColumns + column] = constant;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) largest = larger(largest, shuffle_xor(largest, distance));
    if (thread % 32 == 0) scratch[kLanes * kColumns + thread / 32] = largest;
    group_barrier<kProductThreads>(kGroups);
    for (int i = 0; i < kProductThreads / 32; ++i) largest = larger(largest, scratch[kLanes * kColumns + i]);
    // A power of two, so that the largest becomes at least 2^12: all exponents but those of denormals, of infinities
    // and beyond 2^100 or below 2^-100, where nothing is to be saved.
    int exponent = static_cast<int>(__builtin_bit_cast(std::uint32_t, largest) >> 23) - 127;
    exponent = exponent > -100 && exponent < 100 ? 12 - exponent : 0;
    const auto power = [](int e) { return __builtin_bit_cast(float, static_cast<std::uint32_t>(e + 127) << 23); };
    unscale_ = power(-exponent);
    const float up = power(exponent);
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int k = lane + i * kLanes;
      if (k >= kDepth) break;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        unsigned char* to = weight_tile(column / kChannels) +
                            place_of_run<128>(part * kDepth + k, column % kChannels / 8) + column % 8 * 2;
        *reinterpret_cast<std::uint16_t*>(to) = to_bits(weights[i] * (scales[part * kDepth + k] * up), T());
      }
    }
    if (lane != 0) return;
    for (int i = 1; i < kLanes; ++i) constant += scratch[i * kColumns + column];
    vectors()[column] = constant;
  }

  FUSEDSC_DEVICE static float larger(float a, float b) {
    const float magnitude = b < 0 ? -b : b;
    return a < magnitude ? magnitude : a;
  }

  // ----------------------------------------------------------------------------------------- by all threads of a group

  FUSEDSC_DEVICE void multiply_all() {
    block_barrier();
    wait_for_previous_kernel();
    prepare();
    const Channels own = own_channels();
    const bool has_channels = first_column_ + share_ * kChannels + uniform(warp()) * 16 < p_.fold * p_.channels;
    TeamTurn turn = {team_};
    int grad_tile = 0;
    Sums sums = {};
#pragma unroll 1
    for (int row = first_row(team_); row < p_.rows; row += kTeams * splits_ * kRows) {
      const int slot = turn.slot(p_.stages);
      const unsigned char *x = stage(slot) + share_ * kTileBytes, *grad_y = stage(slot) + kXBytes;
      unsigned char* to = grad_tiles() + grad_tile;
      wait(full(turn.barrier), turn.parity);
      Grad grad;
      multiply_weight(grad, grad_y);
      if constexpr (kPlain) {
        multiply_plain(sums, x, grad_y);
        wait_for_products<1>();
        fence(grad);
        store_tile(grad, to);
      } else {
        Activated activated = {};
        if (kLoadsAhead && has_channels) load(activated, x);
        wait_for_products<0>();
        fence(grad);
        if (has_channels) {
          finish_tile(sums, own, grad, activated, x, to, p_.rows - row);
          if (!kHasOutput && p_.rows - row < kRows) clear(activated, p_.rows - row);
        }
        multiply_activated(sums, activated, grad_y);
      }
      publish();
      if (is_leader()) wait_for_stores();  // of the other tile
      group_barrier(group_);
      if (is_leader()) {
        start_store(p_.grad_x, first_column_ + share_ * kChannels, row, to);
        commit_stores();
      }
      grad_tile ^= kTileBytes;
      turn.next(kTeams, p_.stages);
      wait_for_products<0>();
      fence(sums.products);
      arrive_as_warp(empty(slot));
    }
    if (is_leader()) wait_for_stores();
    let_next_kernel_start();
    group_barrier<kProductThreads>(kGroups);  // all groups are done with the tiles, where the sums go
    leave(sums);
    group_barrier<kProductThreads>(kGroups);
    store_partials();
  }

  /// As StageTurn, of teams, which come to a stage in turns and may be ahead of each other: with two barriers for its
  /// phases a team waits for one of them only when all earlier ones are over.
  struct TeamTurn {
    int barrier, parity = 0;

    FUSEDSC_DEVICE int slot(int stages) const { return barrier < stages ? barrier : barrier - stages; }
    FUSEDSC_DEVICE void next(int teams, int stages) {
      barrier += teams;
      if (barrier < 2 * stages) return;
      barrier -= 2 * stages;
      parity ^= 1;
    }
  };

  // Of unsigned numbers these are an instruction each, which costs less than a register throughout the loop.
  FUSEDSC_DEVICE static int lane() { return static_cast<int>(static_cast<unsigned>(thread_index()) % 32); }
  FUSEDSC_DEVICE static int warp() { return static_cast<int>(static_cast<unsigned>(thread_index()) % 128 / 32); }
  FUSEDSC_DEVICE static bool is_leader() { return thread_index() % 128 == 0; }

  FUSEDSC_DEVICE Channels own_channels() const {
    Channels own;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = share_ * kChannels + warp() * 16 + lane() / 4 + 8 * i;
      const int channel = p_.fold == 1 ? first_column_ + column : column % p_.channels;
      if (channel >= p_.channels) continue;
      if (p_.scale != nullptr) own.scale[i] = p_.scale[channel];
      if (p_.shift != nullptr) own.shift[i] = p_.shift[channel];
      if (p_.mean != nullptr) own.mean[i] = p_.mean[channel];
      if (kHasOutput) own.constant[i] = vectors()[column];
    }
    return own;
  }

  /// grad = the weight, transposed, times grad_y (and output), transposed.
  FUSEDSC_DEVICE void multiply_weight(Grad& grad, const unsigned char* grad_y) const {
    fence(grad);
    begin_products();
    const std::uint64_t rows = describe<128>(weight_tile(share_)), columns = describe<kWide * 2>(grad_y);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int k = 0; k < kDepth; k += 16) {
        const int place = (part * kBoxes + k / kWide) * kBoxBytes + k % kWide * 2;
        multiply<false, true>(grad, rows + (part * kDepth + k) * 128 / 16, columns + place / 16, part == 0 && k == 0,
                              T());
      }
    }
    commit_products();
    fence(grad);
  }

  /// sums += x, transposed, times grad_y and output; rows(step): of 16 positions, as multiply() takes them.
  template <bool... kOfBlockMemory, class Rows>
  FUSEDSC_DEVICE void multiply_rows(Sums& sums, const Rows& rows, const unsigned char* grad_y) const {
    fence(sums.products);
    begin_products();
    const std::uint64_t columns = describe_blocks<kWide * 2>(grad_y, kBoxBytes);
#pragma unroll
    for (int step = 0; step < kRows / 16; ++step) {
      const std::uint64_t from = columns + step * 16 * kWide * 2 / 16;
      auto& first = reinterpret_cast<float(&)[kFirst / 2]>(sums.products);
      multiply<true, kOfBlockMemory...>(first, rows(step), from, false, T());
      if constexpr (kAll > kFirst) {
        auto& second = reinterpret_cast<float(&)[(kAll - kFirst) / 2]>(sums.products[kFirst / 2]);
        multiply<true, kOfBlockMemory...>(second, rows(step), from + kFirst / kWide * kBoxBytes / 16, false, T());
      }
    }
    commit_products();
    fence(sums.products);
  }
  FUSEDSC_DEVICE void multiply_plain(Sums& sums, const unsigned char* x, const unsigned char* grad_y) const {
    const std::uint64_t rows = describe<128>(x);
    multiply_rows<true>(
        sums, [&](int step) { return rows + step * 16 * 128 / 16; }, grad_y);
  }
  FUSEDSC_DEVICE void multiply_activated(Sums& sums, const Activated& x, const unsigned char* grad_y) const {
    multiply_rows<>(
        sums, [&](int step) -> const std::uint32_t(&)[4] { return x[step]; }, grad_y);
  }

  /// Where, in a tile, the lane's row of the matrices lies that are the warp's channels of 16 positions.
  FUSEDSC_DEVICE static int place_of_step(int step) {
    return place_of_run<128>(step * 16 + lane() / 16 * 8 + lane() % 8, warp() * 2 + lane() / 8 % 2);
  }

  /// The gradient of x, to its tile.
  FUSEDSC_DEVICE static void store_tile(const Grad& grad, unsigned char* to) {
#pragma unroll
    for (int step = 0; step < kRows / 16; ++step) {
      std::uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = to_bits(grad[step * 8 + 2 * i], grad[step * 8 + 2 * i + 1], T());
      store_matrices<true>(to + place_of_step(step), words);
    }
  }

  FUSEDSC_DEVICE void finish_tile(Sums& sums, const Channels& own, const Grad& grad, Activated& activated,
                                  const unsigned char* x, unsigned char* to, int rows) const {
    switch (p_.activation) {
      case Activation::relu6: return finish_tile<Activation::relu6>(sums, own, grad, activated, x, to, rows);
      case Activation::relu: return finish_tile<Activation::relu>(sums, own, grad, activated, x, to, rows);
      case Activation::identity: return finish_tile<Activation::identity>(sums, own, grad, activated, x, to, rows);
      default: return finish_tile<Activation::silu>(sums, own, grad, activated, x, to, rows);
    }
  }
  template <Activation kActivation>
  FUSEDSC_DEVICE void finish_tile(Sums& sums, const Channels& own, const Grad& grad, Activated& activated,
                                  const unsigned char* x, unsigned char* to, int rows) const {
    if (!kHasOutput || rows >= kRows) finish_tile<kActivation, true>(sums, own, grad, activated, x, to, rows);
    else finish_tile<kActivation, false>(sums, own, grad, activated, x, to, rows);
  }

  FUSEDSC_DEVICE static void load(Activated& x, const unsigned char* from) {
#pragma unroll
    for (int step = 0; step < kRows / 16; ++step) load_matrices<true>(from + place_of_step(step), x[step]);
  }

  /// There are so many rows. Of others grad_y is zero, but activated x is not.
  FUSEDSC_DEVICE static void clear(Activated& activated, int rows) {
#pragma unroll
    for (int i = 0; i < kRows / 4; ++i) {
      const int row = i / 2 * 8 + lane() % 4 * 2;
      std::uint32_t& word = activated[i / 4][i % 4];
      if (row >= rows) word = 0;
      else if (row + 1 >= rows) word &= 0xffff;
    }
  }

  /// x is activated, the gradient goes to its tile. There are so many rows; kAllRows: all of the tile, or there is no
  /// gradient prologue, so that the gradient of others is zero.
  template <Activation kActivation, bool kAllRows>
  FUSEDSC_DEVICE void finish_tile(Sums& sums, const Channels& own, const Grad& grad, Activated& activated,
                                  const unsigned char* x, unsigned char* to, int rows) const {
#pragma unroll
    for (int step = 0; step < kRows / 16; ++step) {
      const int place = place_of_step(step);
      std::uint32_t(&words)[4] = activated[step];
      if constexpr (!kLoadsAhead) load_matrices<true>(x + place, words);
      std::uint32_t gradients[4];
#pragma unroll
      for (int part = 0; part < 4; part += 2) {  // two positions of both channels
        float values[4], z[4], g[4];
        bool exists[4];
        to_floats(words[part], values[0], values[1], T());
        to_floats(words[part + 1], values[2], values[3], T());
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          exists[i] = kAllRows || step * 16 + part * 4 + lane() % 4 * 2 + i % 2 < rows;
          z[i] = values[i] * own.scale[i / 2] + own.shift[i / 2];
          g[i] = grad[step * 8 + part * 2 + i];
          if (kHasOutput) g[i] = g[i] * unscale_ + own.constant[i / 2];
        }
        if constexpr (kActivation == Activation::silu) activate_backward(p_.activation, z, g);
        else activate_backward(kActivation, z, g);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (!exists[i]) g[i] = 0;
          sums.grad[i / 2] += g[i];
          sums.grad_times_centered[i / 2] += g[i] * (values[i] - own.mean[i / 2]);
        }
        if constexpr (kActivation == Activation::silu) activate(p_.activation, z);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          std::uint32_t& word = words[part + i];
          gradients[part + i] = to_bits(g[2 * i], g[2 * i + 1], T());
          word = to_bits(exists[2 * i] ? z[2 * i] : 0.0f, exists[2 * i + 1] ? z[2 * i + 1] : 0.0f, T());
          // Rounding keeps the order, and both bounds: clamped pairs are the same, for half the instructions.
          if (kActivation == Activation::relu || kActivation == Activation::relu6) {
            word = clamped_pair(word, kActivation == Activation::relu6, T());
          }
          if constexpr (kHasOutput) {
            float a[2];
            to_floats(word, a[0], a[1], T());
            sums.activated[i] += a[0] + a[1];
          }
        }
      }
      store_matrices<true>(to + place, gradients);
    }
  }

  /// To block memory: [k][channel], with the gradient prologue, and both sums.
  FUSEDSC_DEVICE void leave(Sums& sums) const {
    float* own = left() + group_ * kSumFloats + uniform(warp()) * 16 + lane() / 4;
    const float* scales = vectors() + kScales;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (kHasOutput) sums.activated[half] = of_four_lanes(sums.activated[half]);
      if constexpr (kPlain) continue;
      sums.grad[half] = of_four_lanes(sums.grad[half]);
      sums.grad_times_centered[half] = of_four_lanes(sums.grad_times_centered[half]);
      if (lane() % 4 != 0) continue;
      own[kDepth * kSumPitch + half * 8] = sums.grad[half];
      own[(kDepth + 1) * kSumPitch + half * 8] = sums.grad_times_centered[half];
    }
#pragma unroll
    for (int i = 0; i < kDepth / 2; ++i) {
      const int k = i / 4 * 8 + lane() % 4 * 2 + i % 2, half = i / 2 % 2;
      float sum = sums.products[i];
      if constexpr (kHasOutput) {
        sum = sum * scales[k] +
              (sums.products[kDepth / 2 + i] * scales[kDepth + k] + sums.activated[half] * scales[2 * kDepth + k]);
      }
      own[k * kSumPitch + half * 8] = sum;
    }
  }

  FUSEDSC_DEVICE static float of_four_lanes(float value) {
    value += shuffle_xor(value, 1);
    return value + shuffle_xor(value, 2);
  }

  /// What the groups have left, added up; zeros in place of the splits that this tile of channels has not. A thread has
  /// four channels.
  FUSEDSC_DEVICE void store_partials() const {
    constexpr int kQuads = kColumns / 4, kAtOnce = kProductThreads / kQuads;
    const int column = thread_index() % kQuads * 4, lane = thread_index() / kQuads, rows = p_.outputs + kVectorSums;
    if (column >= p_.fold * p_.channels - first_column_) return;
    const int position = p_.fold == 1 ? 0 : column / p_.channels,
              channel = p_.fold == 1 ? first_column_ + column : column % p_.channels;
    const float* columns = left() + column / kChannels * kSumFloats + column % kChannels;
    const auto store = [&](int split, int row, const Four& sum) {
      const std::int64_t part = std::int64_t{split} * p_.fold + position;
      *reinterpret_cast<Four*>(p_.partials + (part * rows + row) * p_.channels + channel) = sum;
    };
    const int advance = p_.weight.first(kAtOnce);
    int first_channel = p_.weight.first(lane);
#pragma unroll 4
    for (int row = lane; row < rows; row += kAtOnce) {
      bool is_wanted = row >= p_.outputs;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        is_wanted = is_wanted || p_.weight.place(first_channel, channel + i) < p_.weight.width;
      }
      first_channel = p_.weight.next(first_channel, advance);
      const int k = row < p_.outputs ? position * p_.outputs + row : kDepth + row - p_.outputs;
      Four sum = {};
#pragma unroll
      for (int team = 0; team < kTeams; ++team) {
        const Four part = *reinterpret_cast<const Four*>(columns + team * kSharing * kSumFloats + k * kSumPitch);
#pragma unroll
        for (int i = 0; i < 4; ++i) sum.elements[i] += part.elements[i];
      }
      if (is_wanted) store(split_, row, sum);  // else nobody reads it
    }
    for (int split = split_ + splits_; split < p_.splits; split += splits_) {
      for (int row = lane; row < rows; row += kAtOnce) store(split, row, {});
    }
  }

  const PointwiseGradientsParameters& p_;
  int group_, team_, share_, channel_tile_, split_, splits_, first_column_, tiles_;
  float unscale_ = 1;
  unsigned char* memory_;
};

}  // namespace fusedsc::gpu::hopper
