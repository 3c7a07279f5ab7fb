/// The backward pass of conv_bn_act, on GPUs with products of matrices by waves: one pass over x and grad_y. With g =
/// grad_y * activation'(.), d the raw output less its mean, X the patches and N positions, BatchNorm's backward is
///   grad_weight = scale * (sum g X - sum g / N * sum X - sum g d / N * invstd^2 * sum d X),
///   sum d X = W * sum X X - mean * sum X,
/// so that nothing of the raw output's gradient but these sums is needed, and they need not know of each other. A patch
/// has a 1 behind its last element: sum g and sum X are among the others. The raw output is computed again.
#pragma once

#include "fusedsc/common/gpu/activation.h"
#include "fusedsc/common/gpu/sums/item_work.h"
#include "fusedsc/common/gpu/sums/keep_order.h"
#include "fusedsc/fused/conv_bn_act/conv_bn_act_patches.h"

namespace fusedsc::gpu {

struct ConvBackwardParameters {
  ConvShape shape;
  ConstDeviceTensor grad_y;
  int grad_runs = 1;         ///< copies, of 16 bytes each, of a position of grad_y
  int grad_pitch = 4;        ///< of a position in shared memory, in words: an odd number of runs, on different banks
  int grad_begin = 0;        ///< in a stage, in words
  int product_words = 0;     ///< from the gradients of a product to those of the next
  int copied_positions = 1;  ///< by a warp at a time
  Divisor by_grad_runs;
  float* partials = nullptr;  ///< [split]{[channel]{sum g X, sum g, sum g d}, [element] sum X X}
};

/// Of one channel's partial results, with patches of so many elements.
FUSEDSC_HOST_DEVICE constexpr int conv_columns(int taps) { return taps + 2; }
/// Of a split, for so many channels.
FUSEDSC_HOST_DEVICE constexpr int conv_partials(int taps, int channels) {
  return channels * conv_columns(taps) + taps * taps;
}

/// kSquares: of sum X X, of which each group has its share, so many rows of 16 elements.
template <class T, int kWords, int kStep, int kStages, int kSquares>
class ConvBackward {
 public:
  using Format = PatchFormat<T>;
  static constexpr int kElements = Format::kElements, kShare = Format::kShare;
  static constexpr int kGroupChannels = 16, kTaps = 4 * kElements * kWords, kColumns = conv_columns(kTaps);
  static constexpr int kTiles = kTaps / 8;   ///< of a product's columns
  static constexpr int kEights = kElements;  ///< of positions, that products sum over at a time

  FUSEDSC_DEVICE static void run(const ConvBackwardParameters& parameters) { ConvBackward(parameters).work(); }

