#include "fusedsc/forward/sliding_channel/weight/sliding_channel_weight_gpu.h"
#include "fusedsc/forward/sliding_channel/weight/sliding_channel_weight_kernel.h"

namespace fusedsc::gpu {
namespace {

template <class T>
FUSEDSC_KERNEL(kSlidingWeightThreads, 1)
expand_kernel(SlidingElementsParameters parameters) {
  expand_sliding_channels<T>(parameters);
}

template <class T>
FUSEDSC_KERNEL(kSlidingWeightThreads, 1)
expand_runs_kernel(SlidingRunsParameters parameters) {
  expand_sliding_runs<T>(parameters);
}

template <class T>
FUSEDSC_KERNEL(kSlidingWeightThreads, 1)
gather_kernel(SlidingElementsParameters parameters) {
  gather_sliding_channels<T>(parameters);
}

using Kernel = void (*)(SlidingElementsParameters);

/// The kernel for the elements' size.
Kernel by_size(DataType dtype, Kernel two, Kernel four, Kernel eight) {
  switch (size_of(dtype)) {
    case 2: return two;
    case 4: return four;
    default: return eight;
  }
}

/// Whether rows of the expanded weight are whole runs of 16 bytes, and 32 bits count them.
bool has_runs(const SlidingChannels& windows, const ConstTensorView& weight, const TensorView& expanded) {
  const auto size = static_cast<std::int64_t>(size_of(weight.dtype));
  return size <= 4 && windows.channels % (16 / size) == 0 && expanded.elements() * size / 16 < (1 << 30) &&
         reinterpret_cast<std::uintptr_t>(expanded.data) % 16 == 0 && WeightSource::can_be(weight.sizes[0], windows);
}

void expand_runs(const SlidingChannels& windows, const ConstTensorView& weight, const TensorView& expanded,
                 void* stream) {
  const auto size = static_cast<std::int64_t>(size_of(weight.dtype)), runs = windows.channels * size / 16;
  const SlidingRunsParameters p{WeightSource(weight, windows), expanded.data, Divisor(static_cast<std::uint32_t>(runs)),
                                runs * weight.sizes[0]};
  launch_following("expand_sliding_channels", size == 2 ? expand_runs_kernel<Float16> : expand_runs_kernel<float>,
                   (p.all + kSlidingWeightThreads - 1) / kSlidingWeightThreads, kSlidingWeightThreads, stream, p);
}

}  // namespace

void expand_sliding_channels(const SlidingChannels& windows, const ConstTensorView& weight, const TensorView& expanded,
                             void* stream) {
  if (has_runs(windows, weight, expanded)) return expand_runs(windows, weight, expanded, stream);
  const SlidingElementsParameters p{windows, weight.data, expanded.data, weight.strides[0], weight.strides[1]};
  launch_following(
      "expand_sliding_channels",
      by_size(weight.dtype, expand_kernel<std::uint16_t>, expand_kernel<std::uint32_t>, expand_kernel<std::uint64_t>),
      weight.sizes[0], kSlidingWeightThreads, stream, p);
}

void gather_sliding_channels(const SlidingChannels& windows, const ConstTensorView& expanded, const TensorView& weight,
                             void* stream) {
  const SlidingElementsParameters p{windows, expanded.data, weight.data, weight.strides[0], weight.strides[1]};
  launch_following(
      "gather_sliding_channels",
      by_size(weight.dtype, gather_kernel<std::uint16_t>, gather_kernel<std::uint32_t>, gather_kernel<std::uint64_t>),
      weight.sizes[0], kSlidingWeightThreads, stream, p);
}

}  // namespace fusedsc::gpu
