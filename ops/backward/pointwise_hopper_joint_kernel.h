/// Pointwise convolution on Hopper GPUs, input and weight gradient in one pass over grad_y and x, for a convolution
/// followed by BatchNorm, whose output need not be read (pointwise_hopper_joint_image.h). Likewise
///   grad_weight = grad_scale (grad_y^T x) + output_scale (weight x^T x) + offset sum(x).
///
/// For few channels, and outputs whose sums a group of four warps can keep: each group goes its own way through tiles
/// of 64 positions, which the copy engine brings, multiplies them both ways from where they lie, and keeps its own
/// sums. Where these are too many, two groups are a team: they share a tile, and each has half of the outputs.
#pragma once

#include "fusedsc/backward/pointwise_hopper_joint_image.h"

namespace fusedsc::gpu::hopper {

struct PointwiseJointParameters {
  TensorMap grad_y, last_grad_y, x, added, grad_x;  ///< last_grad_y: the narrower last block of outputs
  const void* weight = nullptr;
  std::int64_t weight_row = 0;
  int pixels = 0, pixel_tiles = 0, outputs = 0, channels = 0;
  int splits = 1;  ///< blocks
  int stages = 2;  ///< tiles of positions that each group, or team, has under way
  bool has_added = false;
  const float *grad_scale = nullptr, *output_scale = nullptr, *offset = nullptr;
  const unsigned char* image = nullptr;
  Aligned<float, 4>* partials = nullptr;  ///< [split][part][four][thread of 128]
  // Where blocks have some of the channels:
  TensorMap own_x;
  int parts = 1;
  const void* added_data = nullptr;
  void* grad_x_data = nullptr;
  std::int64_t added_row = 0, grad_x_row = 0;
};

/// Where a thread's sums of the weight gradient belong, in fours: of two neighbouring channels, of an output and of the
/// one 8 further.
struct JointQuad {
  int output, channel;

  FUSEDSC_DEVICE JointQuad(int quad, int thread, int row_quads)
      : output(quad / row_quads * 64 + thread / 32 * 16 + thread % 32 / 4),
        channel(quad % row_quads * 8 + thread % 4 * 2) {}
};

/// kOutputs and kColumns: at least as many as there are outputs and channels.
template <class T, int kOutputs_, int kColumns_, int kGroups_, bool kTeam>
class PointwiseJointProduct {
 public:
  static constexpr int kOutputs = kOutputs_, kColumns = kColumns_, kGroups = kGroups_;
  static constexpr int kOutputBlocks = (kOutputs + 63) / 64;
  static constexpr int kThreads = kGroups * 128, kRows = kOutputBlocks * 64;
  static constexpr int kWide = kColumns <= 32 ? 32 : 64;                     ///< columns of a copy of x
  static constexpr int kLastWide = (kOutputs + 31) / 32 % 2 == 0 ? 64 : 32;  ///< and of the last one of grad_y
  static constexpr int kQuads = kOutputBlocks * kColumns / 8;
  static_assert(!kTeam || (kGroups == 2 && kOutputBlocks % 2 == 0 && kOutputs % 64 == 0 && kColumns % 16 == 0));
  static constexpr JointImage kImage = JointImage::of(kOutputs, kWide, kWide * 2);
  static_assert(kColumns <= kWide);

  FUSEDSC_HOST_DEVICE static constexpr int memory_bytes(int stages, bool has_added) {
    const int tiles = tile_bytes(stages, has_added);
    return 1024 + kImageBytes + (tiles > kSumBytes ? tiles : kSumBytes) + kOnesBytes + barrier_bytes(stages) +
           kGroups * kGroupFloats * 4;
  }

  FUSEDSC_DEVICE static void run(const PointwiseJointParameters& p) {
    PointwiseJointProduct product(p);
    product.loop();
  }

