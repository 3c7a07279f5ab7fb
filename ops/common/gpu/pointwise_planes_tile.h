/// Tiles of contiguous tensors in the block memory of Hopper GPUs: up to 64 neighbouring positions of an image, of some
/// channels. Each channel has rows of 128 bytes, one of 64 positions of 16 bits, or two of 32 floats.
#pragma once

#include "fusedsc/common/gpu/divisor.h"
#include "fusedsc/common/gpu/pointwise_hopper.h"

namespace fusedsc::gpu::hopper {

/// How the copy engine sees contiguous tensors: its rows begin at multiples of 16 bytes, as not every plane does. So
/// each row is that of `together` neighbouring channels, and comes once for each of them, from where its plane begins.
struct PlanesPacking {
  int positions = 0;            ///< of a plane
  int together = 1, shift = 0;  ///< 2^shift
};

struct PlanesParameters : PointwiseParameters {
  PlanesPacking packing;
  Divisor tiles_of_image;
};

template <class T>
class PlanesTile {
 public:
  static constexpr int kSize = static_cast<int>(sizeof(T)), kHalves = kSize / 2;
  static constexpr int kColumns = kTileRows / kHalves;  ///< positions of a row
  static constexpr int kRowBytes = 128;

  /// `thread`: of the group of four warps, each of which has 16 of a product's 64 rows.
  FUSEDSC_DEVICE PlanesTile(const PlanesPacking& packing, int thread)
      : packing_(packing), thread_(thread), lane_(thread % 32), warp_(thread / 32) {}

  FUSEDSC_HOST_DEVICE static constexpr int bytes(int channels) { return channels * kHalves * kRowBytes; }
  /// Of a tile of inputs: with gaps, which move channels that lie together to other banks.
  FUSEDSC_HOST_DEVICE static constexpr int input_bytes(int channels, int together) {
    return bytes(channels) + (together == 1 ? 0 : kGap * kRowBytes);
  }

  /// Which of the 64 positions the thread's row of sums is, and that of the row 8 further. Rows of floats are spread
  /// such that reading them meets each bank once.
  FUSEDSC_DEVICE int position(int i) const {
    if constexpr (kSize == 2) return warp_ * 16 + i * 8 + lane_ / 4;
    else return warp_ / 2 * kColumns + column_of_float(i) ;
  }

