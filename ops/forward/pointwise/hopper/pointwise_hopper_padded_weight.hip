#ifdef FUSEDSC_HOPPER
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_padded_weight.h"

#include "fusedsc/common/gpu/products/wave_product.h"
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

/// A block copies a row. Element: float, or the bits of 16-bit elements.
template <class Element>
FUSEDSC_KERNEL(kThreads, 1)
padded_weight_kernel(PaddedWeightParameters p) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  const auto output = static_cast<std::int64_t>(block_index());
  const Element* from = static_cast<const Element*>(p.weight) + output * p.output_stride;
  Element* to = static_cast<Element*>(p.to) + output * p.pitch;
#pragma unroll 4
  for (int channel = thread_index(); channel < p.channels; channel += kThreads) {
    const Element element = from[channel * p.channel_stride];
    if constexpr (sizeof(Element) == 4) to[channel] = rounded_to_tf32(element);
    else to[channel] = element;
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
  const auto kernel = size_of(weight.dtype) == 2 ? padded_weight_kernel<std::uint16_t> : padded_weight_kernel<float>;
  launch_following(name, kernel, weight.sizes[0], kThreads, stream, p, 0);
}

}  // namespace fusedsc::gpu::hopper
#endif
