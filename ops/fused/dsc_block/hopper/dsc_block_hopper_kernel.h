/// The fused block in eval mode on Hopper GPUs, 16 bits, channels neighbours in memory, windows of 3x3: one kernel, in
/// which d stays in shared memory.
///
/// A block goes over tiles of the output. Tiles of x come by TMA, a chunk of 32 or 64 channels at a time
/// with what the pointwise weight has for these. Some warps make of them chunks of d, each warp 8 channels at a time
/// (dsc_block_hopper_depthwise.h), while warpgroups multiply the chunk before by the weight and keep the sums
/// of all outputs until the last chunk (dsc_block_hopper_products.h).
#pragma once

#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/fused/dsc_block/hopper/dsc_block_hopper_depthwise.h"
#include "fusedsc/fused/dsc_block/hopper/dsc_block_hopper_products.h"

namespace fusedsc::gpu::hopper {

template <class Shape>
class DscBlockKernel {
 public:
  FUSEDSC_DEVICE static void run(const DscBlockParameters& p) {
    DscBlockKernel kernel(p);
    kernel.begin();
    const int warp = uniform(thread_index() / 32);
    if (warp >= Shape::kProductWarps) {
      DscBlockDepthwise<Shape>(p, kernel.memory_).run(warp - Shape::kProductWarps);
    } else {
      DscBlockProducts<Shape>(p, kernel.memory_).run([&](int number) { kernel.start_copy(number + p.stages); });
    }
  }

 private:
  using T = typename Shape::T;

  FUSEDSC_DEVICE explicit DscBlockKernel(const DscBlockParameters& p) : p_(p), memory_(p) {}

  FUSEDSC_DEVICE void begin() {
    if (thread_index() == 0) {
      for (int i = 0; i < p_.stages; ++i) initialise(memory_.arrived + i);
      for (int i = 0; i < 2; ++i) initialise(memory_.made + i, Shape::kRuns);
      for (int i = 0; i < kUses; ++i) initialise(memory_.used + i, Shape::kProductWarps);
      publish();
    }
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (thread_index() == 0) {
      for (int i = 0; i < p_.stages; ++i) start_copy(i);
    }
    prepare();
    block_barrier();
  }

  /// By one thread, of the block's chunk of this number, if there is one.
  FUSEDSC_DEVICE void start_copy(int number) const {
    std::uint32_t rest = static_cast<std::uint32_t>(number);
    const int turn = static_cast<int>(p_.by_chunks.divide(rest)), chunk = static_cast<int>(rest);
    const int tile = static_cast<int>(block_index()) + turn * static_cast<int>(block_count());
    if (tile >= p_.tiles) return;
    const DscBlockPlace place(p_, tile);
    const int slot = DscBlockChunk(p_, number).slot, channel = chunk * (Shape::kRowBytes / 2);
    unsigned char* stage = memory_.stages + slot * memory_.stage_bytes;
    Barrier* arrived = memory_.arrived + slot;
    expect(arrived, Shape::tile_bytes(p_) + Shape::kOutputs * Shape::kRowBytes);
    start_load(stage, p_.x,
               ImagePlace{channel, place.column * Shape::kStride - p_.padding_left,
                          place.row * Shape::kStride - p_.padding_top, place.image},
               arrived);
    for (int i = 0; i < Shape::kOutputShares; ++i) {
      const int output = i * Shape::kGroupOutputs;
      start_load(stage + memory_.weight_place + output * Shape::kRowBytes, p_.pw_weight, channel, output, arrived);
    }
  }

  /// The depthwise weight, and BatchNorm and the epilogue as affine maps, to shared memory; zeros where there is
  /// nothing.
  FUSEDSC_DEVICE void prepare() const {
    constexpr int kTaps = Shape::kKernel * Shape::kKernel;
    const int thread = thread_index(), channels = p_.runs() * 8;
    auto* taps = reinterpret_cast<std::uint16_t*>(memory_.taps);
    for (int i = thread; i < (channels + 8) * kTaps; i += Shape::kThreads) {
      const int channel = i / kTaps, tap = i - channel * kTaps, kh = tap / Shape::kKernel, kw = tap % Shape::kKernel;
      taps[(channel / 8 * kTaps + tap) * 8 + channel % 8] =
          channel < p_.channels ? elements_of<T>(p_.dw_weight)[p_.dw_weight.offset(channel, 0, kh, kw)].bits
                                : std::uint16_t{0};
    }
    for (int c = thread; c < channels; c += Shape::kThreads) {
      const auto map = p_.template channel_map<T>(c);
      memory_.maps[c / 8 * 16 + c % 8] = map.scale;
      memory_.maps[c / 8 * 16 + 8 + c % 8] = map.shift;
    }
    if (thread < 16) memory_.patches[thread] = DscBlockPatch(p_, Shape::kRows, thread);
    for (int m = thread; m < Shape::kOutputs; m += Shape::kThreads) {
      const auto map = p_.template output_map<T>(m);
      memory_.output_maps[2 * m] = map.scale;
      memory_.output_maps[2 * m + 1] = map.shift;
    }
  }

  const DscBlockParameters& p_;
  const DscSharedMemory<Shape> memory_;
};

}  // namespace fusedsc::gpu::hopper
