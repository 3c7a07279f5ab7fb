/// The host's side of Hopper's TMA.
#pragma once

#include "fusedsc/common/gpu/hopper/hopper.h"
#include "fusedsc/common/tensor_view.h"

namespace fusedsc::gpu::hopper {

/// Whether the current device is one.
bool is_hopper();

/// Describes a matrix of `rows` rows of `columns` neighbouring elements of 16 or 32 bits, in tiles, whose rows have 64
/// or 128 bytes.
TensorMap map_of(const void* data, DataType dtype, std::int64_t columns, std::int64_t rows, std::int64_t row_stride,
                 int tile_columns, int tile_rows);

/// Describes images (of 16 or 32-bit elements) whose channels are neighbours, in tiles of rows and columns of one or
/// more images. `swizzles`: runs of 16 bytes, as in tiles of a matrix.
TensorMap map_of_images(const ConstTensorView& images, int tile_channels, int tile_columns, int tile_rows,
                        int tile_images = 1, bool swizzles = false);

inline constexpr int kMostSegment = 256 * kRowUnit;  ///< bytes
/// The same of dense rows, of which a tile has so many bytes without regard to positions; in units of kRowUnit bytes.
TensorMap map_of_rows(const ConstTensorView& images, int tile_bytes, int tile_rows, int tile_images);

/// Whether positions of a row lie behind each other without gaps.
inline bool has_dense_rows(const ConstTensorView& images) {
  return images.sizes[3] == 1 || images.strides[3] == images.sizes[1];
}

/// Whether TMA can read and write them so.
bool suits_tma(const ConstTensorView& images);

/// Where a plan was made because an address was a multiple of so many bytes: throws InvalidArgument if another is not.
void check_alignment(const char* argument, const void* data, int bytes);

/// Of tiles under way in a block of such a kernel, as many as there is room for, and as are of any use.
template <class Instance>
int most_stages(const Instance& instance) {
  int stages = 8;
  while (stages > 0 && instance.memory(stages) > kMemoryLimit) --stages;
  return stages;
}

}  // namespace fusedsc::gpu::hopper
