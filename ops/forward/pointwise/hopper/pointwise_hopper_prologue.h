/// Pointwise products on Hopper GPUs: what a launch is told, and what is done to activations between shared memory and
/// the product, which passes floats through registers to round them.
#pragma once

#include "fusedsc/common/gpu/products/wave_product.h"
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_epilogue.h"
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_thread_copied.h"

namespace fusedsc::gpu::hopper {

inline constexpr int kTileRows = 64;  ///< positions that come at a time
inline constexpr int kGroupThreads = 128;

/// Of a tile with so many channels in all: rows of 128 bytes if that divides them, else of 64.
template <class T>
FUSEDSC_HOST_DEVICE constexpr int columns_of_tile(int channels) {
  constexpr int kWhole = 128 / static_cast<int>(sizeof(T));
  return channels % kWhole == 0 ? kWhole : kWhole / 2;
}

/// What the shared memory of a kernel depends on.
struct PointwiseMemoryUse {
  int depth, channels;
  bool has_other, has_x, has_added;
  bool lays_out = false;  ///< threads lay the weight out, all of it at once
};

struct PointwiseParameters {
  TensorMap activations, other, weight, output, x, added;  ///< x and added: of the epilogue
  // The same without a description, where a tile is one run of bytes.
  const void *activations_rows = nullptr, *added_rows = nullptr;
  void* output_rows = nullptr;
  WeightSource source;                  ///< of a weight that threads lay out; no data: TMA brings it
  bool smem_transposes_weight = false;  ///< of float32: it comes with its channels innermost
  bool rounds_weight = false;           ///< of float32: as TMA brings it, it is no TensorFloat-32 yet
  // What the kernel before this one makes, which has waited for whatever made the rest: that may be read before.
  bool weight_is_new = false, prologue_is_new = false;
  int pixels = 0, depth = 0, channels = 0;
  int pixel_tiles = 0, channel_tiles = 1, splits = 1;  ///< splits: blocks that share the positions
  int stages = 2;                                      ///< tiles of positions that each group has under way
  int cluster = 1;                                     ///< blocks side by side that share the k of a tile
  // Of the activations: activation(scale*a + other_scale*other + shift).
  const float *scale = nullptr, *shift = nullptr, *other_scale = nullptr;
  Activation activation = Activation::identity;
  bool has_other = false;
  EpilogueParameters epilogue;

  FUSEDSC_DEVICE bool has_old_activations() const { return weight_is_new || prologue_is_new; }
  FUSEDSC_DEVICE bool has_old_weight() const { return prologue_is_new && !weight_is_new; }
};

/// By a thread of a block, while the kernel before may still run: descriptions that TMA would wait for.
FUSEDSC_DEVICE void prefetch_maps(const PointwiseParameters& p) {
  prefetch(p.activations);
  prefetch(p.weight);
  prefetch(p.output);
}

/// Of values that no prologue changes: floats become TensorFloat-32. A prologue reads them as they are, since what it
/// all but cancels would be lost by rounding before it, and rounds what it makes.
template <class T, int kPieces>
FUSEDSC_DEVICE void round_pieces(std::uint32_t (&pieces)[kPieces][4]) {
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
      for (int i = 0; i < 4; ++i) pieces[piece][i] = to_tf32(__builtin_bit_cast(float, pieces[piece][i]));
    }
  }
}

/// activation(scale*a + shift), or with kHasOther scale*a + other_scale*other + shift, on what a thread holds of
/// activations, for values of k up to `size`.
template <class T, bool kHasOther>
class PointwisePrologue {
 public:
  static constexpr int kVectors = kHasOther ? 3 : 2;  ///< of `size` numbers in shared memory

  FUSEDSC_DEVICE PointwisePrologue(const PointwiseParameters& p, float* memory, int size)
      : p_(p), coefficients_(memory), size_(size) {}

  /// By so many threads of a block. 0 beyond the end of k, so that what is multiplied there is activation(0) = 0.
  FUSEDSC_DEVICE void read(int thread, int threads) const {
    constexpr int kAtOnce = 4;  // whose loads are under way together
#pragma unroll 1
    for (int first = thread; first < size_; first += kAtOnce * threads) {
      float scale[kAtOnce], shift[kAtOnce], other_scale[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int k = first + i * threads;
        const bool has = k < p_.depth;
        scale[i] = !has ? 0.0f : p_.scale != nullptr ? p_.scale[k] : 1.0f;
        shift[i] = has && p_.shift != nullptr ? p_.shift[k] : 0.0f;
        if constexpr (kHasOther) other_scale[i] = has && p_.other_scale != nullptr ? p_.other_scale[k] : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int k = first + i * threads;
        if (k >= size_) break;
        coefficients_[k] = scale[i];
        coefficients_[size_ + k] = shift[i];
        if constexpr (kHasOther) coefficients_[2 * size_ + k] = other_scale[i];
      }
    }
  }

