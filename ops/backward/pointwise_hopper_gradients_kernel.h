/// Pointwise convolution on Hopper GPUs, both gradients from one pass over x: the gradient of 64 channels of x, and
/// that of their weights, for few outputs. Groups of four warps go through the positions, 64 at a time: x, grad_y and
/// the raw output come by the copy engine, a product makes the gradient of x, and on its way out the activated x takes
/// x's place in block memory, from where a second product adds up the gradient of the weight. Groups of neighbouring
/// channels share grad_y and output; others go their own ways.
///
/// The gradient prologue is linear and never applied to an element. Of x's gradient its scales belong to the weight, of
/// which there are two then; its offset, times the weight, is one number per channel. Of the weight's gradient it is
/// applied to sums, as in pointwise_hopper_weight_kernel.h.
///
/// Without a prologue (kPlain) x stays as it is, so that both products are under way at once.
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

/// kDepth: outputs of all positions of a row, at most. kSharing: groups that share positions. kTeams: of these.
/// kHalves: 2 where the sums of a tile of the weight are too many for a group: two groups share them, and make half of
/// the gradient of x each. kHasOutput: that there is a gradient prologue. kPlain: that there is no prologue.
template <class T, int kDepth_, int kSharing_, int kTeams_, int kHalves_, bool kHasOutput_, bool kPlain_>
class PointwiseGradients {
 public:
  static constexpr int kDepth = kDepth_, kSharing = kSharing_, kTeams = kTeams_;
  static constexpr int kHalves = kHalves_, kGroups = kSharing * kTeams * kHalves, kThreads = kGroups * 128;
  static constexpr bool kPlain = kPlain_;
  static_assert(!kPlain || (kSharing == 1 && kHalves == 1 && !kHasOutput_));
  static_assert(kHalves == 1 || (kHalves == 2 && kSharing == 1 && kTeams == 1 && !kHasOutput_));
  /// Columns of grad_y as it is copied: rows of 128 bytes cost the copy engine no more than shorter ones.
  static constexpr int kWide = kDepth < 64 ? 32 : 64;
  static constexpr bool kHasOutput = kHasOutput_;

  FUSEDSC_HOST_DEVICE static constexpr int memory_bytes(int stages) {
    return 1024 + kSharing * kWeightBytes + most(tile_bytes(stages), kTiles * kSumFloats * 4) + barrier_bytes(stages) +
           kVectorFloats * 4;
  }

  FUSEDSC_DEVICE static void run(const PointwiseGradientsParameters& p) {
    PointwiseGradients gradients(p);
    gradients.loop();
  }

 private:
  static constexpr int kRows = 64, kChannels = 64;                              ///< of a tile
  static constexpr int kTiles = kSharing * kTeams, kOwn = kChannels / kHalves;  ///< at once; channels of a group
  static constexpr int kParts = kHasOutput ? 2 : 1;                             ///< grad_y; output
  static constexpr int kBoxes = (kDepth + kWide - 1) / kWide, kBoxBytes = kRows * kWide * 2;
  static constexpr int kTileBytes = kRows * kChannels * 2, kXBytes = kSharing * kTileBytes,
                       kStageBytes = kXBytes + kParts * kBoxes * kBoxBytes;
  static constexpr int kWeightBytes = kParts * kDepth * kChannels * 2;
  static constexpr int kColumns = kSharing * kChannels;  ///< of a block
  /// A stage is filled again when its tile was done so many tiles ago, so that groups need not keep in step.
  static constexpr int kLag = kSharing > 1 ? 2 : 1;
  static_assert(kDepth % 32 == 0);

  // Vectors in block memory: ones; by pairs of channels {scale, shift, mean, constant}; three scales by k; scratch.
  static constexpr int kPairs = 128, kScales = kPairs + 4 * kColumns, kScratch = kScales + 3 * kDepth;
  static constexpr int kLanes = kThreads / kColumns;  ///< threads of a channel, while the weight is prepared
  static constexpr int kVectorFloats = kScratch + kLanes * kColumns + 32;
  /// What a group leaves at its end, for each k and for both sums of each warp.
  static constexpr int kSumPitch = kChannels + 4, kSumFloats = (kDepth + (kPlain ? 0 : 8)) * kSumPitch;
  static constexpr int kVectorSums = kPlain ? 0 : 2;  ///< rows of partial results that are no weights

