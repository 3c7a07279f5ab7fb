/// Sliding-channel products of contiguous float tensors by TensorFloat-32: what a pass over positions has in shared
/// memory. Positions come in pieces of four (16 bytes) of a plane; eight of them are a row of 128 bytes, of 32
/// positions of one channel, in which pieces are swizzled such that threads read them from different banks.
#pragma once

#include "fusedsc/common/gpu/products/wave_product.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/sliding_channel/planes/sliding_bands.h"

namespace fusedsc::gpu {

inline constexpr int kPiecePositions = 4, kGroupPieces = 8, kGroupBytes = 128;

/// A contiguous tensor's planes, piece by piece, through all images.
struct PlanesOfImages {
  const float* data = nullptr;
  std::int64_t image = 0;  ///< elements from one to the next
};

/// How images are cut into pieces.
struct PlanePieces {
  int area = 0;  ///< positions of a plane
  int own = 1;   ///< pieces of a plane
  int all = 0;   ///< pieces of a channel, in all images
  Divisor of_plane;

  PlanePieces() = default;
  PlanePieces(std::int64_t images, std::int64_t area_)
      : area(static_cast<int>(area_)),
        own(area / kPiecePositions),
        all(static_cast<int>(images * own)),
        of_plane(static_cast<std::uint32_t>(own)) {}

  /// Whether planes are so small that neighbouring threads had better copy neighbouring channels: a group has some
  /// images.
  FUSEDSC_DEVICE bool copies_images() const { return own < kGroupPieces && kGroupPieces % own == 0; }

  /// Where a piece of plane 0 lies, with so many elements from one image to the next.
  FUSEDSC_DEVICE std::int64_t place(std::int64_t image, int piece) const {
    auto rest = static_cast<std::uint32_t>(piece);
    const std::uint32_t own_image = of_plane.divide(rest);
    return own_image * image + rest * kPiecePositions;
  }
};

/// Of a group's rows, where a piece lies.
FUSEDSC_DEVICE int place_of_piece(int row, int piece) { return row * kGroupBytes + ((piece ^ row) & 7) * 16; }

FUSEDSC_DEVICE void load_piece(const unsigned char* from, std::uint32_t (&to)[4]) {
  const auto run = load<4>(reinterpret_cast<const float*>(from));
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = round_to_tf32(run.words[i]);
}

}  // namespace fusedsc::gpu
