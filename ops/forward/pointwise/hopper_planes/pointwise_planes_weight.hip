#ifdef FUSEDSC_HOPPER
#include "fusedsc/forward/pointwise/hopper_planes/pointwise_planes_weight.h"

#include "fusedsc/common/gpu/vendor/following_kernel.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr int kThreads = 128;

struct PaddedWeightParameters {
  const void* weight = nullptr;
  std::int64_t output_stride = 0, channel_stride = 0, pitch = 0;
  void* to = nullptr;
  int channels = 0;
};

/// A block copies a row.
template <class Bits>
FUSEDSC_KERNEL(kThreads, 1)
padded_weight_kernel(PaddedWeightParameters p) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  const auto output = static_cast<std::int64_t>(block_index());
  const Bits* from = static_cast<const Bits*>(p.weight) + output * p.output_stride;
  Bits* to = static_cast<Bits*>(p.to) + output * p.pitch;
  for (int channel = thread_index(); channel < p.channels; channel += kThreads) {
    to[channel] = from[channel * p.channel_stride];
  }
}

}  // namespace

void launch_padded_weight(const char* name, const ConstTensorView& weight, void* to, void* stream) {
  PaddedWeightParameters p;
  p.weight = weight.data;
  p.output_stride = weight.strides[0];
  p.channel_stride = weight.strides[1];
  p.pitch = padded_pitch(weight);
  p.to = to;
  p.channels = static_cast<int>(weight.sizes[1]);
  const auto kernel =
      size_of(weight.dtype) == 2 ? padded_weight_kernel<std::uint16_t> : padded_weight_kernel<std::uint32_t>;
  launch_following(name, kernel, weight.sizes[0], kThreads, stream, p, 0);
}

}  // namespace fusedsc::gpu::hopper
#endif