  FUSEDSC_HOST_DEVICE static constexpr int barrier_bytes(int stages) { return kTeams * stages * 16 + 16; }
  FUSEDSC_HOST_DEVICE static constexpr int tile_bytes(int stages) {
    return kTeams * stages * kStageBytes + kTiles * kTileBytes;
  }
  FUSEDSC_HOST_DEVICE static constexpr int most(int a, int b) { return a < b ? b : a; }

  /// Outputs of a group; the two halves overlap if they have to. Sums of grad_y and of output at once, where these lie
  /// side by side. Products have at most 192 columns.
  static constexpr int kOwnDepth = kHalves == 1 ? kDepth : (kBoxes + 1) / 2 * kWide;
  static constexpr int kProducts = kOwnDepth > 192                      ? 2
                                   : kParts == 1 || kDepth % kWide == 0 ? 1
                                                                        : kParts,
                       kSums = kParts * kOwnDepth / 2 / kProducts, kProductBoxes = kParts * kBoxes / kProducts;
  static_assert(kOwnDepth <= 192 || kBoxes % 2 == 0);
  struct Sums {
    float products[kParts * kOwnDepth / 2];  ///< of a and grad_y, and of a and output
    float of_channels[4];                    ///< of a
    float grad[kPlain ? 1 : kOwn / 4], grad_times_centered[kPlain ? 1 : kOwn / 4];
  };

  FUSEDSC_DEVICE explicit PointwiseGradients(const PointwiseGradientsParameters& p) : p_(p) {
    group_ = uniform(thread_index() / 128);
    team_ = group_ / (kSharing * kHalves);
    half_ = kHalves == 1 ? 0 : group_;
    is_leader_ = thread_index() % 128 == 0;
    is_loader_ = is_leader_ && group_ % (kSharing * kHalves) == 0;
    const int block = static_cast<int>(block_index()), with_last = p.last_splits * p.channel_tiles;
    if (block < with_last) {
      channel_tile_ = block % p.channel_tiles;
      split_ = block / p.channel_tiles;
    } else {
      channel_tile_ = (block - with_last) % (p.channel_tiles - 1);
      split_ = p.last_splits + (block - with_last) / (p.channel_tiles - 1);
    }
    splits_ = channel_tile_ == p.channel_tiles - 1 ? p.last_splits : p.splits;
    first_column_ = channel_tile_ * kColumns + group_ % kSharing * kChannels;
    columns_ = p.fold * p.channels - first_column_;
    const int first = split_ * kTeams + team_, all = splits_ * kTeams;
    tiles_ = first < p.row_tiles ? (p.row_tiles - first + all - 1) / all : 0;

    auto* memory = static_cast<unsigned char*>(block_memory());
    memory += padding_before_tiles(memory);
    weights_ = memory;
    memory += kSharing * kWeightBytes;
    left_ = reinterpret_cast<float*>(memory);
    stages_ = memory + team_ * p.stages * kStageBytes;
    grad_x_ = memory + kTeams * p.stages * kStageBytes + group_ / kHalves * kTileBytes;
    memory += most(tile_bytes(p.stages), kTiles * kSumFloats * 4);
    full_ = reinterpret_cast<Barrier*>(memory) + team_ * 2 * p.stages;
    empty_ = full_ + p.stages;
    weight_barrier_ = reinterpret_cast<Barrier*>(memory) + kTeams * 2 * p.stages;
    vectors_ = reinterpret_cast<float*>(memory + barrier_bytes(p.stages));
  }

  FUSEDSC_DEVICE int first_output() const { return half_ * (kBoxes * kWide - kOwnDepth); }
  FUSEDSC_DEVICE int first_row(int tile) const { return (split_ * kTeams + team_ + tile * splits_ * kTeams) * kRows; }