 private:
  FUSEDSC_DEVICE explicit ConvBackward(const ConvBackwardParameters& parameters)
      : q_(parameters),
        p_(parameters.shape),
        turn_(parameters.shape),
        first_word_(turn_.group * kShare * kSquares % kWords),
        has_squares_(turn_.group * kShare * kSquares < kWords),
        patches_(parameters.shape, first_word_) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int channel = turn_.group * kGroupChannels + lane() / 4 + 8 * i;
      read_filter<T>(p_, channel, first_word_, filters_[i]);
      minus_mean_[i] = -channel_value(p_, p_.mean, channel, 0);
      scale_[i] = channel_value(p_, p_.invstd, channel, 1) * channel_value(p_, p_.bn_weight, channel, 1);
      bias_[i] = channel_value(p_, p_.bn_bias, channel, 0) - (is_relu6() ? 3.0f : 0.0f);
    }
    if constexpr (kElements == 1) place_tiles();
  }

  FUSEDSC_DEVICE void work() {
    clear_shared_memory(kStages * p_.stage_words);
    for_tiles<kStages>(
        p_,
        [&](std::uint32_t* stage, const ConvTile& tile) {
          start_input_rows<T>(p_, tile, stage);
          start_gradients(tile, stage + q_.grad_begin);
        },
        [&](const std::uint32_t* stage, const ConvTile& tile) {
          const std::uint32_t* gradients = stage + q_.grad_begin + gradient_place();
          turn_.for_products(p_, tile, [&](const ConvTurn::Place& place) {
            const int columns = place.product == p_.partial_product ? p_.partial_columns : 16;
#pragma unroll 1
            for (int h = 0; h < 2; h += kEights) {
              add_product(stage + place.words + h * 8 * step(),
                          gradients + place.index * q_.product_words + h * 8 * q_.grad_pitch, columns - 8 * h);
            }
          });
        });
    leave();
  }

  /// The positions of a product each warp, some of them at a time; zeros where there are none.
  FUSEDSC_DEVICE void start_gradients(const ConvTile& tile, std::uint32_t* stage) const {
    auto run = static_cast<std::uint32_t>(lane_here());
    const auto first = static_cast<int>(q_.by_grad_runs.divide(run));
    const T* image = elements_of<T>(q_.grad_y) + tile.image * q_.grad_y.image + Format::kRun * static_cast<int>(run);
    int row = 0, product = thread_index() / 32;
    while (true) {
      for (; product >= p_.row_tiles; product -= p_.row_tiles) ++row;
      if (row >= p_.tile_rows) return;
      const bool row_exists = tile.row + row < p_.output_height;
      const T* from = image + (tile.row + row) * q_.grad_y.row + (16 * product + first) * q_.grad_y.column;
      std::uint32_t* to =
          stage + (16 * (row * p_.row_tiles + product) + first) * q_.grad_pitch + 4 * static_cast<int>(run);
      for (int position = first; position < 16; position += q_.copied_positions) {
        if (first < q_.copied_positions) {
          start_copy<16>(to, from, row_exists && 16 * product + position < p_.output_width);
        }
        from += q_.copied_positions * q_.grad_y.column;
        to += q_.copied_positions * q_.grad_pitch;
      }
      product += kConvWarps;
    }
  }

  /// Worked out for each tile: registers that wait for the next one through all products are spilled.
  FUSEDSC_DEVICE static int lane_here() {
    auto thread = static_cast<std::uint32_t>(thread_index());
    hide_origin(thread);
    return static_cast<int>(thread % 32);
  }
  /// Of the lane's gradients in a product's, in words.
  FUSEDSC_DEVICE int gradient_place() const {
    const int lane = lane_here();
    if constexpr (kElements == 1) return lane % 4 * 2 * q_.grad_pitch + turn_.group * kGroupChannels + lane / 4;
    return (lane / 16 * 8 + lane % 8) * q_.grad_pitch + turn_.group * 8 + lane / 8 % 2 * 4;
  }

  FUSEDSC_DEVICE static int lane() { return thread_index() % 32; }
  FUSEDSC_DEVICE int step() const { return kStep > 0 ? kStep : p_.position_step; }

  /// 8 or 16 positions, of which the row has `columns`.
  FUSEDSC_DEVICE void add_product(const std::uint32_t* patches, const std::uint32_t* gradients, int columns) {
    std::uint32_t x[kEights][kWords];
    patches_.read(patches, x);
    if (columns < 8 * kEights) {
#pragma unroll
      for (int h = 0; h < kEights; ++h) {
#pragma unroll
        for (int r = 0; r < kWords; ++r) x[h][r] = lane() / 4 + 8 * h < columns ? x[h][r] : 0u;
      }
    }
    float g[4 * kEights];  // as d
    read_gradients(gradients, g);

    float d[4 * kEights];  // of 8 positions each: two positions of channel l / 4, the same of channel l / 4 + 8
#pragma unroll
    for (int h = 0; h < kEights; ++h) {
      float sums[4] = {minus_mean_[0], minus_mean_[0], minus_mean_[1], minus_mean_[1]};
#pragma unroll
      for (int s = 0; s < kWords; s += 2) {
        wave_multiply_add(
            sums, {{filters_[0][s], filters_[1][s], filters_[0][s + 1], filters_[1][s + 1]}, {x[h][s], x[h][s + 1]}},
            T());
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) d[4 * h + i] = sums[i];
    }
    Factors transposed_x[kTiles];
    transpose_patches(x, patches, columns, transposed_x);
    if (has_squares_) {
#pragma unroll
      for (int i = 0; i < kSquares; ++i) {
#pragma unroll
        for (int r = 0; r < kTiles; ++r) {
          add_over_positions(sum_xx_[i][r], transposed_x[2 * i], transposed_x[2 * i + 1], transposed_x[r]);
        }
      }
    }

    float z[4 * kEights];
#pragma unroll
    for (int i = 0; i < 4 * kEights; ++i) z[i] = d[i] * scale_[i / 2 % 2] + bias_[i / 2 % 2];
    if (is_relu6()) {  // z is less 3
#pragma unroll
      for (int i = 0; i < 4 * kEights; ++i) g[i] = __builtin_fabsf(z[i]) < 3 ? g[i] : 0.0f;
    } else if (p_.clamps) {
#pragma unroll
      for (int i = 0; i < 4 * kEights; ++i) g[i] = z[i] > p_.low ? g[i] : 0.0f;
    } else {
      activate_backward(p_.activation, z, g);
    }
    if (rounds_gradients()) {
#pragma unroll
      for (int i = 0; i < 4 * kEights; ++i) sum_g_[i / 2 % 2] += g[i];
    }
    Factors g_rows[2];  // of channels l / 4 and l / 4 + 8
#pragma unroll
    for (int i = 0; i < 4 * kEights; ++i) {
      sum_gd_[i / 2 % 2] += g[i] * d[i];
      if constexpr (kElements == 1) g_rows[i / 2][i % 2] = to_tf32(g[i]);
      else if (i % 2 == 1) g_rows[i / 2 % 2][i / 4] = to_bits(g[i - 1], g[i], T());
    }
#pragma unroll
    for (int r = 0; r < kTiles; ++r) add_over_positions(sum_gx_[r], g_rows[0], g_rows[1], transposed_x[r]);
  }

  /// Of one element (or channel): two words of the positions that a lane has in all products.
  using Factors = std::uint32_t[2];

  /// sums += rows of (low, high) times columns.
  FUSEDSC_DEVICE static void add_over_positions(float (&sums)[4], const Factors& low, const Factors& high,
                                                const Factors& column) {
    wave_multiply_add(sums, {{low[0], high[0], low[1], high[1]}, {column[0], column[1]}}, T());
  }

  /// Two positions of channel l / 4, the same of channel l / 4 + 8; then of the next 8 positions.
  FUSEDSC_DEVICE void read_gradients(const std::uint32_t* from, float (&g)[4 * kEights]) const {
    if constexpr (kElements == 2) {
      std::uint32_t words[4];
      load_transposed(from, words, T());
#pragma unroll
      for (int r = 0; r < 4; ++r) to_floats(words[r], g[2 * r], g[2 * r + 1], T());
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) g[i] = __builtin_bit_cast(float, from[i % 2 * q_.grad_pitch + i / 2 * 8]);
    }
  }

  /// Of tiles of 8 elements: the positions of element l / 4.
  FUSEDSC_DEVICE void transpose_patches(const std::uint32_t (&x)[kEights][kWords], const std::uint32_t* patches,
                                        int columns, Factors (&to)[kTiles]) const {
    if constexpr (kElements == 2) {
#pragma unroll
      for (int i = 0; i < 2 * kTiles; ++i) to[i / 2][i % 2] = transposed(x[i % 2][i / 2], T());
    } else {  // read once more, as lanes need them
#pragma unroll
      for (int r = 0; r < kTiles; ++r) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          std::uint32_t word = patches[tile_places_[r] + i * step()];
          if (kStep == 0 || r % 2 == 1) word &= tile_masks_[r];
          // The 1; where else the last element of an odd tile is none, its sums go nowhere.
          if (r % 2 == 1 && lane() / 4 == 7 && tile_masks_[r] == 0) word = patches_.one();
          if (columns < 8) word = lane() % 4 * 2 + i < columns ? word : 0u;
          to[r][i] = to_tf32(__builtin_bit_cast(float, word));
        }
      }
    }
  }

  FUSEDSC_DEVICE void place_tiles() {
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
      const int word = (first_word_ + 2 * r + lane() / 16) % kWords, slot = 4 * word + lane() / 4 % 4;
      tile_places_[r] = p_.first_word + lane() % 4 * 2 * step() + p_.patch.places[slot];
      tile_masks_[r] = p_.patch.masks[slot];
    }
  }

  FUSEDSC_DEVICE bool is_relu6() const { return p_.activation == Activation::relu6; }
  /// Before they are multiplied: then their sum comes from elsewhere.
  FUSEDSC_DEVICE bool rounds_gradients() const { return kElements == 1 || !p_.clamps; }

  /// The element of a patch that sums of tile r and of the lane's element j of it belong to.
  FUSEDSC_DEVICE int element_of(int r, int j) const {
    return (first_word_ * kElements / 2 + r) % kTiles * 8 + lane() % 4 * 2 + j;
  }

  /// The block's sums: each warp of a group adds its own to those of the warps before it.
  FUSEDSC_DEVICE void leave() {
    float* memory = static_cast<float*>(shared_memory());  // [channel]{...}, [element] sum X X
    float* squares = memory + p_.groups * kGroupChannels * kColumns;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int distance = 1; distance < 4; distance *= 2) {
        sum_g_[i] += shuffle_xor(sum_g_[i], distance);
        sum_gd_[i] += shuffle_xor(sum_gd_[i], distance);
      }
    }
    for (int turn = 0; turn < p_.group_warps; ++turn) {
      if (turn_.first == turn && turn_.group < p_.groups) {
        const auto add = [&](float& to, float value) { to = turn == 0 ? value : to + value; };
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float* row = memory + (turn_.group * kGroupChannels + lane() / 4 + 8 * i) * kColumns;
#pragma unroll
          for (int r = 0; r < kTiles; ++r) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
              const int element = element_of(r, j);
              add(row[element], sum_gx_[r][2 * i + j]);
              if (element == kTaps - kElements && !rounds_gradients()) {  // g times the 1
                add(row[kTaps], sum_gx_[r][2 * i + j]);
              }
            }
          }
          if (lane() % 4 == 0) {
            if (rounds_gradients()) add(row[kTaps], sum_g_[i]);
            add(row[kTaps + 1], sum_gd_[i]);
          }
        }
