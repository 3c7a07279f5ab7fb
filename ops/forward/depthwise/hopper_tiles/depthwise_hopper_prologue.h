/// The prologue of the depthwise forward kernel for Hopper GPUs: in place, once per element of a tile, rounded to 16
/// bits as a tensor between the operators would be.
#pragma once

#include "fusedsc/forward/depthwise/hopper_tiles/depthwise_hopper_parameters.h"

namespace fusedsc::gpu::hopper {

/// Of a warp's 8 channels.
template <class T>
class DepthwiseTilePrologue {
 public:
  int tile_place = 0, images = 1, run = 0;  ///< of the warp: where in a tile, how many images, which run of a box
  const float* coefficients = nullptr;      ///< scale, shift

  FUSEDSC_DEVICE explicit DepthwiseTilePrologue(const DepthwiseTilesParameters& p) : p_(p) {}

  /// The prologue, on the part of the tile that is inside of the image.
  FUSEDSC_DEVICE void apply(unsigned char* tile, int stride, const DepthwiseTileNote& at) const {
    if (p_.activation == Activation::relu6) {
      apply(
          tile, stride, at, [](float(&)[8]) {}, [](std::uint32_t pair) { return clamped_pair(pair, true, T()); });
    } else if (p_.activation == Activation::relu) {
      apply(
          tile, stride, at, [](float(&)[8]) {}, [](std::uint32_t pair) { return clamped_pair(pair, false, T()); });
    } else if (p_.activation == Activation::gelu) {
      apply_in_pairs(tile, stride, at);
    } else {
      apply(
          tile, stride, at, [&](float(&z)[8]) { activate_but_gelu(p_.activation, z); },
          [](std::uint32_t pair) { return pair; });
    }
  }
  /// The same for elements of neighbouring channels that were read from x; `first`: of the warp's channels.
  FUSEDSC_DEVICE void apply(float (&values)[2], int first) const {
#pragma unroll 1
    for (int v = 0; v < 2; ++v) {  // one at a time: rare, and registers are few
      float z[1] = {(v == 0 ? values[0] : values[1]) * coefficients[first + v] + coefficients[8 + first + v]};
      activate(p_.activation, z);
      (v == 0 ? values[0] : values[1]) = z[0];
    }
    to_floats(to_bits(values[0], values[1], T()), values[0], values[1], T());
  }

 private:
  /// Calls change(runs, inside) of every position that a thread changes, kBatch at a time: its eight elements, and
  /// whether they are inside of the image.
  template <int kBatch, class Change>
  FUSEDSC_DEVICE void visit(unsigned char* tile, int stride, const DepthwiseTileNote& at, const Change& change) const {
    const int lane = thread_index() % 32, row = at.input_row, column = at.column * stride - p_.padding_left;
    const int first = (row < 0 ? -row : 0) * p_.pitch, step = 32 % p_.pitch;
    const int last = least(p_.rows, p_.input_height - row) * p_.pitch;
    unsigned char* image_tile =
        tile + tile_place + swizzled_run(p_.box_bytes, run, lane) + (first + lane) * p_.box_bytes;
#pragma unroll 1
    for (int image = 0; image < images; ++image) {
      unsigned char* from = image_tile;
      int w = column + lane % p_.pitch;
#pragma unroll 1
      for (int position = first + lane; position < last; position += 32 * kBatch) {
        T* runs[kBatch];
        bool inside[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          inside[i] = position + 32 * i < last && static_cast<unsigned>(w) < static_cast<unsigned>(p_.input_width);
          runs[i] = reinterpret_cast<T*>(from + 32 * i * p_.box_bytes);
          w += step;
          if (w >= column + p_.pitch) w -= p_.pitch;
        }
        change(runs, inside);
        from += 32 * kBatch * p_.box_bytes;
      }
      image_tile += p_.rows * p_.pitch * p_.box_bytes;
    }
  }

  /// activate_all: eight elements; clamp: two that are rounded.
  template <class Activate, class Clamp>
  FUSEDSC_DEVICE void apply(unsigned char* tile, int stride, const DepthwiseTileNote& at, const Activate& activate_all,
                            const Clamp& clamp) const {
    float scale[8], shift[8];
#pragma unroll
    for (int v = 0; v < 8; ++v) {
      scale[v] = coefficients[v];
      shift[v] = coefficients[8 + v];
    }
    visit<2>(tile, stride, at, [&](T*(&runs)[2], bool(&inside)[2]) {
      Vector<T, 8> vectors[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (inside[i]) vectors[i] = load<8>(static_cast<const T*>(runs[i]));
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float z[8];
        vectors[i].widen(z);
#pragma unroll
        for (int v = 0; v < 8; ++v) z[v] = z[v] * scale[v] + shift[v];
        activate_all(z);
        Aligned<std::uint32_t, 4> words;
#pragma unroll
        for (int j = 0; j < 4; ++j) words.elements[j] = clamp(to_bits(z[2 * j], z[2 * j + 1], T()));
        if (inside[i]) *reinterpret_cast<Aligned<std::uint32_t, 4>*>(runs[i]) = words;
      }
    });
  }
  /// GELU: two elements at a time, as eight of it take more registers than there are beside the products' operands.
  FUSEDSC_DEVICE void apply_in_pairs(unsigned char* tile, int stride, const DepthwiseTileNote& at) const {
    visit<1>(tile, stride, at, [&](T*(&runs)[1], bool(&inside)[1]) {
      if (!inside[0]) return;
#pragma unroll 1
      for (int first = 0; first < 8; first += 2) {
        float z[2];
        load<2>(static_cast<const T*>(runs[0] + first)).widen(z);
#pragma unroll
        for (int v = 0; v < 2; ++v) z[v] = z[v] * coefficients[first + v] + coefficients[8 + first + v];
        gelu(z);
        *reinterpret_cast<std::uint32_t*>(runs[0] + first) = to_bits(z[0], z[1], T());
      }
    });
  }

  const DepthwiseTilesParameters& p_;
};

}  // namespace fusedsc::gpu::hopper