  FUSEDSC_DEVICE void loop() {
    if (is_loader_) {
      for (int i = 0; i < p_.stages; ++i) {
        initialise(full_ + i);
        initialise(empty_ + i, kSharing);
      }
      if (group_ == 0) initialise(weight_barrier_);
      publish();
    }
    wait_for_previous_kernel();
    if (is_loader_) {
      if (group_ == 0 && copies_weight()) start_weight();
      for (int tile = 0; tile < p_.stages; ++tile) start_tile(tile, tile);
    }
    prepare();
    StageTurn turn;
    Sums sums = {};
#pragma unroll 1
    for (int tile = 0; tile < tiles_; ++tile) {
      unsigned char* stage = stages_ + turn.slot * kStageBytes;
      unsigned char* x = stage + group_ % kSharing * kTileBytes;
      wait(full_ + turn.slot, turn.parity);
      float grad[kOwn / 2];
      multiply_weight(grad, stage + kXBytes);
      if constexpr (kPlain) {
        multiply_activated(sums, x, stage + kXBytes);
        wait_for_products<1>();
      } else {
        wait_for_products<0>();
      }
      fence(grad);
      fence(sums.products);
      if (kHasOutput) fence(sums.of_channels);
      if (is_leader_) wait_for_stores();
      tile_barrier();  // all are done with the last tile
      if (!kPlain && is_leader_) refill(tile, turn.slot, turn.parity);
      const int row = first_row(tile);
      if constexpr (kPlain) store_tile(grad);
      else finish_tile(sums, grad, x, p_.rows - row);
      publish();
      if constexpr (kPlain) {
        wait_for_products<0>();  // then the stage is free, while the next one's tile is on its way
        fence(sums.products);
      }
      tile_barrier();
      if (is_leader_ && half_ == 0) {
        start_store(p_.grad_x, first_column_, row, grad_x_);
        commit_stores();
      }
      if constexpr (kPlain) {
        if (is_leader_) start_tile(tile + p_.stages, turn.slot);
      } else {
        multiply_activated(sums, x, stage + kXBytes);
      }
      turn.next(p_.stages);
    }
    wait_for_products<0>();
    fence(sums.products);
    if (kHasOutput) fence(sums.of_channels);
    if (is_leader_) wait_for_stores();
    let_next_kernel_start();
    block_barrier();  // all groups are done with the tiles, where the sums go
    leave(sums);
    block_barrier();
    store_partials();
  }

  // --------------------------------------------------------------------------------- by the leader of a group of warps

  FUSEDSC_DEVICE void start_tile(int tile, int slot) const {
    if (tile >= tiles_) return;
    unsigned char* to = stages_ + slot * kStageBytes;
    const int row = first_row(tile);
    expect(full_ + slot, kStageBytes);
    for (int i = 0; i < kSharing; ++i, to += kTileBytes) {
      start_load(to, p_.x, first_column_ + i * kChannels, row, full_ + slot);
    }
    for (int box = 0; box < kBoxes; ++box, to += kBoxBytes) {
      start_load(to, p_.grad_y, box * kWide, row, full_ + slot);
      if (kHasOutput) start_load(to + kBoxes * kBoxBytes, p_.output, box * kWide, row, full_ + slot);
    }
  }

  FUSEDSC_DEVICE void start_weight() const {
    expect(weight_barrier_, kSharing * kWeightBytes);
    for (int i = 0; i < kSharing; ++i) {
      for (int k = 0; k < kDepth; k += 32) {
        start_load(weights_ + i * kWeightBytes + k * kChannels * 2, p_.weight_tiles, first_column_ + i * kChannels, k,
                   weight_barrier_);
      }
    }
  }

  /// By the leader of each group when it is done with the tile before `tile`, which is in `slot`, of phase `parity`.
  FUSEDSC_DEVICE void refill(int tile, int slot, int parity) const {
    if (kSharing > 1 && tile > 0) arrive(empty_ + (slot == 0 ? p_.stages - 1 : slot - 1));
    const int next = tile - kLag + p_.stages;
    if (!is_loader_ || tile < kLag || next >= tiles_) return;
    const bool is_behind = slot < kLag;
    const int free = is_behind ? slot - kLag + p_.stages : slot - kLag;
    if (kSharing > 1) wait(empty_ + free, is_behind ? parity ^ 1 : parity);
    start_tile(next, free);
  }