#pragma unroll
        for (int s = 0; s < kSquares; ++s) {
          const int first_row = (turn_.group * kSquares + s) * 16 + lane() / 4;
          if (first_row >= kTaps) continue;
#pragma unroll
          for (int r = 0; r < kTiles; ++r) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              add(squares[(first_row + i / 2 * 8) * kTaps + element_of(r, i % 2)], sum_xx_[s][r][i]);
            }
          }
        }
      }
      block_barrier();
    }
    const int own = p_.channels * kColumns, size = conv_partials(kTaps, p_.channels);
    float* to = q_.partials + static_cast<std::int64_t>(block_index()) * size;
    for (int i = thread_index(); i < size; i += kConvThreads) to[i] = i < own ? memory[i] : squares[i - own];
  }

  const ConvBackwardParameters& q_;
  const ConvShape& p_;
  const ConvTurn turn_;
  const int first_word_;
  const bool has_squares_;
  const PatchReader<T, kWords, kStep, true> patches_;
  std::uint32_t filters_[2][kWords];
  float minus_mean_[2], scale_[2], bias_[2];
  int tile_places_[kTiles];  ///< of float32, whose lanes read patches twice
  std::uint32_t tile_masks_[kTiles];
  float sum_gx_[kTiles][4] = {};  ///< of channels l / 4 and l / 4 + 8
  float sum_xx_[kSquares][kTiles][4] = {};
  float sum_g_[2] = {}, sum_gd_[2] = {};  ///< the former where g is rounded
};