  /// By one thread. Of the image's channels from `channel` on, a multiple of `channels`, as many as the map's tiles
  /// have together.
  FUSEDSC_DEVICE void start_load(unsigned char* tile, const TensorMap& map, int channel, int channels, int position,
                                 int image, Barrier* barrier) const {
    const int rows = rows_together(channels), half_bytes = half_rows(channels) * kRowBytes;
    for (int i = 0; i < packing_.together; ++i) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const ImagePlace place{position + i * packing_.positions + half * kColumns, channel >> packing_.shift, 0,
                               image};
        hopper::start_load(tile + half * half_bytes + i * rows * kRowBytes, map, place, barrier);
      }
    }
  }

  /// What a product takes of the values of k (channels of a tile of so many) from `k` on.
  FUSEDSC_DEVICE void load_rows(const unsigned char* tile, int channels, int k, std::uint32_t (&to)[4]) const {
    if constexpr (kSize == 2) {
      const int row = row_of(k + lane_ / 16 * 8 + lane_ % 8, channels);
      load_matrices<true>(tile + place_of_run<kRowBytes>(row, warp_ * 2 + lane_ / 8 % 2), to);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i] = to_tf32(*at(tile, channels, k + lane_ % 4 + i / 2 * 4, i % 2));
    }
  }

  /// As PairsOfTile: pairs of the 8 channels from `channel` on, then of the next 8.
  FUSEDSC_DEVICE void read(const unsigned char* tile, int channels, int channel, Pair<T> (&to)[4]) const {
    if constexpr (kSize == 2) {
      load_rows(tile, channels, channel, to);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int first = channel + i / 2 * 8 + lane_ % 4 * 2;
        to[i] = {{*at(tile, channels, first, i % 2), *at(tile, channels, first + 1, i % 2)}};
      }
    }
  }

  /// To a tile of outputs, likewise, which has no gaps.
  FUSEDSC_DEVICE void store(unsigned char* tile, int channels, int channel, const float (&values)[8]) const {
    if constexpr (kSize == 2) {
      std::uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = to_bits(values[2 * i], values[2 * i + 1], T());
      const int row = channel + lane_ / 16 * 8 + lane_ % 8;
      store_matrices<true>(tile + place_of_run<kRowBytes>(row, warp_ * 2 + lane_ / 8 % 2), words);
    } else {
      unsigned char* half = tile + warp_ / 2 * channels * kRowBytes;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int row = channel + i / 4 * 8 + lane_ % 4 * 2 + i % 2, column = column_of_float(i / 2 % 2);
        *reinterpret_cast<float*>(half + place_of_run<kRowBytes>(row, column / 4) + column % 4 * 4) = values[i];
      }
    }
  }

  /// By one thread: the tile of outputs, if planes begin at multiples of 16 bytes.
  FUSEDSC_DEVICE void start_store(const TensorMap& map, const unsigned char* tile, int channel, int channels,
                                  int position, int image) const {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int first = position + half * kColumns;
      if (first >= packing_.positions) break;
      hopper::start_store(map, {first, channel, 0, image}, tile + half * channels * kRowBytes);
    }
  }

  /// By all threads: of any planes. `to`: the place of the first position in the first of `count` channels, which is
  /// number `first` of the tile's.
  FUSEDSC_DEVICE void store_words(const unsigned char* tile, int channels, int first, int count, T* to,
                                  int position) const {
    const int positions = least(packing_.positions - position, kTileRows);
    if (packing_.together == 2) store_words<8>(tile, channels, first, count, to, positions);
    else if (packing_.together == 4) store_words<4>(tile, channels, first, count, to, positions);
    else store_words<kSize>(tile, channels, first, count, to, positions);
  }

 private:
  static constexpr int kGap = 8;  ///< rows, of all halves and channels that lie together

  FUSEDSC_DEVICE int rows_together(int channels) const {
    return packing_.together == 1 ? channels : (channels + kGap / kHalves) >> packing_.shift;
  }
  FUSEDSC_DEVICE int half_rows(int channels) const {
    return packing_.together == 1 ? channels : channels + kGap / kHalves;
  }
  FUSEDSC_DEVICE int row_of(int channel, int channels) const {
    if (packing_.together == 1) return channel;
    return (channel & (packing_.together - 1)) * rows_together(channels) + (channel >> packing_.shift);
  }

  FUSEDSC_DEVICE int column_of_float(int i) const { return warp_ % 2 * 8 + i * 4 + lane_ / 16 * 16 + lane_ / 4 % 4; }

  FUSEDSC_DEVICE const float* at(const unsigned char* tile, int channels, int channel, int i) const {
    const int row = warp_ / 2 * half_rows(channels) + row_of(channel, channels), column = column_of_float(i);
    return reinterpret_cast<const float*>(tile + place_of_run<kRowBytes>(row, column / 4) + column % 4 * 4);
  }

  template <int kBytes>
  FUSEDSC_DEVICE void store_words(const unsigned char* tile, int channels, int first, int count, T* to,
                                  int positions) const {
    using Word = Aligned<T, kBytes / kSize>;
    constexpr int kWords = kTileRows * kSize / kBytes, kOfWord = kBytes / kSize, kAtOnce = kGroupThreads / kWords;
    const int word = thread_ % kWords * kOfWord;
    if (word >= positions) return;
    const unsigned char* from = tile + word / kColumns * channels * kRowBytes;
    const int bytes = word % kColumns * kSize;
    to += word + static_cast<std::int64_t>(thread_ / kWords) * packing_.positions;
#pragma unroll 4
    for (int channel = thread_ / kWords; channel < count; channel += kAtOnce) {
      const int place = place_of_run<kRowBytes>(first + channel, bytes / 16) + bytes % 16;
      *reinterpret_cast<Word*>(to) = *reinterpret_cast<const Word*>(from + place);
      to += static_cast<std::int64_t>(kAtOnce) * packing_.positions;
    }
  }

  const PlanesPacking& packing_;
  int thread_, lane_, warp_;
};

}  // namespace fusedsc::gpu::hopper
