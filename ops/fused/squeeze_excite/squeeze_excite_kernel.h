/// Squeeze-and-excitation's passes on GPUs. The maps of one image are shared out as the depthwise kernels share their
/// work (item_work.h), in strips of one row; each thread keeps its channels, and goes from image to image.
#pragma once

#include "fusedsc/common/gpu/activation.h"
#include "fusedsc/common/gpu/sums/block_sums.h"
#include "fusedsc/common/gpu/tensors/positions.h"

namespace fusedsc::gpu {

struct MapsWork {
  ItemWork maps;  ///< of one image
  int images = 0;
  int image_blocks = 1;  ///< blocks that share the images out
  Divisor by_blocks;     ///< of one image

  std::int64_t blocks() const { return std::int64_t{image_blocks} * maps.blocks(); }
  /// Partial sums over all images: each block has its own, of its channels.
  int rows() const { return image_blocks * maps.splits; }
};

/// What a thread is to do.
struct MapsShare {
  int image;  ///< its first
  ItemShare in_image;

  FUSEDSC_DEVICE explicit MapsShare(const MapsWork& work)
      : image(static_cast<int>(work.by_blocks.quotient(block_index()))),
        in_image(work.maps,
                 block_index() - static_cast<unsigned>(image * work.maps.channel_blocks * work.maps.splits)) {}
  FUSEDSC_DEVICE int row(const MapsWork& work) const {
    return image * work.maps.splits + static_cast<int>(in_image.split);
  }
};

/// Some neighbouring columns of a row.
struct MapsStrip {
  int row, column, columns;

  FUSEDSC_DEVICE MapsStrip(const ItemWork& work, std::uint32_t item, int width, int most_columns) {
    const ItemStrip strip(work, item);
    row = strip.row;
    column = strip.column_group * most_columns;
    columns = least(width - column, most_columns);
  }
};

/// What all passes read.
struct ActivatedParameters {
  ConstDeviceTensor x;
  const void *scale = nullptr, *shift = nullptr;
  Activation activation = Activation::identity;
  int channels = 0, width = 0;
  bool join_columns = false;  ///< in all of the tensors that are as large as x
  MapsWork work;
};

/// The affine map of a thread's channels.
template <class T, int kChannels>
struct OwnAffine {
  using A = Accumulator<T>;
  A scale[kChannels], shift[kChannels];

  FUSEDSC_DEVICE OwnAffine(const ActivatedParameters& p, int channel) {
    load_channels(p.scale, channel, A(1), scale, A());
    load_channels(p.shift, channel, A(0), shift, A());
  }
  template <int kCount>
  FUSEDSC_DEVICE void apply(const A (&x)[kCount], A (&z)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) z[i] = x[i] * scale[i % kChannels] + shift[i % kChannels];
  }
};

struct MapSumsParameters : ActivatedParameters {
  ConstDeviceTensor factors;  ///< or none
  double weight = 1;
  DeviceTensor sums;         ///< of whole maps, where they are not split
  void* partials = nullptr;  ///< else: [split][image][channel]
};

template <class T, int kChannels, int kColumns>
FUSEDSC_DEVICE void map_sums(const MapSumsParameters& p) {
  using A = Accumulator<T>;
  constexpr int kCount = kColumns * kChannels;
  const ItemWork& maps = p.work.maps;
  const MapsShare of_all(p.work);
  const ItemShare& share = of_all.in_image;
  const int channel = share.channel(maps, kChannels), first_channel = share.first_channel(maps, kChannels);
  const bool idle = share.is_idle(maps, channel, p.channels);
  const OwnAffine<T, kChannels> affine(p, idle ? 0 : channel);
  const A weight = static_cast<A>(p.weight);

  for (int image = of_all.image; image < p.work.images; image += p.work.image_blocks) {
    A sums[kChannels] = {};
    for (std::uint32_t item = share.item; item < maps.items && !idle; item += share.step) {
      const MapsStrip strip(maps, item, p.width, kColumns);
      A z[kCount], factors[kCount];
      load_positions<T, kChannels, kColumns>(p.x, p.x.offset(image, channel, strip.row, strip.column), strip.columns,
                                             p.join_columns, z);
      if (p.factors.data != nullptr) {
        load_positions<T, kChannels, kColumns>(p.factors, p.factors.offset(image, channel, strip.row, strip.column),
                                               strip.columns, p.join_columns, factors);
      }
      affine.apply(z, z);
      activate(p.activation, z);
      if (p.factors.data != nullptr) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) z[i] *= factors[i];
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) sums[i % kChannels] += i / kChannels < strip.columns ? z[i] : A(0);
    }
    add_item_lanes<kChannels>(maps, share, sums, [&](int lane, int i, A total) {
      const int to = first_channel + lane * kChannels + i;
      if (to >= p.channels) return;
      total *= weight;
      if (p.partials == nullptr) return from_accumulator(total, elements_of<T>(p.sums)[p.sums.offset(image, to, 0, 0)]);
      const std::int64_t row = std::int64_t{share.split} * p.work.images + image;
      static_cast<A*>(p.partials)[row * p.channels + to] = total;
    });
  }
}