// ------------------------------------------------------------------------------------------------------ second passes

inline constexpr int kConvSumThreads = 1024;

struct ConvSumParameters {
  const float* partials = nullptr;
  int splits = 0, size = 0;
  double* sums = nullptr;
};

/// Sums over the splits: 32 neighbouring ones to a block, each shared by 32 threads.
FUSEDSC_DEVICE void conv_sum(const ConvSumParameters& p) {
  constexpr int kShares = kConvSumThreads / 32;
  const int element = static_cast<int>(block_index()) * 32 + thread_index() % 32, share = thread_index() / 32;
  double* memory = static_cast<double*>(shared_memory());
  double sum = 0;
  if (element < p.size) {
    const float* from = p.partials + element;
#pragma unroll 8
    for (int split = share; split < p.splits; split += kShares) sum += from[static_cast<std::int64_t>(split) * p.size];
  }
  memory[thread_index()] = sum;
  block_barrier();
  if (share != 0 || element >= p.size) return;
  for (int s = 1; s < kShares; ++s) sum += memory[32 * s + thread_index()];
  p.sums[element] = sum;
}

inline constexpr int kConvGradientThreads = 64;
static_assert(kConvGradientThreads >= 8 * kMostPatchWords);  // more than a patch has elements

struct ConvGradientParameters {
  const double* sums = nullptr;         ///< as ConvBackward's partials, added up
  int channels = 0, taps = 0, one = 0;  ///< one: the element of a patch that is always 1
  double inverse_count = 0;             ///< 0 in eval mode: the statistics are constants, and the sums have no part
  const void *bn_weight = nullptr, *mean = nullptr, *invstd = nullptr;
  ConstDeviceTensor weight;
  std::int32_t elements[8 * kMostPatchWords];       ///< as PatchWords has them
  std::int32_t grad_elements[8 * kMostPatchWords];  ///< the same of grad_weight
  DeviceTensor grad_weight;
  void *grad_bn_weight = nullptr, *grad_bn_bias = nullptr;
};

