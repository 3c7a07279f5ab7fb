/// Pointwise weight gradients on Hopper GPUs where x or grad_y has few channels, 16-bit types in either layout: every
/// block sees all channels of its positions, so that each element is read once, and of channels_last tensors as runs of
/// bytes. Slices of warps go their own ways through the positions, each with stages of its own that TMA
/// fills, and with sums of the whole weight, of which each warp of a slice has some rows. A block's slices add their
/// sums up at the end; if there are several blocks, a second kernel adds theirs (pointwise_hopper_weight_sum.h).
#pragma once

#include "fusedsc/backward/pointwise/hopper_weight/pointwise_hopper_weight_tiles.h"
#include "fusedsc/common/gpu/hopper/hopper_stages.h"
#include "fusedsc/common/gpu/products/wave_product.h"
#include "fusedsc/common/gpu/tensors/divisor.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"

namespace fusedsc::gpu::hopper {

inline constexpr int kNarrowRowTiles = 3, kNarrowWarpRows = kNarrowRowTiles * 16;  ///< of a warp: products of 16 rows
inline constexpr int kNarrowBoxChannels = 64;

/// One of the two tensors.
struct NarrowTensor {
  TensorMap map;
  const void* data = nullptr;  ///< or null: not as a run of bytes
  int channels = 0;
  int bytes = 0;  ///< of a stage, rounded up to where the next tensor may begin
  /// Channels inner: from position to position in shared memory, and blocks of 64 channels that come one by one. A run
  /// of bytes: all its channels, and no blocks.
  int pitch = 0, boxes = 0;
};

struct NarrowParameters {
  NarrowTensor wide, slim;
  int steps = 0;        ///< tiles of `depth` positions
  int image_steps = 1;  ///< of an image; channels inner: all
  Divisor by_image_steps;
  int positions = 0;  ///< of an image; channels inner: all
  int depth = 64;     ///< positions that come at a time
  int stages = 2;     ///< that each slice has
  int warps = 1, slices = 1;
  NarrowTiles tiles;
};

/// Rows of products are the channels of the tensor that has more of them, columns those of the other. kRowsOf: how
/// tiles lie in shared memory.
template <class T, bool kPositionsInner, int kColumnTiles>
class NarrowProduct {
 public:
  static constexpr int kThreads = kColumnTiles <= 5 ? 512 : 384;  ///< at most
  static constexpr int kFours = kNarrowRowTiles * kColumnTiles;

  static int memory_bytes(const NarrowParameters& p) {
    const int stages = p.slices * p.stages * (p.wide.bytes + p.slim.bytes);
    const int sums = p.slices * p.warps * 32 * kFours * 16;
    return 1024 + (stages > sums ? stages : sums) + p.slices * p.stages * 8;
  }

  FUSEDSC_DEVICE static void run(const NarrowParameters& p) {
    NarrowProduct product(p);
    product.loop();
  }

 private:
  static constexpr int kColumnPairs = (kColumnTiles + 1) / 2;
  using Sums = float[kNarrowRowTiles][kColumnTiles][4];

  FUSEDSC_DEVICE explicit NarrowProduct(const NarrowParameters& p)
      : p_(p), slice_threads_(p.warps * 32), stage_bytes_(p.wide.bytes + p.slim.bytes) {
    const int warp = uniform(thread_index() / 32);
    slice_ = warp / p.warps;
    thread_ = thread_index() - slice_ * slice_threads_;
    is_leader_ = thread_ == 0;
    stride_ = static_cast<int>(block_count()) * p.slices;
    step_ = next_step_ = static_cast<int>(block_index()) * p.slices + slice_;

    auto* memory = static_cast<unsigned char*>(shared_memory());
    memory += padding_before_tiles(memory);
    fours_ = reinterpret_cast<Four*>(memory);
    stages_ = memory + slice_ * p.stages * stage_bytes_;
    const int stages = p.slices * p.stages * stage_bytes_, sums = p.slices * slice_threads_ * kFours * 16;
    barriers_ = reinterpret_cast<Barrier*>(memory + (stages > sums ? stages : sums)) + slice_ * p.stages;

    // Matrices 0 to 3 of a load: of rows, then of k; of columns, the other way round.
    const int lane = thread_ % 32, first = lane / 8 % 2, second = lane / 16, line = lane % 8;
#pragma unroll
    for (int i = 0; i < kNarrowRowTiles; ++i) {
      rows_[i] = place_of(p.wide, (thread_ / 32 * kNarrowRowTiles + i) * 16 + first * 8, second, line);
    }
#pragma unroll
    for (int j = 0; j < kColumnPairs; ++j) {
      columns_[j] = p.wide.bytes + place_of(p.slim, j * 16 + second * 8, first, line);
    }
  }

