/// The windows of a dense convolution with few input channels, as rows of a matrix product on GPUs: what of them lies
/// where in block memory. Channels are neighbours in memory, 16 bits each, so that a row of a window is one run of
/// elements. A run is read as words, of which each lane of a product has a few (wave_product.h).
#pragma once

#include "fusedsc/common/gpu/divisor.h"
#include "fusedsc/common/gpu/tensor.h"
#include "fusedsc/common/gpu/wave_transpose.h"
#include "fusedsc/common/problem.h"

namespace fusedsc::gpu {

inline constexpr int kConvWarps = 8, kConvThreads = 32 * kConvWarps;
inline constexpr int kMostPatchWords = 6;  ///< of a lane

/// A patch, the elements under a window, in the order of the product: word 4 * r + t is word r of lanes with l % 4 ==
/// t. Words may hold an element before the run or behind it, which a mask takes away.
struct PatchWords {
  std::int32_t places[4 * kMostPatchWords];    ///< of a word, counted from the patch's first
  std::uint32_t masks[4 * kMostPatchWords];    ///< of what is the patch's
  std::int32_t elements[8 * kMostPatchWords];  ///< of the weight's filter, where a half of a word finds its factor; or -1
};

/// Tiles of whole rows of the output, and the rows of x under them in block memory. Before and between the rows are
/// zeros, for what is left and right of the image.
struct ConvShape {
  ConstDeviceTensor x, weight;
  PatchWords patch;
  int channels = 0;  ///< of the output
  int groups = 1;    ///< of output channels; each belongs to a part of the warps
  int input_height = 0, output_height = 0, output_width = 0, padding_top = 0, stride_height = 1;
  int tile_rows = 1, input_rows = 1;    ///< of a tile
  int row_tiles = 1;                    ///< products, of 16 positions each, in a row of the output
  int row_runs = 1;                     ///< copies, of 16 bytes each, in a row of x
  int pitch = 0, gap = 0;               ///< of a row in block memory and of the zeros before it, in words
  int first_word = 0, position_step = 0;  ///< where the patches of a row begin, and how far apart they lie
  int stage_words = 0;
  std::uint32_t tiles = 0;
  Divisor tiles_of_image, by_row_runs, by_row_tiles;
  const void *mean = nullptr, *invstd = nullptr, *bn_weight = nullptr, *bn_bias = nullptr;
  Activation activation = Activation::identity;
};

/// Where a tile lies.
struct ConvTile {
  int image, row;

  FUSEDSC_DEVICE ConvTile(const ConvShape& p, std::uint32_t tile) {
    image = static_cast<int>(p.tiles_of_image.divide(tile));
    row = static_cast<int>(tile) * p.tile_rows;
  }
};

/// By all threads of the block: all of its memory is zero from now on.
FUSEDSC_DEVICE void clear_block_memory(int words) {
  auto* memory = static_cast<Aligned<std::uint32_t, 4>*>(block_memory());
  for (int i = thread_index(); i < words / 4; i += kConvThreads) memory[i] = {};
  block_barrier();
}

/// Starts copying the rows of x that a tile needs; rows outside of the image are zeros.
template <class T>
FUSEDSC_DEVICE void start_input_rows(const ConvShape& p, const ConvTile& tile, std::uint32_t* stage) {
  const int first = tile.row * p.stride_height - p.padding_top;
  const T* image = elements_of<T>(p.x) + tile.image * p.x.image;
  for (int i = thread_index(); i < p.input_rows * p.row_runs; i += kConvThreads) {
    std::uint32_t run = static_cast<std::uint32_t>(i);
    const int row = static_cast<int>(p.by_row_runs.divide(run)), from = first + row;
    start_copy<16>(stage + row * p.pitch + p.gap + 4 * run, image + from * p.x.row + 8 * run,
                   from >= 0 && from < p.input_height);
  }
}

/// Reads a lane's words of patches.
template <int kWords>
struct PatchReader {
  int places[kWords];
  std::uint32_t masks[kWords];

  FUSEDSC_DEVICE explicit PatchReader(const ConvShape& p) {
    const int lane = thread_index() % 32;
#pragma unroll
    for (int r = 0; r < kWords; ++r) {
      places[r] = p.first_word + lane / 4 * p.position_step + p.patch.places[4 * r + lane % 4];
      masks[r] = p.patch.masks[4 * r + lane % 4];
    }
  }

  /// Of position lane / 4 behind that which `row` is of.
  FUSEDSC_DEVICE void read(const std::uint32_t* row, std::uint32_t (&to)[kWords]) const {
#pragma unroll
    for (int r = 0; r < kWords; ++r) to[r] = row[places[r]] & masks[r];
  }
};

/// The factors of a lane's words: of filter `channel`, zero where there is none.
template <class T, int kWords>
FUSEDSC_DEVICE void read_filter(const ConvShape& p, int channel, std::uint32_t (&to)[kWords]) {
  const T* filter = elements_of<T>(p.weight) + channel * p.weight.image;
#pragma unroll
  for (int r = 0; r < kWords; ++r) {
    to[r] = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int element = p.patch.elements[8 * r + thread_index() % 4 * 2 + half];
      if (element >= 0 && channel < p.channels) to[r] |= std::uint32_t{filter[element].bits} << 16 * half;
    }
  }
}

/// vector[channel], or `otherwise` where there is no vector; 0 for channels that do not exist.
FUSEDSC_DEVICE float channel_value(const ConvShape& p, const void* vector, int channel, float otherwise) {
  if (channel >= p.channels) return 0;
  return vector != nullptr ? static_cast<const float*>(vector)[channel] : otherwise;
}

/// Calls work(stage of block memory, tile) for the block's tiles one after the other, while start(stage, tile) has the
/// copies of the next ones under way.
template <int kStages, class Start, class Work>
FUSEDSC_DEVICE void for_tiles(const ConvShape& p, const Start& start, const Work& work) {
  auto* memory = static_cast<std::uint32_t*>(block_memory());
  std::uint32_t ahead = block_index();
  int slot = 0, slot_ahead = 0;
  const auto start_next = [&] {
    if (ahead < p.tiles) start(memory + slot_ahead * p.stage_words, ConvTile(p, ahead));
    commit_copies();
    ahead += block_count();
    slot_ahead = slot_ahead + 1 == kStages ? 0 : slot_ahead + 1;
  };
#pragma unroll
  for (int i = 0; i + 1 < kStages; ++i) start_next();
  for (std::uint32_t tile = block_index(); tile < p.tiles; tile += block_count()) {
    wait_for_copies<kStages - 2>();
    block_barrier();
    start_next();
    work(memory + slot * p.stage_words, ConvTile(p, tile));
    slot = slot + 1 == kStages ? 0 : slot + 1;
  }
  wait_for_copies<0>();
  block_barrier();
}

}  // namespace fusedsc::gpu