/// An element of a filter as products have it.
template <class T>
FUSEDSC_DEVICE float factor_of(T element) {
  if constexpr (sizeof(T) == 2) return to_accumulator(element);
  else return rounded_to_tf32(element);
}

/// A block per channel, a thread per element.
template <class T>
FUSEDSC_DEVICE void conv_gradient(const ConvGradientParameters& p) {
  const int channel = static_cast<int>(block_index()), k = thread_index(), taps = p.taps;
  const double* sums = p.sums + channel * conv_columns(taps);
  const double* squares = p.sums + p.channels * conv_columns(taps);
  const double sum_g = sums[taps], sum_gd = sums[taps + 1];
  const double mean = static_cast<const float*>(p.mean)[channel], invstd = static_cast<const float*>(p.invstd)[channel];
  if (k == 0) {
    if (p.grad_bn_weight != nullptr)
      static_cast<float*>(p.grad_bn_weight)[channel] = static_cast<float>(sum_gd * invstd);
    if (p.grad_bn_bias != nullptr) static_cast<float*>(p.grad_bn_bias)[channel] = static_cast<float>(sum_g);
  }
  if (p.grad_weight.data == nullptr || k >= taps || p.grad_elements[k] < 0) return;
  const T* filter = elements_of<T>(p.weight) + channel * p.weight.image;
  double centred = sums[k];
  if (p.inverse_count > 0) {
    const double sum_x = squares[p.one * taps + k];
    double sum_dx = -mean * sum_x;
    for (int j = 0; j < taps; ++j) {
      if (p.elements[j] >= 0) sum_dx += static_cast<double>(factor_of(filter[p.elements[j]])) * squares[j * taps + k];
    }
    centred -= p.inverse_count * (sum_g * sum_x + sum_gd * invstd * invstd * sum_dx);
  }
  const double weight = p.bn_weight != nullptr ? static_cast<const float*>(p.bn_weight)[channel] : 1.0f;
  const double gradient = weight * invstd * centred;
  from_accumulator(static_cast<float>(gradient),
                   elements_of<T>(p.grad_weight)[channel * p.grad_weight.image + p.grad_elements[k]]);
}

}  // namespace fusedsc::gpu