 private:
  using Row = float[kColumns / 2];  ///< sums of 64 rows
  static constexpr int kRowBytes = kWide * 2, kSquareBytes = kWide * kRowBytes, kXBytes = 64 * kRowBytes,
                       kBlockBytes = 64 * 128;
  static constexpr int kGradBytes = (kOutputBlocks - 1) * kBlockBytes + 64 * kLastWide * 2;
  static constexpr int kStageBytes = kGradBytes + kXBytes;
  static constexpr int kImageBytes = (kImage.bytes + 1023) / 1024 * 1024, kOnesBytes = 512;
  static constexpr int kSteps = (kColumns + 15) / 16;  ///< of 16 channels
  static constexpr int kTeams = kTeam ? 1 : kGroups, kOwnBlocks = kTeam ? kOutputBlocks / 2 : kOutputBlocks;
  static constexpr int kSumBytes = kTeam ? 0 : kGroups * kQuads * 128 * 16;
  static constexpr int kExchangeBytes = kTeam ? 64 * kColumns * 4 : 0;  ///< halves of sums of grad_x
  static constexpr int kGroupFloats = kWide + 4;  ///< sums of channels, and the largest square of each warp
  static_assert(2 * kSquareBytes <= kStageBytes);

  FUSEDSC_HOST_DEVICE static constexpr int barrier_bytes(int stages) {
    return (kTeams * (stages + 2) * 8 + 15) / 16 * 16;
  }
  FUSEDSC_HOST_DEVICE static constexpr int tile_bytes(int stages, bool has_added) {
    return kTeams * (stages * kStageBytes + (has_added ? 2 : 1) * kXBytes) + kExchangeBytes;
  }

  struct Sums {
    Row grad_x, weight[kOwnBlocks], squares;
    float channels[4];
  };

  FUSEDSC_DEVICE explicit PointwiseJointProduct(const PointwiseJointParameters& p) : p_(p) {
    group_ = uniform(thread_index() / 128);
    thread_ = thread_index() % 128;
    const int team = kTeam ? 0 : group_;
    is_leader_ = thread_ == 0 && team == group_;
    first_block_ = kTeam ? group_ * kOwnBlocks : 0;
    first_tile_ = static_cast<int>(block_index()) * kTeams + team;
    stride_ = p.splits * kTeams;
    tiles_ = first_tile_ < p.pixel_tiles ? (p.pixel_tiles - first_tile_ + stride_ - 1) / stride_ : 0;

    auto* memory = static_cast<unsigned char*>(block_memory());
    memory += (1024 - address_of(memory) % 1024) % 1024;
    image_ = memory;
    memory += kImageBytes;
    quads_ = reinterpret_cast<Aligned<float, 4>*>(memory);
    stages_ = memory + team * p.stages * kStageBytes;
    const int out_tiles = p.has_added ? 2 : 1, tiles = tile_bytes(p.stages, p.has_added);
    out_ = memory + kTeams * p.stages * kStageBytes + team * out_tiles * kXBytes;
    exchange_ = reinterpret_cast<Aligned<float, 4>*>(memory + tiles - kExchangeBytes);
    memory += tiles > kSumBytes ? tiles : kSumBytes;
    ones_ = memory;
    barriers_ = reinterpret_cast<Barrier*>(memory + kOnesBytes) + team * (p.stages + 2);
    vectors_ = reinterpret_cast<float*>(memory + kOnesBytes + barrier_bytes(p.stages)) + team * kGroupFloats;
  }