  // --------------------------------------------------------------------------------------- by all threads of the block

  /// Where there is nothing to be done to it.
  FUSEDSC_DEVICE bool copies_weight() const { return !kHasOutput && p_.fold == 1 && p_.weight.is_dense(); }

  FUSEDSC_DEVICE void prepare() {
    const int thread = thread_index(), column = thread % kColumns, lane = thread / kColumns;
    const int channel = p_.fold == 1 ? channel_tile_ * kColumns + column : column % p_.channels;
    const bool has = channel < p_.channels;
    for (int i = thread; i < 128; i += kThreads) {
      reinterpret_cast<std::uint32_t*>(vectors_)[i] = to_bits(1.0f, 1.0f, T());
    }
    if (lane == 0 && !kPlain) {
      float* pair = vectors_ + kPairs + column / 2 * 8 + column % 2;
      pair[0] = has && p_.scale != nullptr ? p_.scale[channel] : 1.0f;
      pair[2] = has && p_.shift != nullptr ? p_.shift[channel] : 0.0f;
      pair[4] = has && p_.mean != nullptr ? p_.mean[channel] : 0.0f;
    }
    if (!copies_weight()) {
      if constexpr (kPlain) lay_out();
      else scale_weight(channel, column, lane);
    }
    publish();
    block_barrier();
    if (copies_weight()) wait(weight_barrier_, 0);
  }