  /// Where a lane finds a row of a matrix of eight channels and eight positions. Channels that do not exist are others:
  /// their sums are not kept.
  FUSEDSC_DEVICE int place_of(const NarrowTensor& tensor, int channel, int half, int line) const {
    if (channel >= tensor.channels) channel = tensor.channels - 8;
    if constexpr (kPositionsInner) {
      const int row = channel + line;
      return p_.depth == 64 ? place_of_run<128>(row, half) : place_of_run<64>(row, half);
    }
    const int position = half * 8 + line;
    if (tensor.boxes == 0) return position * tensor.pitch + channel * 2;
    return channel / kNarrowBoxChannels * p_.depth * 128 +
           place_of_run<128>(position, channel % kNarrowBoxChannels / 8);
  }

  FUSEDSC_DEVICE void loop() {
    if (is_leader_) {
      for (int i = 0; i < p_.stages; ++i) initialise(barriers_ + i);
      publish();
    }
    let_next_kernel_start();
    wait_for_previous_kernel();
    if (is_leader_) {
      for (int i = 0; i < p_.stages; ++i) start_next(i);
    }
    block_barrier();
    Sums sums = {};
    StageTurn turn;
#pragma unroll 1
    for (; step_ < p_.steps; step_ += stride_) {
      wait(barriers_ + turn.slot, turn.parity);
      multiply(sums, stages_ + turn.slot * stage_bytes_);
      slice_barrier();
      if (is_leader_) start_next(turn.slot);
      turn.next(p_.stages);
    }
    block_barrier();  // all slices are done with the tiles, where the sums go
    leave(sums);
  }

  FUSEDSC_DEVICE void slice_barrier() const {
    if (p_.warps == 1) warp_barrier();
    else group_barrier(slice_, slice_threads_);
  }

  // ------------------------------------------------------------------------------------------- by a slice's leader

  FUSEDSC_DEVICE void start_next(int slot) {
    if (next_step_ >= p_.steps) return;
    unsigned char* to = stages_ + slot * stage_bytes_;
    Barrier* barrier = barriers_ + slot;
    auto step = static_cast<std::uint32_t>(next_step_);
    const int image = kPositionsInner ? static_cast<int>(p_.by_image_steps.divide(step)) : 0;
    const int first = static_cast<int>(step) * p_.depth, left = p_.positions - first;
    const int count = left < p_.depth ? left : p_.depth;
    expect(barrier, bytes_of(p_.wide, count) + bytes_of(p_.slim, count));
    start_loads(to, p_.wide, first, count, image, barrier);
    start_loads(to + p_.wide.bytes, p_.slim, first, count, image, barrier);
    next_step_ += stride_;
  }

  FUSEDSC_DEVICE int bytes_of(const NarrowTensor& tensor, int count) const {
    if (kPositionsInner) return tensor.channels * p_.depth * 2;
    return tensor.boxes > 0 ? tensor.boxes * p_.depth * 128 : count * tensor.pitch;
  }

  FUSEDSC_DEVICE void start_loads(unsigned char* to, const NarrowTensor& tensor, int first, int count, int image,
                                  Barrier* barrier) const {
    if constexpr (kPositionsInner) {
      start_load(to, tensor.map, {first, 0, image, 0}, barrier);
    } else if (tensor.boxes == 0) {
      const auto* from = static_cast<const unsigned char*>(tensor.data) + std::int64_t{first} * tensor.pitch;
      start_load(to, from, count * tensor.pitch, barrier);
    } else {
      for (int i = 0; i < tensor.boxes; ++i) {
        start_load(to + i * p_.depth * 128, tensor.map, i * kNarrowBoxChannels, first, barrier);
      }
    }
  }