  FUSEDSC_DEVICE void loop() {
    let_next_kernel_start();
    if (is_leader_) {
      for (int i = 0; i < p_.stages + 2; ++i) initialise(barriers_ + i);
    }
    if (thread_index() < kOnesBytes / 4)
      reinterpret_cast<std::uint32_t*>(ones_)[thread_index()] = to_bits(1.0f, 1.0f, T());
    publish();
    wait_for_previous_kernel();
    if (is_leader_) {
      for (int i = 0; i < p_.stages; ++i) start_tile(i);
      start_added(0);
    }
    using Run = Aligned<std::uint32_t, 4>;
    for (int i = thread_index(); i < kImage.bytes / 16; i += kThreads) {
      reinterpret_cast<Run*>(image_)[i] = reinterpret_cast<const Run*>(p_.image)[i];
    }
    publish();
    block_barrier();
    int slot = 0, parity = 0;
    Sums sums = {};
#pragma unroll 1
    for (int tile = 0; tile < tiles_; ++tile) {
      wait(barriers_ + slot, parity);
      multiply_tile(sums, stages_ + slot * kStageBytes);
      if (is_leader_) {
        wait_for_stores();
        start_added(tile + 1);
      }
      wait_for_products<0>();
      fence_all(sums);
      if constexpr (kTeam) send_half(sums.grad_x);
      team_barrier();  // all are done with the tiles, and the tile of results is free
      if (is_leader_) start_tile(tile + p_.stages);
      unsigned char* out = out_ + (p_.has_added ? tile % 2 * kXBytes : 0);
      if (p_.has_added) wait(barriers_ + p_.stages + tile % 2, tile / 2 % 2);
      store_tile(sums.grad_x, out);
      publish();
      team_barrier();
      if (is_leader_) {
        start_store(p_.grad_x, 0, first_pixel(tile), out);
        commit_stores();
      }
      if (++slot == p_.stages) {
        slot = 0;
        parity ^= 1;
      }
    }
    add_products_of_x(sums);
    if (is_leader_) wait_for_stores();
    if constexpr (kTeam) {
      leave_own(sums);
    } else {
      block_barrier();  // all groups are done with the tiles, where the sums go
      leave(sums);
    }
  }

  // --------------------------------------------------------------------------------- by the leader of a group of warps

  FUSEDSC_DEVICE int first_pixel(int tile) const { return (first_tile_ + tile * stride_) * 64; }

  FUSEDSC_DEVICE void start_tile(int tile) const {
    if (tile >= tiles_) return;
    unsigned char* to = stages_ + tile % p_.stages * kStageBytes;
    Barrier* barrier = barriers_ + tile % p_.stages;
    expect(barrier, kStageBytes);
    const int pixel = first_pixel(tile);
    start_load(to + kGradBytes, p_.x, 0, pixel, barrier);
#pragma unroll
    for (int i = 0; i < kOutputBlocks; ++i) {
      const bool is_last = i == kOutputBlocks - 1;
      start_load(to + i * kBlockBytes, is_last ? p_.last_grad_y : p_.grad_y, i * 64, pixel, barrier);
    }
  }

  /// To where the results will be.
  FUSEDSC_DEVICE void start_added(int tile) const {
    if (!p_.has_added || tile >= tiles_) return;
    Barrier* barrier = barriers_ + p_.stages + tile % 2;
    expect(barrier, kXBytes);
    start_load(out_ + tile % 2 * kXBytes, p_.added, 0, first_pixel(tile), barrier);
  }

  // ----------------------------------------------------------------------------------------- by all threads of a group

  FUSEDSC_DEVICE void team_barrier() const {
    if constexpr (kTeam) block_barrier();
    else group_barrier(group_);
  }

  FUSEDSC_DEVICE static void fence_all(Sums& sums) {
    fence(sums.grad_x);
    fence(sums.squares);
    fence(sums.channels);
#pragma unroll
    for (int i = 0; i < kOwnBlocks; ++i) fence(sums.weight[i]);
  }

  FUSEDSC_DEVICE void multiply_tile(Sums& sums, const unsigned char* tile) const {
    const std::uint64_t x = describe<kRowBytes>(tile + kGradBytes), weight = describe<kRowBytes>(image_),
                        square = describe<kRowBytes>(image_ + kImage.first_square), ones = describe_constant(ones_);
    fence_all(sums);
    begin_products();
    // Of a team, one multiplies x with itself, the other with the image.
    const bool has_image = !kTeam || group_ != 0, has_squares = !kTeam || group_ == 0;
    if (has_image) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          multiply<true>(sums.grad_x, x + step * 32 / 16, square + (part * kSquareBytes + step * 16 * kRowBytes) / 16,
                         part == 0 && step == 0, T());
        }
      }
    }
    if (has_squares) {
#pragma unroll
      for (int k = 0; k < 64; k += 16) {
        const std::uint64_t rows = x + k * kRowBytes / 16;
        multiply<true, true>(sums.squares, rows, rows, false, T());
        multiply<false, true>(sums.channels, rows, ones, false, T());
      }
    }
