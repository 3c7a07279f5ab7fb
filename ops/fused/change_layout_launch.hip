#include "fusedsc/common/divide_up.h"
#include "fusedsc/common/gpu/following_kernel.h"
#include "fusedsc/fused/change_layout_gpu.h"
#include "fusedsc/fused/change_layout_kernel.h"
#ifdef FUSEDSC_HOPPER
#include "fusedsc/common/gpu/hopper_host.h"
#endif

namespace fusedsc::gpu {
namespace {

constexpr int kBlocksOfMultiprocessor = 5;

template <class T, int kRun, int kPair, bool kToChannelsLast>
FUSEDSC_KERNEL(kLayoutThreads, kBlocksOfMultiprocessor)
change_layout_kernel(const ChangeLayoutParameters p) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  LayoutTile<T, kRun, kPair> tile(p);
  if constexpr (kToChannelsLast) tile.to_channels_last();
  else tile.to_contiguous();
}

using Kernel = void (*)(ChangeLayoutParameters);

template <class T, int kRun, int kPair>
Kernel kernel_to(Layout layout) {
  return layout == Layout::channels_last ? change_layout_kernel<T, kRun, kPair, true>
                                         : change_layout_kernel<T, kRun, kPair, false>;
}

template <class T>
Kernel kernel_of(bool has_runs, bool has_pairs, Layout to) {
  constexpr int kRun = 16 / static_cast<int>(sizeof(T)), kPair = sizeof(T) == 2 ? 2 : 1;
  if (has_runs) return has_pairs ? kernel_to<T, kRun, kPair>(to) : kernel_to<T, kRun, 1>(to);
  return has_pairs ? kernel_to<T, 1, kPair>(to) : kernel_to<T, 1, 1>(to);
}

Kernel kernel_of(std::size_t bytes, bool has_runs, bool has_pairs, Layout to) {
  switch (bytes) {
    case 2: return kernel_of<std::uint16_t>(has_runs, has_pairs, to);
    case 4: return kernel_of<std::uint32_t>(has_runs, has_pairs, to);
    default: return kernel_of<std::uint64_t>(has_runs, has_pairs, to);
  }
}

}  // namespace

void change_layout(const ChangeLayoutArguments& arguments, void* stream) {
  const auto& [from, to] = arguments;
  if (from.elements() == 0) return;
  const std::int64_t bytes = static_cast<std::int64_t>(size_of(from.dtype)), images = from.sizes[0],
                     channels = from.sizes[1], positions = from.sizes[2] * from.sizes[3];
  const Layout layout = layout_of(to.sizes, to.strides);
  const ConstTensorView &by_channels = layout == Layout::channels_last ? ConstTensorView(to) : from,
                        &by_positions = layout == Layout::channels_last ? from : ConstTensorView(to);
  /// Whether runs of so many bytes are aligned, if they are at multiples of `step` elements of each image.
  const auto has_aligned = [&](const ConstTensorView& view, std::int64_t run, std::int64_t step) {
    return reinterpret_cast<std::uintptr_t>(view.data) % run == 0 && step * bytes % run == 0 &&
           (images == 1 || view.strides[0] * bytes % run == 0);
  };
  ChangeLayoutParameters p;
  p.from = from.data;
  p.to = to.data;
  p.from_image = from.strides[0];
  p.to_image = to.strides[0];
  p.channels = static_cast<int>(channels);
  p.positions = static_cast<int>(positions);
  const std::int64_t channel_tiles = divide_up(channels * bytes, kLayoutRowBytes),
                     position_tiles = divide_up(positions, kMostLayoutPositions);
  // Parts of about the same size, of whole runs of 16 bytes of the smallest elements.
  const std::int64_t part = divide_up(divide_up(positions, position_tiles), 8) * 8;
  p.tile_positions = static_cast<int>(position_tiles == 1 ? positions : part);
  p.by_tile_positions = Divisor(static_cast<std::uint32_t>(p.tile_positions));
  p.by_channel_tiles = Divisor(static_cast<std::uint32_t>(channel_tiles));
  p.by_position_tiles = Divisor(static_cast<std::uint32_t>(position_tiles));
  const bool has_pairs = has_aligned(by_positions, 4, position_tiles == 1 ? channels * positions : positions);
  const Kernel kernel =
      kernel_of(static_cast<std::size_t>(bytes), has_aligned(by_channels, 16, channels), has_pairs, layout);
  const int pitch = p.tile_positions | 1;
  launch_following("change_layout", kernel, images * channel_tiles * position_tiles, kLayoutThreads, stream, p,
                   static_cast<std::size_t>(pitch) * kLayoutRowBytes);
}

bool has_kernels_by_layout() {
#ifdef FUSEDSC_HOPPER
  return hopper::is_hopper();
#else
  return false;
#endif
}

}  // namespace fusedsc::gpu