  /// As it is.
  FUSEDSC_DEVICE void lay_out() const {
    if (p_.fold == 1) {
      lay_out_weight<T, 32, 128>(p_.weight, {weights_, 32 * 128, 0, 32, first_column_, 0, kDepth / 32}, thread_index(),
                                 kThreads);
      return;
    }
    constexpr int kRuns = kChannels / 8, kItems = (kDepth * kRuns + kThreads - 1) / kThreads;
    Aligned<std::uint32_t, 4> words[kItems] = {};
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int item = thread_index() + i * kThreads, column = item % kRuns * 8, position = column / p_.channels;
      const int output = item / kRuns - position * p_.outputs;
      if (item >= kDepth * kRuns || output < 0 || output >= p_.outputs) continue;
      const int first = p_.weight.first(output), channel = column % p_.channels;
      words[i] = p_.weight.in_runs<T>() ? p_.weight.run<T, true>(output, first, channel)
                                        : p_.weight.run<T, false>(output, first, channel);
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int item = thread_index() + i * kThreads;
      if (item >= kDepth * kRuns) break;
      *reinterpret_cast<Aligned<std::uint32_t, 4>*>(weights_ + place_of_run<128>(item / kRuns, item % kRuns)) =
          words[i];
    }
  }

  /// The weight, times either scale of the gradient prologue and a power of two that keeps both from vanishing; and its
  /// product with the offset.
  FUSEDSC_DEVICE void scale_weight(int channel, int column, int lane) {
    const int thread = thread_index(), position = p_.fold == 1 ? 0 : column / p_.channels;
    const bool has = channel < p_.channels;
    float *scales = vectors_ + kScales, *scratch = vectors_ + kScratch;
    for (int k = thread; k < kDepth; k += kThreads) {
      const bool exists = k < p_.fold * p_.outputs;
      const int output = k % p_.outputs;
      scales[k] = kHasOutput ? (exists ? p_.grad_scale[output] : 0.0f) : 1.0f;
      scales[kDepth + k] = kHasOutput && exists ? p_.output_scale[output] : 0.0f;
      scales[2 * kDepth + k] = kHasOutput && exists ? p_.offset[output] : 0.0f;
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
    block_barrier();
    float constant = 0, largest = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int k = lane + i * kLanes;
      if (k >= kDepth) break;
      constant += weights[i] * scales[2 * kDepth + k];
      largest = larger(largest, weights[i] * scales[k]);
      if (kHasOutput) largest = larger(largest, weights[i] * scales[kDepth + k]);
    }
    scratch[lane * kColumns + column] = constant;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) largest = larger(largest, shuffle_xor(largest, distance));
    if (thread % 32 == 0) scratch[kLanes * kColumns + thread / 32] = largest;
    block_barrier();
    for (int i = 0; i < kThreads / 32; ++i) largest = larger(largest, scratch[kLanes * kColumns + i]);
    // A power of two, so that the largest becomes at least 2^12: all exponents but those of denormals, of infinities
    // and beyond 2^100 or below 2^-100, where nothing is to be saved.
    int exponent = static_cast<int>(__builtin_bit_cast(std::uint32_t, largest) >> 23) - 127;
    exponent = kHasOutput && exponent > -100 && exponent < 100 ? 12 - exponent : 0;
    const auto power = [](int e) { return __builtin_bit_cast(float, static_cast<std::uint32_t>(e + 127) << 23); };
    unscale_ = power(-exponent);
    const float up = power(exponent);
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int k = lane + i * kLanes;
      if (k >= kDepth) break;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        unsigned char* to = weights_ + column / kChannels * kWeightBytes +
                            place_of_run<128>(part * kDepth + k, column % kChannels / 8) + column % 8 * 2;
        *reinterpret_cast<std::uint16_t*>(to) = to_bits(weights[i] * (scales[part * kDepth + k] * up), T());
      }
    }
    if (lane != 0) return;
    for (int i = 1; i < kLanes; ++i) constant += scratch[i * kColumns + column];
    vectors_[kPairs + column / 2 * 8 + column % 2 + 6] = constant;
  }

  FUSEDSC_DEVICE static float larger(float a, float b) {
    const float magnitude = b < 0 ? -b : b;
    return a < magnitude ? magnitude : a;
  }

  // ----------------------------------------------------------------------------------------- by all threads of a group

  /// Of the groups of a tile.
  FUSEDSC_DEVICE void tile_barrier() const {
    if constexpr (kHalves == 1) group_barrier(group_);
    else block_barrier();
  }

  /// grad = grad_y (and output) times the weight.
  FUSEDSC_DEVICE void multiply_weight(float (&grad)[kOwn / 2], const unsigned char* grad_y) const {
    fence(grad);
    begin_products();
    const std::uint64_t rows = describe<kWide * 2>(grad_y),
                        columns = describe<128>(weights_ + group_ % kSharing * kWeightBytes) +
                                  static_cast<unsigned>(half_ * kOwn * 2 / 16);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int k = 0; k < kDepth; k += 16) {
        const int place = (part * kBoxes + k / kWide) * kBoxBytes + k % kWide * 2;
        multiply<true>(grad, rows + place / 16, columns + (part * kDepth + k) * 128 / 16, part == 0 && k == 0, T());
      }
    }
    commit_products();
    fence(grad);
  }

  /// sums += activated x, transposed, times grad_y and output.
  FUSEDSC_DEVICE void multiply_activated(Sums& sums, const unsigned char* x, const unsigned char* grad_y) const {
    fence(sums.products);
    if (kHasOutput) fence(sums.of_channels);
    begin_products();
    const std::uint64_t rows = describe<128>(x),
                        columns = describe_blocks<kWide * 2>(grad_y + first_output() / kWide * kBoxBytes, kBoxBytes),
                        ones = describe_constant(vectors_);
#pragma unroll
    for (int k = 0; k < kRows; k += 16) {
#pragma unroll
      for (int i = 0; i < kProducts; ++i) {
        float(&products)[kSums] = *reinterpret_cast<float(*)[kSums]>(sums.products + i * kSums);
        multiply<true, true>(products, rows + k * 128 / 16,
                             columns + (i * kProductBoxes * kBoxBytes + k * kWide * 2) / 16, false, T());
      }
      if (kHasOutput) multiply<false, true>(sums.of_channels, rows + k * 128 / 16, ones, false, T());
    }
    commit_products();
    fence(sums.products);
    if (kHasOutput) fence(sums.of_channels);
  }

  /// The gradient of x, to its tile.
  FUSEDSC_DEVICE void store_tile(const float (&grad)[kOwn / 2]) const {
    const int lane = thread_index() % 32, row = thread_index() % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (int run = 0; run < kChannels / 8; run += 2) {
      std::uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = to_bits(grad[run * 4 + 2 * i], grad[run * 4 + 2 * i + 1], T());
      store_matrices(grad_x_ + place_of_run<128>(row, run + lane / 16), words);
    }
  }

  FUSEDSC_DEVICE void finish_tile(Sums& sums, const float (&grad)[kOwn / 2], unsigned char* x, int rows) const {
    switch (p_.activation) {
      case Activation::relu6: return finish_tile<Activation::relu6>(sums, grad, x, rows);
      case Activation::relu: return finish_tile<Activation::relu>(sums, grad, x, rows);
      case Activation::identity: return finish_tile<Activation::identity>(sums, grad, x, rows);
      default: return finish_tile<Activation::silu>(sums, grad, x, rows);
    }
  }
  template <Activation kActivation>
  FUSEDSC_DEVICE void finish_tile(Sums& sums, const float (&grad)[kOwn / 2], unsigned char* x, int rows) const {
    if (rows >= kRows) finish_tile<kActivation, true>(sums, grad, x, rows);
    else finish_tile<kActivation, false>(sums, grad, x, rows);
  }

  /// The activated x takes x's place, the gradient goes to its tile. There are so many rows; kAll: all of the tile.
  template <Activation kActivation, bool kAll>
  FUSEDSC_DEVICE void finish_tile(Sums& sums, const float (&grad)[kOwn / 2], unsigned char* x, int rows) const {
    const int lane = thread_index() % 32, warp_row = thread_index() % 128 / 32 * 16;
    const float* pairs = vectors_ + kPairs + group_ % kSharing * kChannels * 4;
    const bool exists[2] = {kAll || warp_row + lane / 4 < rows, kAll || warp_row + lane / 4 + 8 < rows};
#pragma unroll
    for (int part = 0; part < kOwn / 8; part += 2) {
      const int run = part + half_ * kOwn / 8;
      if (run * 8 >= columns_) break;
      // Two rows of the lane's pair of 8 channels, then of that of the next 8.
      const int place = place_of_run<128>(warp_row + lane % 16, run + lane / 16);
      std::uint32_t words[4];
      load_matrices(x + place, words);
      float values[8], z[8], g[8];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* from = pairs + ((run + half) * 4 + lane % 4) * 8;
        const auto map = *reinterpret_cast<const Aligned<float, 4>*>(from),
                   own = *reinterpret_cast<const Aligned<float, 4>*>(from + 4);
#pragma unroll
        for (int i = 4 * half; i < 4 * half + 4; i += 2) {
          to_floats(words[i / 2], values[i], values[i + 1], T());
#pragma unroll
          for (int v = i; v < i + 2; ++v) {
            z[v] = values[v] * map.elements[v % 2] + map.elements[2 + v % 2];
            values[v] -= own.elements[v % 2];
            g[v] = grad[part * 4 + v];
            if (kHasOutput) g[v] = g[v] * unscale_ + own.elements[2 + v % 2];
          }
        }
      }
      if constexpr (kActivation == Activation::silu) activate_backward(p_.activation, z, g);
      else activate_backward(kActivation, z, g);
#pragma unroll
      for (int v = 0; v < 8; ++v) {
        if (!exists[v / 2 % 2]) g[v] = 0;
        const int item = (part + v / 4) * 2 + v % 2;
        sums.grad[item] += g[v];
        sums.grad_times_centered[item] += g[v] * values[v];
      }
      if constexpr (kActivation == Activation::silu) activate(p_.activation, z);
      std::uint32_t gradients[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        gradients[i] = to_bits(g[2 * i], g[2 * i + 1], T());
        words[i] = to_bits(z[2 * i], z[2 * i + 1], T());
        // Rounding keeps the order, and both bounds: clamped pairs are the same, for half the instructions.
        if (kActivation == Activation::relu || kActivation == Activation::relu6) {
          words[i] = clamped_pair(words[i], kActivation == Activation::relu6, T());
        }
        if (!exists[i % 2]) words[i] = 0;
      }
      store_matrices(x + place, words);
      store_matrices(grad_x_ + place, gradients);
    }
  }

  /// To block memory: [k][channel], with the gradient prologue, and both sums of each warp.
  FUSEDSC_DEVICE void leave(Sums& sums) const {
    const int lane = thread_index() % 32, warp = thread_index() % 128 / 32;
    float* own = left_ + group_ / kHalves * kSumFloats;
    const float* scales = vectors_ + kScales;
#pragma unroll
    for (int i = 0; i < kOwnDepth / 2; ++i) {
      if (half_ == 1 && i / 4 * 8 < 2 * kOwnDepth - kBoxes * kWide) continue;  // the other half has it
      const int k = first_output() + i / 4 * 8 + lane % 4 * 2 + i % 2, half = i / 2 % 2;
      float sum = sums.products[i];
      if constexpr (kHasOutput) {
        sum = sum * scales[k] + (sums.products[kOwnDepth / 2 + i] * scales[kDepth + k] +
                                 sums.of_channels[half * 2] * scales[2 * kDepth + k]);
      }
      own[k * kSumPitch + warp * 16 + lane / 4 + half * 8] = sum;
    }
    if constexpr (!kPlain) leave_vector_sums(sums, own + (kDepth + 2 * warp) * kSumPitch + half_ * kOwn);
  }

  FUSEDSC_DEVICE static void leave_vector_sums(Sums& sums, float* own) {
    const int lane = thread_index() % 32;
#pragma unroll
    for (int i = 0; i < kOwn / 4; ++i) {
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2) {
        sums.grad[i] += shuffle_xor(sums.grad[i], distance);
        sums.grad_times_centered[i] += shuffle_xor(sums.grad_times_centered[i], distance);
      }
      if (lane >= 4) continue;
      own[i / 2 * 8 + lane * 2 + i % 2] = sums.grad[i];
      own[kSumPitch + i / 2 * 8 + lane * 2 + i % 2] = sums.grad_times_centered[i];
    }
  }

  /// What the groups have left, added up; zeros in place of the splits that this tile of channels has not.
  FUSEDSC_DEVICE void store_partials() const {
    const int column = thread_index() % kColumns, lane = thread_index() / kColumns, rows = p_.outputs + kVectorSums;
    if (column >= p_.fold * p_.channels - channel_tile_ * kColumns) return;
    const int position = p_.fold == 1 ? 0 : column / p_.channels,
              channel = p_.fold == 1 ? channel_tile_ * kColumns + column : column % p_.channels;
    const float* left = left_ + column / kChannels * kSumFloats + column % kChannels;
    const auto row_of = [&](int split, int row) {
      return p_.partials + ((std::int64_t{split} * p_.fold + position) * rows + row) * p_.channels + channel;
    };
    const int advance = p_.weight.first(kLanes);
    int first_channel = p_.weight.first(lane);
#pragma unroll 4
    for (int row = lane; row < p_.outputs; row += kLanes) {
      const bool is_wanted = p_.weight.place(first_channel, channel) < p_.weight.width;
      first_channel = p_.weight.next(first_channel, advance);
      const float* from = left + (position * p_.outputs + row) * kSumPitch;
      float sum = 0;
#pragma unroll
      for (int team = 0; team < kTeams; ++team) sum += from[team * kSharing * kSumFloats];
      if (is_wanted) *row_of(split_, row) = sum;  // else nobody reads it
    }
    for (int i = lane; i < kVectorSums; i += kLanes) {
      float sum = 0;
#pragma unroll
      for (int item = 0; item < kTeams * 4; ++item) {
        sum += left[item / 4 * kSharing * kSumFloats + (kDepth + item % 4 * 2 + i) * kSumPitch];
      }
      *row_of(split_, p_.outputs + i) = sum;
    }
    for (int split = split_ + splits_; split < p_.splits; split += splits_) {
      for (int row = lane; row < rows; row += kLanes) *row_of(split, row) = 0;
    }
  }

  const PointwiseGradientsParameters& p_;
  int group_, team_, half_, channel_tile_, split_, splits_, first_column_, columns_, tiles_;
  bool is_leader_, is_loader_;
  float unscale_ = 1;
  unsigned char *weights_, *stages_, *grad_x_;
  Barrier *full_, *empty_, *weight_barrier_;
  float *left_, *vectors_;
};

}  // namespace fusedsc::gpu::hopper