#pragma unroll
    for (int block = 0; block < kOwnBlocks; ++block) {
      const int number = first_block_ + block;
      constexpr int kLastBytes = kLastWide * 2;
      const bool is_narrow = !kTeam && block == kOwnBlocks - 1;
      const unsigned char* from = tile + number * kBlockBytes;
      const std::uint64_t outputs = is_narrow ? describe<kLastBytes>(from) : describe<128>(from);
#pragma unroll
      for (int k = 0; k < 64; k += 16) {
        multiply<true, true>(sums.weight[block], outputs + k * (is_narrow ? kLastBytes : 128) / 16,
                             x + k * kRowBytes / 16, false, T());
        if (block * 64 + k < kOutputs) {
          multiply<true>(sums.grad_x, outputs + k * 2 / 16, weight + (number * 64 + k) * kRowBytes / 16,
                         !has_image && block == 0 && k == 0, T());
        }
      }
    }
    commit_products();
    fence_all(sums);
  }

  /// To the other group of a team: its half of the channels.
  FUSEDSC_DEVICE void send_half(const Row& sums) const {
    constexpr int kHalf = kColumns / 4;
#pragma unroll
    for (int i = 0; i < kHalf; i += 4) {
      Aligned<float, 4> four;
#pragma unroll
      for (int v = 0; v < 4; ++v) four.elements[v] = group_ == 0 ? sums[kHalf + i + v] : sums[i + v];
      exchange_[(group_ * kHalf + i) / 4 * 128 + thread_] = four;
    }
  }

  /// To block memory, where what is added may lie.
  FUSEDSC_DEVICE void store_tile(const Row& sums, unsigned char* out) const {
    const auto* vectors = reinterpret_cast<const float*>(image_ + kImage.vectors);
    const int lane = thread_ % 32, row = thread_ / 32 * 16 + lane / 4;
    constexpr int kRuns = kTeam ? kColumns / 16 : kColumns / 8;
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      float values[4];
#pragma unroll
      for (int v = 0; v < 4; ++v) values[v] = sums[i * 4 + v];
      if constexpr (kTeam) {
        const Aligned<float, 4> others = exchange_[((1 - group_) * kRuns + i) * 128 + thread_];
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          // The same order for both halves.
          const float own = group_ == 0 ? values[v] : sums[kRuns * 4 + i * 4 + v];
          values[v] = group_ == 0 ? own + others.elements[v] : others.elements[v] + own;
        }
      }
      const int run = kTeam ? group_ * kRuns + i : i, channel = run * 8 + lane % 4 * 2;
      const auto scale = pair(vectors + channel), constant = pair(vectors + kWide + channel);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int place = place_of_run<kRowBytes>(row + half * 8, run) + lane % 4 * 4;
        float first = values[half * 2] * scale.elements[0] + constant.elements[0];
        float second = values[half * 2 + 1] * scale.elements[1] + constant.elements[1];
        auto* to = reinterpret_cast<std::uint32_t*>(out + place);
        if (p_.has_added) {
          float addends[2];
          to_floats(*to, addends[0], addends[1], T());
          first += addends[0];
          second += addends[1];
        }
        *to = to_bits(first, second, T());
      }
    }
  }

  FUSEDSC_DEVICE static Aligned<float, 2> pair(const float* from) {
    return *reinterpret_cast<const Aligned<float, 2>*>(from);
  }

  /// Makes sums.weight the group's share of the gradient. x^T x goes to where tiles were, as the sum of two matrices.
  FUSEDSC_DEVICE void add_products_of_x(Sums& sums) const {
    const int lane = thread_ % 32, row = thread_ / 32 * 16 + lane / 4;
    float most = 0;
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) {
      if (row + i / 2 % 2 * 8 >= p_.channels) continue;
      const float size = sums.squares[i] < 0 ? -sums.squares[i] : sums.squares[i];
      most = size > most ? size : most;
    }
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const float other = shuffle_xor(most, distance);
      most = other > most ? other : most;
    }
    const bool has_squares = !kTeam || group_ == 0;
    if (has_squares && lane == 0) vectors_[kWide + thread_ / 32] = most;
    if (has_squares && lane % 4 == 0 && row < kWide) {
      vectors_[row] = sums.channels[0];
      if (row + 8 < kWide) vectors_[row + 8] = sums.channels[2];
    }
    team_barrier();
    most = 0;