  // -------------------------------------------------------------------------------------------- by a slice's threads

  FUSEDSC_DEVICE void multiply(Sums& sums, unsigned char* tile) const {
    auto step = static_cast<std::uint32_t>(step_);
    if (kPositionsInner) p_.by_image_steps.divide(step);
    const int left = p_.positions - static_cast<int>(step) * p_.depth;
    const int count = left < p_.depth ? left : p_.depth;
    if (!kPositionsInner && count % 16 != 0) clear_behind(tile, count);
#pragma unroll 1
    for (int k = 0; k < count; k += 16) {
      std::uint32_t a[kNarrowRowTiles][4], b[kColumnPairs][4];
#pragma unroll
      for (int j = 0; j < kColumnPairs; ++j) read(tile, columns_[j], p_.slim, k, b[j]);
#pragma unroll
      for (int i = 0; i < kNarrowRowTiles; ++i) read(tile, rows_[i], p_.wide, k, a[i]);
#pragma unroll
      for (int i = 0; i < kNarrowRowTiles; ++i) {
#pragma unroll
        for (int j = 0; j < kColumnTiles; ++j) {
          const std::uint32_t* column = b[j / 2] + j % 2 * 2;
          wave_multiply_add(sums[i][j], {{a[i][0], a[i][1], a[i][2], a[i][3]}, {column[0], column[1]}}, T());
        }
      }
    }
  }

  FUSEDSC_DEVICE static void read(const unsigned char* tile, int place, const NarrowTensor& tensor, int k,
                                  std::uint32_t (&to)[4]) {
    load_matrices<!kPositionsInner>(tile + (kPositionsInner ? place ^ k * 2 : place + k * tensor.pitch), to);
  }

  /// Zeros in the place of positions that do not exist, up to the next product's end.
  FUSEDSC_DEVICE void clear_behind(unsigned char* tile, int count) const {
    const int missing = 16 - count % 16;
    for (const NarrowTensor* tensor : {&p_.wide, &p_.slim}) {
      if (tensor->boxes == 0) {
        for (int i = thread_ * 16; i < missing * tensor->pitch; i += slice_threads_ * 16) {
          *reinterpret_cast<Four*>(tile + count * tensor->pitch + i) = {};
        }
      }
      tile += p_.wide.bytes;
    }
    slice_barrier();
  }

  // ------------------------------------------------------------------------------------------- by all threads of a
  // block

  /// Through shared memory, and then in a loop: unrolled, it would be most of the kernel.
  FUSEDSC_DEVICE void leave(const Sums& sums) const {
#pragma unroll
    for (int four = 0; four < kFours; ++four) {
      const float* from = sums[four / kColumnTiles][four % kColumnTiles];
      *place_of_four(four, slice_) = {from[0], from[1], from[2], from[3]};
    }
    block_barrier();
#pragma unroll 1
    for (int four = slice_; four < kFours; four += p_.slices) {
      Four sum = *place_of_four(four, 0);
      for (int slice = 1; slice < p_.slices; ++slice) add(sum, *place_of_four(four, slice));
      leave_four(p_.tiles, 0, static_cast<int>(block_index()), four * slice_threads_ + thread_, sum, T());
    }
  }

  FUSEDSC_DEVICE Four* place_of_four(int four, int slice) const {
    return fours_ + (slice * kFours + four) * slice_threads_ + thread_;
  }

  const NarrowParameters& p_;
  int slice_threads_, stage_bytes_, slice_, thread_;
  int rows_[kNarrowRowTiles], columns_[kColumnPairs];  ///< where a lane finds its rows of matrices in a stage
  int step_, next_step_, stride_;                      ///< next_step_: what the leader copies next
  bool is_leader_;
  unsigned char* stages_;
  Barrier* barriers_;
  Four* fours_;
};

}  // namespace fusedsc::gpu::hopper