/// What a thread's channels have for each map of an image.
template <class T, int kChannels>
FUSEDSC_DEVICE void load_map_values(const ConstDeviceTensor& from, int image, int channel,
                                    Accumulator<T> (&to)[kChannels]) {
  load<kChannels>(elements_of<T>(from) + from.offset(image, channel, 0, 0)).widen(to);
}

struct ExciteParameters : ActivatedParameters {
  ConstDeviceTensor gate;
  DeviceTensor out;
};

template <class T, int kChannels, int kColumns>
FUSEDSC_DEVICE void excite(const ExciteParameters& p) {
  using A = Accumulator<T>;
  constexpr int kCount = kColumns * kChannels;
  const ItemWork& maps = p.work.maps;
  const MapsShare of_all(p.work);
  const ItemShare& share = of_all.in_image;
  const int channel = share.channel(maps, kChannels);
  if (share.is_idle(maps, channel, p.channels)) return;
  const OwnAffine<T, kChannels> affine(p, channel);

  for (int image = of_all.image; image < p.work.images; image += p.work.image_blocks) {
    A gate[kChannels];
    load_map_values<T, kChannels>(p.gate, image, channel, gate);
    for (std::uint32_t item = share.item; item < maps.items; item += share.step) {
      const MapsStrip strip(maps, item, p.width, kColumns);
      A z[kCount];
      load_positions<T, kChannels, kColumns>(p.x, p.x.offset(image, channel, strip.row, strip.column), strip.columns,
                                             p.join_columns, z);
      affine.apply(z, z);
      activate(p.activation, z);
#pragma unroll
      for (int i = 0; i < kCount; ++i) z[i] *= gate[i % kChannels];
      store_positions<T, kChannels, kColumns>(z, p.out, p.out.offset(image, channel, strip.row, strip.column),
                                              strip.columns, p.join_columns);
    }
  }
}

struct SqueezeBackwardParameters : ActivatedParameters {
  ConstDeviceTensor grad_out, gate, grad_mean;
  double mean_weight = 1;  ///< of a position
  DeviceTensor grad;       ///< may be grad_out
  const void* mean = nullptr;
  void* partials = nullptr;  ///< [row of the work][sum of g, of g*(x - mean)][channel]
};

template <class T, int kChannels, int kColumns>
FUSEDSC_DEVICE void squeeze_backward(const SqueezeBackwardParameters& p) {
  using A = Accumulator<T>;
  constexpr int kCount = kColumns * kChannels;
  const ItemWork& maps = p.work.maps;
  const MapsShare of_all(p.work);
  const ItemShare& share = of_all.in_image;
  const int channel = share.channel(maps, kChannels);
  const bool idle = share.is_idle(maps, channel, p.channels);
  const int safe_channel = idle ? 0 : channel;
  const OwnAffine<T, kChannels> affine(p, safe_channel);
  A mean[kChannels];
  load_channels(p.mean, safe_channel, A(0), mean, A());
  const A mean_weight = static_cast<A>(p.mean_weight);
  A sums[2 * kChannels] = {};  // of g, then of g*(x - mean)

  for (int image = of_all.image; image < p.work.images && !idle; image += p.work.image_blocks) {
    A gate[kChannels], offset[kChannels];
    load_map_values<T, kChannels>(p.gate, image, channel, gate);
    load_map_values<T, kChannels>(p.grad_mean, image, channel, offset);
#pragma unroll
    for (int i = 0; i < kChannels; ++i) offset[i] *= mean_weight;
    for (std::uint32_t item = share.item; item < maps.items; item += share.step) {
      const MapsStrip strip(maps, item, p.width, kColumns);
      A x[kCount], g[kCount], z[kCount];
      load_positions<T, kChannels, kColumns>(p.x, p.x.offset(image, channel, strip.row, strip.column), strip.columns,
                                             p.join_columns, x);
      load_positions<T, kChannels, kColumns>(p.grad_out, p.grad_out.offset(image, channel, strip.row, strip.column),
                                             strip.columns, p.join_columns, g);
      affine.apply(x, z);
#pragma unroll
      for (int i = 0; i < kCount; ++i) g[i] = g[i] * gate[i % kChannels] + offset[i % kChannels];
      activate_backward(p.activation, z, g);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const A added = i / kChannels < strip.columns ? g[i] : A(0);
        sums[i % kChannels] += added;
        sums[kChannels + i % kChannels] += added * (x[i] - mean[i % kChannels]);
      }
      store_positions<T, kChannels, kColumns>(g, p.grad, p.grad.offset(image, channel, strip.row, strip.column),
                                              strip.columns, p.join_columns);
    }
  }
  A* row = static_cast<A*>(p.partials) + std::int64_t{of_all.row(p.work)} * 2 * p.channels;
  const int first_channel = share.first_channel(maps, kChannels);
  add_item_lanes<2 * kChannels>(maps, share, sums, [&](int lane, int i, A total) {
    const int to = first_channel + lane * kChannels + i % kChannels;
    if (to < p.channels) row[i / kChannels * p.channels + to] = total;
  });
}

}  // namespace fusedsc::gpu