#pragma unroll
    for (int warp = 0; warp < 4; ++warp) most = vectors_[kWide + warp] > most ? vectors_[kWide + warp] : most;
    const float scale = scale_to_large(most, Float16());  // of bfloat16, too
    unsigned char* squares = stages_;
#pragma unroll
    for (int i = 0; i < kColumns / 2; i += 2) {
      if (!has_squares || row + i / 2 % 2 * 8 >= kWide) continue;
      const float first = sums.squares[i] * scale, second = sums.squares[i + 1] * scale;
      float rounded[2];
      const std::uint32_t high = to_bits(first, second, T());
      to_floats(high, rounded[0], rounded[1], T());
      const int place = place_of_run<kRowBytes>(row + i / 2 % 2 * 8, i / 4) + lane % 4 * 4;
      *reinterpret_cast<std::uint32_t*>(squares + place) = high;
      *reinterpret_cast<std::uint32_t*>(squares + kSquareBytes + place) =
          to_bits(first - rounded[0], second - rounded[1], T());
    }
    publish();
    team_barrier();
    const std::uint64_t square = describe<kRowBytes>(squares);
#pragma unroll
    for (int block = 0; block < kOwnBlocks; ++block) {
      const int first_output = (first_block_ + block) * 64;
      std::uint32_t weight[kSteps][4];
#pragma unroll
      for (int i = 0; i < kSteps * 4; ++i) {
        weight[i / 4][i % 4] = weight_pair(first_output + row + i % 2 * 8, i / 4 * 16 + i / 2 % 2 * 8 + lane % 4 * 2);
      }
      Row& products = sums.grad_x;
      fence_all(sums);
      begin_products();
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          multiply<true>(products, weight[step], square + (part * kSquareBytes + step * 16 * kRowBytes) / 16,
                         part == 0 && step == 0, T());
        }
      }
      commit_products();
      wait_for_products<0>();
      fence_all(sums);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int output = first_output + row + half * 8;
        const float grad_scale = vector_at(p_.grad_scale, output), offset = vector_at(p_.offset, output),
                    output_scale = vector_at(p_.output_scale, output) / scale;
