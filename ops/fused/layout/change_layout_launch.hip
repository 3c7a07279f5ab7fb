#include <algorithm>

#include "fusedsc/common/divide_up.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/fused/layout/change_layout_gpu.h"
#include "fusedsc/fused/layout/change_layout_kernel.h"
#ifdef FUSEDSC_HOPPER
#include "fusedsc/common/gpu/hopper/hopper_host.h"
#endif

namespace fusedsc::gpu {
namespace {

constexpr int kMostThreads = kLayoutLanes * kMostLayoutChunks, kBlocksOfMultiprocessor = 4;
constexpr std::int64_t kPieceBytes = 8;  ///< of a thread's neighbouring positions, where rows are aligned to them

template <class T, int kRun, int kPiece, bool kToChannelsLast>
FUSEDSC_KERNEL(kMostThreads, kBlocksOfMultiprocessor)
change_layout_kernel(const ChangeLayoutParameters p) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  const LayoutTile<T, kRun, kPiece> tile(p);
  if constexpr (kToChannelsLast) tile.to_channels_last();
  else tile.to_contiguous();
}

using Kernel = void (*)(ChangeLayoutParameters);

template <class T, int kRun, int kPiece>
Kernel kernel_to(Layout layout) {
  return layout == Layout::channels_last ? change_layout_kernel<T, kRun, kPiece, true>
                                         : change_layout_kernel<T, kRun, kPiece, false>;
}

template <class T>
Kernel kernel_of(bool has_runs, bool has_pieces, Layout to) {
  constexpr int kRun = kLayoutChunkBytes / static_cast<int>(sizeof(T)),
                kPiece = static_cast<int>(kPieceBytes) / static_cast<int>(sizeof(T));
  if (has_runs) return has_pieces ? kernel_to<T, kRun, kPiece>(to) : kernel_to<T, kRun, 1>(to);
  return has_pieces ? kernel_to<T, 1, kPiece>(to) : kernel_to<T, 1, 1>(to);
}

Kernel kernel_of(std::int64_t bytes, bool has_runs, bool has_pieces, Layout to) {
  switch (bytes) {
    case 2: return kernel_of<std::uint16_t>(has_runs, has_pieces, to);
    case 4: return kernel_of<std::uint32_t>(has_runs, has_pieces, to);
    default: return kernel_of<std::uint64_t>(has_runs, has_pieces, to);
  }
}

/// About equal parts of `count`, whole units but for the last one, none larger than `most`, which is whole units, too.
std::int64_t equal_part(std::int64_t count, std::int64_t most, std::int64_t unit) {
  return std::min(count, divide_up(divide_up(count, divide_up(count, most)), unit) * unit);
}

}  // namespace

void change_layout(const ChangeLayoutArguments& arguments, void* stream) {
  const auto& [from, to] = arguments;
  const std::int64_t bytes = static_cast<std::int64_t>(size_of(from.dtype)), images = from.sizes[0],
                     channels = from.sizes[1], positions = from.sizes[2] * from.sizes[3];
  const Layout layout = layout_of(to.sizes, to.strides);
  const ConstTensorView &by_channels = layout == Layout::channels_last ? ConstTensorView(to) : from,
                        &by_positions = layout == Layout::channels_last ? from : ConstTensorView(to);
  /// Whether so many bytes are aligned wherever whole ones begin in rows of `row` elements.
  const auto has_aligned = [&](const ConstTensorView& view, std::int64_t run, std::int64_t row) {
    return reinterpret_cast<std::uintptr_t>(view.data) % static_cast<std::uintptr_t>(run) == 0 &&
           row * bytes % run == 0 && (images == 1 || view.strides[0] * bytes % run == 0);
  };
  // Odd numbers of channels, or of positions (7x7 maps), are moved element by element on that side, on which a tile's
  // rows still follow one another in memory.
  const bool has_runs = has_aligned(by_channels, kLayoutChunkBytes, channels),
             has_pieces = has_aligned(by_positions, kPieceBytes, positions);
  const auto piece = static_cast<int>(has_pieces ? kPieceBytes / bytes : 1);
  constexpr std::int64_t kSectorBytes = 32;  // what memory is read and written by
  const std::int64_t chunk = kLayoutChunkBytes / bytes, chunks = divide_up(channels, chunk),
                     tile_chunks = equal_part(chunks, kMostLayoutChunks, kSectorBytes / kLayoutChunkBytes),
                     tile_positions = equal_part(positions, most_layout_positions(piece), kSectorBytes / bytes),
                     channel_tiles = divide_up(chunks, tile_chunks),
                     position_tiles = divide_up(positions, tile_positions);
  ChangeLayoutParameters p;
  p.from = from.data;
  p.to = to.data;
  p.from_image = from.strides[0];
  p.to_image = to.strides[0];
  p.channels = static_cast<int>(channels);
  p.positions = static_cast<int>(positions);
  p.tile_chunks = static_cast<int>(tile_chunks);
  p.tile_positions = static_cast<int>(tile_positions);
  p.by_runs = Divisor(static_cast<std::uint32_t>(has_runs ? tile_chunks : tile_chunks * chunk));
  p.by_channel_tiles = Divisor(static_cast<std::uint32_t>(channel_tiles));
  p.by_position_tiles = Divisor(static_cast<std::uint32_t>(position_tiles));
  const std::int64_t pieces = divide_up(tile_positions, piece);
  launch_following("change_layout", kernel_of(bytes, has_runs, has_pieces, layout),
                   images * channel_tiles * position_tiles, kLayoutLanes * p.tile_chunks, stream, p,
                   static_cast<std::size_t>(pieces * layout_pitch(p.tile_chunks, piece) * kLayoutChunkBytes));
}

bool has_kernels_by_layout() {
#ifdef FUSEDSC_HOPPER
  return hopper::is_hopper();
#else
  return false;
#endif
}

}  // namespace fusedsc::gpu