  /// Values of k that a product takes.
  static constexpr int kPiece = 32 / static_cast<int>(sizeof(T));

  /// use(change), where change(words, others, k) maps and activates pieces of so many values of k from `k` on, two
  /// rows, as load_matrices brings them to lanes: in the first two words values of the first half, in the others of the
  /// second. Floats become TensorFloat-32. All pieces at once, and the activation is asked for out here, so that
  /// latencies overlap and products may run on beside them.
  template <class Use>
  FUSEDSC_DEVICE void with_change(const Use& use) const {
    const auto nothing = [](float(&)[kValues]) {};
    const auto same = [](std::uint32_t word) { return word; };
    if constexpr (kHasOther) {
      use([&](auto& words, const auto& others, int k) { change_each(words, others, k, nothing, same); });
    } else if (p_.activation == Activation::relu || p_.activation == Activation::relu6) {
      const bool to_six = p_.activation == Activation::relu6;
      if constexpr (sizeof(T) == 2) {
        // Rounding keeps the order, and both bounds: clamped pairs are the same, for half the instructions.
        use([&](auto& words, const auto& others, int k) {
          change_each(words, others, k, nothing, [&](std::uint32_t word) { return clamped_pair(word, to_six, T()); });
        });
      } else {
        const float high = to_six ? 6.0f : __builtin_huge_valf();
        const auto clamp = [&](float(&z)[kValues]) {
#pragma unroll
          for (int i = 0; i < kValues; ++i) z[i] = clamped(z[i], 0.0f, high);
        };
        use([&](auto& words, const auto& others, int k) { change_each(words, others, k, clamp, same); });
      }
    } else {
      const auto activate_all = [&](float(&z)[kValues]) { activate(p_.activation, z); };
      use([&](auto& words, const auto& others, int k) { change_each(words, others, k, activate_all, same); });
    }
  }

  template <int kPieces>
  FUSEDSC_DEVICE void change(std::uint32_t (&words)[kPieces][4], const std::uint32_t (&others)[kPieces][4],
                             int k) const {
    with_change([&](const auto& change) { change(words, others, k); });
  }

 private:
  static constexpr int kOfWord = 4 / static_cast<int>(sizeof(T)), kValues = 4 * kOfWord;
  /// Of the values of k in a word.
  using Coefficients = Aligned<float, kOfWord>;

  template <int kPieces, class Before, class After>
  FUSEDSC_DEVICE void change_each(std::uint32_t (&words)[kPieces][4], const std::uint32_t (&others)[kPieces][4], int k,
                                  const Before& before, const After& after) const {
    k += thread_index() % 4 * kOfWord;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      float z[kValues];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* coefficients = coefficients_ + k + piece * kPiece + half * (kPiece / 2);
        const Coefficients scale = read(coefficients), shift = read(coefficients + size_);
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          widen(words[piece][i], z + i * kOfWord);
#pragma unroll
          for (int j = 0; j < kOfWord; ++j) {
            z[i * kOfWord + j] = z[i * kOfWord + j] * scale.elements[j] + shift.elements[j];
          }
        }
        if constexpr (kHasOther) {
          const Coefficients other_scale = read(coefficients + 2 * size_);
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            float other[kOfWord];
            widen(others[piece][i], other);
#pragma unroll
            for (int j = 0; j < kOfWord; ++j) z[i * kOfWord + j] += other[j] * other_scale.elements[j];
          }
        }
      }
      before(z);
#pragma unroll
      for (int i = 0; i < 4; ++i) words[piece][i] = after(narrow(z + i * kOfWord));
    }
  }

  FUSEDSC_DEVICE static Coefficients read(const float* from) { return *reinterpret_cast<const Coefficients*>(from); }
  FUSEDSC_DEVICE static void widen(std::uint32_t word, float* to) {
    if constexpr (sizeof(T) == 2) to_floats(word, to[0], to[1], T());
    else to[0] = __builtin_bit_cast(float, word);
  }
  FUSEDSC_DEVICE static std::uint32_t narrow(const float* from) {
    if constexpr (sizeof(T) == 2) return to_bits(from[0], from[1], T());
    else return to_tf32(from[0]);
  }

  const PointwiseParameters& p_;
  float* coefficients_;
  int size_;
};

}  // namespace fusedsc::gpu::hopper