#pragma unroll
        for (int run = 0; run < kColumns / 8; ++run) {
          const auto channels = pair(vectors_ + run * 8 + lane % 4 * 2);
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& sum = sums.weight[block][run * 4 + half * 2 + i];
            sum = grad_scale * sum + (output_scale * products[run * 4 + half * 2 + i] + offset * channels.elements[i]);
          }
        }
      }
    }
  }

  FUSEDSC_DEVICE std::uint32_t weight_pair(int output, int channel) const {
    if (output >= p_.outputs || channel >= p_.channels) return 0;
    return *reinterpret_cast<const std::uint32_t*>(static_cast<const T*>(p_.weight) + output * p_.weight_row + channel);
  }

  FUSEDSC_DEVICE float vector_at(const float* vector, int output) const {
    return vector != nullptr && output < p_.outputs ? vector[output] : 0.0f;
  }

  // --------------------------------------------------------------------------------------- by all threads of a block

  FUSEDSC_DEVICE void leave(const Sums& sums) const {
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      const float* from = sums.weight[quad / (kColumns / 8)] + quad % (kColumns / 8) * 4;
      quads_[(group_ * kQuads + quad) * 128 + thread_] = {{from[0], from[1], from[2], from[3]}};
    }
    block_barrier();
    for (int item = thread_index(); item < kQuads * 128; item += kThreads) {
      const JointQuad place(item / 128, item % 128, kColumns / 8);
      if (place.output >= p_.outputs || place.channel >= p_.channels) continue;
      Aligned<float, 4> sum = quads_[item];
#pragma unroll
      for (int group = 1; group < kGroups; ++group) {
        const Aligned<float, 4> other = quads_[group * kQuads * 128 + item];
#pragma unroll
        for (int i = 0; i < 4; ++i) sum.elements[i] += other.elements[i];
      }
      p_.partials[static_cast<std::int64_t>(block_index()) * (kQuads * 128) + item] = sum;
    }
  }

  /// Of a team, whose groups have different outputs.
  FUSEDSC_DEVICE void leave_own(const Sums& sums) const {
#pragma unroll
    for (int quad = 0; quad < kQuads / 2; ++quad) {
      const float* from = sums.weight[quad / (kColumns / 8)] + quad % (kColumns / 8) * 4;
      const int item = (group_ * (kQuads / 2) + quad) * 128 + thread_;
      const JointQuad place(item / 128, thread_, kColumns / 8);
      if (place.output >= p_.outputs || place.channel >= p_.channels) continue;
      p_.partials[static_cast<std::int64_t>(block_index()) * (kQuads * 128) + item] = {
          {from[0], from[1], from[2], from[3]}};
    }
  }

  const PointwiseJointParameters& p_;
  bool is_leader_;
  int first_block_;  ///< of the group's outputs
  int group_, thread_, first_tile_, stride_, tiles_;
  unsigned char *image_, *stages_, *out_, *ones_;
  Barrier* barriers_;
  float* vectors_;
  Aligned<float, 4>*quads_, *exchange_;
};

// -------------------------------------------------------------------------------------------------- the blocks' shares

struct JointSumParameters {
  const Aligned<float, 4>* partials = nullptr;
  int splits = 1, parts = 1, quads = 0, row_quads = 1, outputs = 0, channels = 0;
  int lanes = 1;  ///< threads that share a four: a power of two
  void* weight = nullptr;
  std::int64_t weight_row = 0;
};

inline constexpr int kJointSumThreads = 256;

/// To the weight's gradient, always in the same order.
template <class T>
FUSEDSC_DEVICE void sum_joint_partials(const JointSumParameters& p) {
  let_next_kernel_start();
  const int items = kJointSumThreads / p.lanes, lane = thread_index() / items;
  const int item = static_cast<int>(block_index()) * items + thread_index() % items;
  const int part = item / 128 / p.quads, all = p.parts * p.quads * 128;
  JointQuad place(item / 128 % p.quads, item % 128, p.row_quads);
  place.channel += part * p.row_quads * 8;
  const bool has = item < all && place.output < p.outputs && place.channel < p.channels;
  auto* sums = static_cast<Aligned<float, 4>*>(block_memory());
  wait_for_previous_kernel();
  Aligned<float, 4> sum = {};
  if (has) {
#pragma unroll 4
    for (int split = lane; split < p.splits; split += p.lanes) {
      const Aligned<float, 4> own = p.partials[static_cast<std::int64_t>(split) * all + item];
#pragma unroll
      for (int i = 0; i < 4; ++i) sum.elements[i] += own.elements[i];
    }
  }
  for (int lanes = p.lanes / 2; lanes > 0; lanes /= 2) {
    sums[thread_index()] = sum;
    block_barrier();
    if (lane < lanes) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum.elements[i] += sums[thread_index() + lanes * items].elements[i];
    }
    block_barrier();
  }
  if (!has || lane != 0) return;
  T* to = static_cast<T*>(p.weight) + place.output * p.weight_row + place.channel;
  store<2>(sum.elements, to);
  if (place.output + 8 < p.outputs) store<2>(sum.elements + 2, to + 8 * p.weight_row);
}

}  // namespace fusedsc::gpu::hopper
