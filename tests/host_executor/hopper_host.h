/// What ops/common/gpu/hopper/hopper.h is for Hopper GPUs, on the host executor: copies are done when they are started,
/// products when they are asked for, element by element, by the same descriptions and the same swizzle of runs.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>

#include "fusedsc/common/gpu/tensors/vector.h"
#include "host_executor/executor.h"

#define FUSEDSC_HOPPER_KERNEL(threads) void
#define FUSEDSC_GRID_CONSTANT

namespace fusedsc::gpu::hopper {

/// TMA's description of a matrix, in tiles; or of images, whose channels and columns are the matrix's
/// columns and rows. Elements of 32 bits are counted as two.
struct TensorMap {
  std::uint16_t* data = nullptr;
  std::int64_t columns = 0, rows = 0, row_stride = 0;
  int tile_columns = 0, tile_rows = 0;
  std::int64_t image_rows = 0, image_row_stride = 0, images = 0, image_stride = 0;
  int tile_image_rows = 0, tile_images = 1;
  bool swizzles = false;
  int halves = 1;  ///< of an element; all of the above counts these
};

inline constexpr int kMemoryLimit = 227 * 1024;
inline constexpr int kRowUnit = 8;

/// From the beginning of shared memory, which is what runs are swizzled by.
inline std::uint32_t address_of(const void* memory) {
  return static_cast<std::uint32_t>(static_cast<const unsigned char*>(memory) -
                                    static_cast<const unsigned char*>(executor::shared_memory()));
}
inline unsigned char* memory_at(std::uint32_t address) {
  return static_cast<unsigned char*>(executor::shared_memory()) + address;
}
/// Where the hardware puts what belongs to `address` of a tile with rows of so many bytes.
inline std::uint32_t swizzled(std::uint32_t address, int row_bytes) {
  return address ^ (address >> 7 & (row_bytes == 128 ? 7u : 3u)) << 4;
}

template <class T>
T uniform(T value) {
  return value;
}
template <bool kMore, int kRegisters>
void set_registers() {}
inline void warp_barrier() { executor::wave_barrier(); }

struct Barrier {
  std::int32_t bytes;
  std::uint32_t parity : 1, arrivals : 12, missing : 12;  ///< missing: of the arrivals, in this phase
};
inline void initialise(Barrier* barrier, int arrivals = 1) {
  const std::uint32_t count = static_cast<std::uint32_t>(arrivals) & 0xfff;
  *barrier = {0, 0, count, count};
}
inline void end_phase_if_done(Barrier* barrier) {
  if (barrier->bytes != 0 || barrier->missing != 0) return;
  barrier->parity ^= 1;
  barrier->missing = barrier->arrivals;
}
inline void arrive(Barrier* barrier) {
  --barrier->missing;
  end_phase_if_done(barrier);
}
inline void receive(Barrier* barrier, int bytes) {
  barrier->bytes -= bytes;
  end_phase_if_done(barrier);
}
inline void expect(Barrier* barrier, int bytes) {
  barrier->bytes += bytes;
  --barrier->missing;
}
inline void wait(Barrier* barrier, int parity) {
  executor::wait_until([=] { return barrier->parity != parity; });
}
template <int kThreads = 128>
void group_barrier(int group) {
  executor::named_barrier(group, kThreads);
}
inline void group_barrier(int group, int threads) { executor::named_barrier(group, threads); }
inline void arrive_at_group_barrier(int group, int threads) { executor::arrive_at_named_barrier(group, threads); }

inline std::uint32_t reordered(std::uint32_t word, std::uint32_t order) {
  std::uint32_t result = 0;
  for (int i = 0; i < 4; ++i) result |= (word >> 8 * (order >> 4 * i & 3) & 0xffu) << 8 * i;
  return result;
}
inline std::uint32_t reordered_here(std::uint32_t word, std::uint32_t order) {
  std::uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t byte = order >> 4 * i & 7;
    result |= (byte < 4 ? word >> 8 * byte & 0xffu : 0) << 8 * i;
  }
  return result;
}

inline void prefetch(const TensorMap&) {}

inline void start_load(void* tile, const TensorMap& map, int element, int y, Barrier* barrier) {
  const int x = element * map.halves, row_bytes = map.tile_columns * 2;
  for (int r = 0; r < map.tile_rows; ++r) {
    for (int c = 0; c < map.tile_columns; ++c) {
      const bool exists = x + c < map.columns && y + r < map.rows;
      const std::uint16_t element = exists ? map.data[(y + r) * map.row_stride + x + c] : std::uint16_t{0};
      std::memcpy(memory_at(swizzled(address_of(tile) + static_cast<std::uint32_t>(r * row_bytes + c * 2), row_bytes)),
                  &element, 2);
    }
  }
  receive(barrier, map.tile_rows * row_bytes);
}
inline void start_store(const TensorMap& map, int element, int y, const void* tile) {
  const int x = element * map.halves, row_bytes = map.tile_columns * 2;
  for (int r = 0; r < map.tile_rows && y + r < map.rows; ++r) {
    for (int c = 0; c < map.tile_columns && x + c < map.columns; ++c) {
      std::memcpy(&map.data[(y + r) * map.row_stride + x + c],
                  memory_at(swizzled(address_of(tile) + static_cast<std::uint32_t>(r * row_bytes + c * 2), row_bytes)),
                  2);
    }
  }
}

struct ImagePlace {
  int channel, column, row, image;
};
/// Calls visit(element of the tile, element of the image or null) for all of a tile.
template <class Visit>
void for_tile(const TensorMap& map, const ImagePlace& place, void* tile, const Visit& visit) {
  auto at = address_of(tile);
  const auto within = [](std::int64_t i, std::int64_t size) { return i >= 0 && i < size; };
  for (int n = 0; n < map.tile_images; ++n) {
    for (int r = 0; r < map.tile_image_rows; ++r) {
      for (int w = 0; w < map.tile_rows; ++w) {
        for (int c = 0; c < map.tile_columns; ++c, at += 2) {
          const std::int64_t image = place.image + n, row = place.row + r, column = place.column + w,
                             channel = place.channel * map.halves + c;
          const bool exists = within(row, map.image_rows) && within(column, map.rows) && within(channel, map.columns) &&
                              within(image, map.images);
          visit(reinterpret_cast<std::uint16_t*>(memory_at(map.swizzles ? swizzled(at, map.tile_columns * 2) : at)),
                exists ? map.data + image * map.image_stride + row * map.image_row_stride + column * map.row_stride +
                             channel
                       : nullptr);
        }
      }
    }
  }
}
inline void start_load(void* tile, const TensorMap& map, const ImagePlace& from, Barrier* barrier) {
  for_tile(map, from, tile, [](std::uint16_t* to, const std::uint16_t* element) {
    *to = element != nullptr ? *element : std::uint16_t{0};
  });
  receive(barrier, map.tile_images * map.tile_image_rows * map.tile_rows * map.tile_columns * 2);
}
inline void start_store(const TensorMap& map, const ImagePlace& place, const void* tile) {
  for_tile(map, place, const_cast<void*>(tile), [](const std::uint16_t* from, std::uint16_t* element) {
    if (element != nullptr) *element = *from;
  });
}
inline void check_bulk(const void* a, const void* b, int bytes) {
  if (reinterpret_cast<std::uintptr_t>(a) % 16 != 0 || reinterpret_cast<std::uintptr_t>(b) % 16 != 0 || bytes % 16 != 0)
    throw std::logic_error("a copy of neighbouring bytes is not of whole runs of 16");
}
inline void start_load(void* to, const void* from, int bytes, Barrier* barrier) {
  check_bulk(to, from, bytes);
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
  receive(barrier, bytes);
}
inline void start_store(void* to, const void* from, int bytes) {
  check_bulk(to, from, bytes);
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}
inline void commit_stores() {}
template <int kGroups = 0>
void wait_for_stores() {}
inline void publish() {}

template <int kRowBytes>
int place_of_run(int row, int run) {
  return static_cast<int>(swizzled(static_cast<std::uint32_t>(row * kRowBytes + run * 16), kRowBytes));
}

/// The address in units of 16 bytes, and whether rows have 128 bytes.
template <int kRowBytes>
std::uint64_t describe(const void* tile) {
  return address_of(tile) >> 4 | std::uint64_t{kRowBytes == 128 ? 1u : 0u} << 62;
}

/// And in the bits from 16 on, from a block of columns to the next.
template <int kRowBytes>
std::uint64_t describe_blocks(const void* tile, int block_bytes) {
  return describe<kRowBytes>(tile) | static_cast<std::uint64_t>(block_bytes / 16) << 16;
}
inline constexpr std::uint64_t kIsConstant = std::uint64_t{1} << 61;
inline std::uint64_t describe_constant(const void* elements) { return address_of(elements) >> 4 | kIsConstant; }

inline void cluster_barrier() { executor::cluster_barrier(); }
inline void leave_cluster() { executor::cluster_barrier(); }
template <class T>
T load_of_block(const T* place, int rank) {
  T value;
  std::memcpy(&value, static_cast<const unsigned char*>(executor::shared_memory_of(rank)) + address_of(place),
              sizeof value);
  return value;
}

/// What every lane of the wave brings, in the order of lanes.
template <class T>
std::array<T, 32> of_all_lanes(const T& own) {
  T* const place = executor::place_of_thread<T>();
  *place = own;
  executor::wave_barrier();
  std::array<T, 32> all;
  std::copy_n(place - thread_index() % 32, all.size(), all.begin());
  return all;
}

template <class T>
T from_lane(T value, int lane) {
  return of_all_lanes(value)[static_cast<std::size_t>(lane) % 32];
}

inline float of_later_lane(float value, int lanes) {
  const auto all = of_all_lanes(value);
  const int lane = thread_index() % 32 + lanes;
  return lane < 32 ? all[static_cast<std::size_t>(lane)] : value;
}

inline bool any_of_warp(bool condition) {
  const auto all = of_all_lanes(condition);
  return std::find(all.begin(), all.end(), true) != all.end();
}

template <bool kTransposed = false>
void load_matrices(const void* row, std::uint32_t (&to)[4]) {
  const auto rows = of_all_lanes(row);
  const int lane = thread_index() % 32;
  const auto element_at = [&](int matrix, int r, int column) {
    std::uint16_t bits;
    std::memcpy(&bits, static_cast<const char*>(rows[static_cast<std::size_t>(matrix * 8 + r)]) + column * 2, 2);
    return std::uint32_t{bits};
  };
  for (int i = 0; i < 4; ++i) {  // lanes get two neighbours of a row, or of a column
    const int outer = lane / 4, first = lane % 4 * 2;
    to[i] = kTransposed ? element_at(i, first, outer) | element_at(i, first + 1, outer) << 16
                        : element_at(i, outer, first) | element_at(i, outer, first + 1) << 16;
  }
}
inline void load_matrices(const void* row, std::uint32_t (&to)[2]) {
  std::uint32_t words[4];
  load_matrices<false>(row, words);
  to[0] = words[0];
  to[1] = words[1];
}
inline void store_matrices(void* row, const std::uint32_t (&from)[2]) {
  const auto rows = of_all_lanes(row);
  const int lane = thread_index() % 32;
  for (int i = 0; i < 2; ++i) {
    std::memcpy(static_cast<char*>(rows[static_cast<std::size_t>(i * 8 + lane / 4)]) + lane % 4 * 4, &from[i], 4);
  }
}
template <bool kTransposed = false>
void store_matrices(void* row, const std::uint32_t (&from)[4]) {
  const auto rows = of_all_lanes(row);
  const int lane = thread_index() % 32;
  const auto row_at = [&](int matrix, int r) {
    return static_cast<char*>(rows[static_cast<std::size_t>(matrix * 8 + r)]);
  };
  for (int i = 0; i < 4; ++i) {
    if constexpr (kTransposed) {
      for (int j = 0; j < 2; ++j) {
        const auto bits = static_cast<std::uint16_t>(from[i] >> 16 * j);
        std::memcpy(row_at(i, lane % 4 * 2 + j) + lane / 4 * 2, &bits, 2);
      }
    } else {
      std::memcpy(row_at(i, lane / 4) + lane % 4 * 4, &from[i], 4);
    }
  }
}

template <class T>
std::uint32_t clamped_pair(std::uint32_t pair, bool to_six, T) {
  float a, b;
  to_floats(pair, a, b, T());
  const float high = to_six ? 6.0f : HUGE_VALF;
  const auto clamp = [&](float value) { return propagating_min(propagating_max(value, 0.0f), high); };
  return to_bits(clamp(a), clamp(b), T());
}

inline void begin_products() {}
inline void commit_products() {}
template <int kGroups>
void wait_for_products() {}
template <int kCount>
void fence(float (&)[kCount]) {}

/// Values of k of a product.
template <class T>
inline constexpr int kDepthOf = 32 / static_cast<int>(sizeof(T));

/// As tensor cores read it: of floats the first 19 bits.
template <class T>
float factor(T element) {
  return to_float(element);
}
template <>
inline float factor(float element) {
  return __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, element) & ~0x1fffu);
}

/// Of an operand, the elements of row (or column) `outer`.
template <class T>
std::array<float, kDepthOf<T>> factors_of(std::uint64_t description, int outer, bool transposed, T) {
  constexpr auto kSize = static_cast<int>(sizeof(T));
  const int row_bytes = description >> 62 != 0 ? 128 : 64;
  const auto first = static_cast<std::uint32_t>(description & 0x3fff) * 16,
             block_bytes = static_cast<std::uint32_t>(description >> 16 & 0x3fff) * 16;
  const auto along_row = static_cast<std::uint32_t>(outer * kSize);
  const auto in_row = static_cast<std::uint32_t>(row_bytes);
  const auto place_of = [&](std::uint32_t k) {
    if (!transposed) return first + static_cast<std::uint32_t>(outer) * in_row + k * kSize;
    const std::uint32_t begin = first + k * in_row;
    return block_bytes == 0 ? begin + along_row : begin + along_row / in_row * block_bytes + along_row % in_row;
  };
  const bool is_constant = (description & kIsConstant) != 0;
  const std::uint32_t together = transposed || is_constant ? 1 : 16 / kSize;  // a swizzle moves 16 bytes as one
  std::array<T, kDepthOf<T>> elements;
  for (std::uint32_t k = 0; k < elements.size(); k += together) {
    const std::uint32_t place = is_constant ? first : swizzled(place_of(k), row_bytes);
    std::memcpy(&elements[k], memory_at(place), together * sizeof(T));
  }
  std::array<float, kDepthOf<T>> factors;
  for (std::size_t k = 0; k < factors.size(); ++k) factors[k] = factor(elements[k]);
  return factors;
}

/// What a register holds of a row: `i`-th of its elements.
template <class T>
float factor_of_word(std::uint32_t word, int i, T) {
  float pair[2];
  to_floats(word, pair[0], pair[1], T());
  return pair[i];
}
inline float factor_of_word(std::uint32_t word, int, float) { return factor(__builtin_bit_cast(float, word)); }

/// Of sums as the hardware spreads them, sums[4*i + 2*j + l] is of row first_row() + 8*j and column
/// first_column() + 8*i + l.
inline int first_row() { return thread_index() % 128 / 32 * 16 + thread_index() % 32 / 4; }
inline int first_column() { return thread_index() % 4 * 2; }

/// Adds the products of the thread's two rows with its columns.
template <bool kTransposed, int kCount, class T>
void multiply_rows(float (&sums)[kCount], const std::array<float, kDepthOf<T>> (&rows)[2], std::uint64_t cols,
                   bool is_first, T) {
  for (int column = 0; column < kCount / 2; ++column) {
    const auto factors = factors_of(cols, first_column() + column / 2 * 8 + column % 2, kTransposed, T());
    for (int row = 0; row < 2; ++row) {
      float& sum = sums[column / 2 * 4 + row * 2 + column % 2];
      if (is_first) sum = 0;
      for (std::size_t k = 0; k < factors.size(); ++k) sum += rows[row][k] * factors[k];
    }
  }
}

template <bool kTransposed, bool kRowsTransposed = false, int kCount, class T>
void multiply(float (&sums)[kCount], std::uint64_t rows, std::uint64_t cols, bool is_first, T) {
  multiply_rows<kTransposed>(
      sums,
      {factors_of(rows, first_row(), kRowsTransposed, T()), factors_of(rows, first_row() + 8, kRowsTransposed, T())},
      cols, is_first, T());
}
template <bool kTransposed, int kCount, class T>
void multiply(float (&sums)[kCount], const std::uint32_t (&rows)[4], std::uint64_t cols, bool is_first, T) {
  struct Words {
    std::uint32_t words[4];
  };
  Words own;
  std::memcpy(own.words, rows, sizeof own.words);
  const auto all = of_all_lanes(own);
  constexpr int kHalf = kDepthOf<T> / 2, kOfWord = kHalf / 4;
  std::array<float, kDepthOf<T>> factors[2];
  for (int row = 0; row < 2; ++row) {
    for (int k = 0; k < kDepthOf<T>; ++k) {  // words: of this row and 8 further, then of the second half of k
      const int lane = thread_index() % 32 / 4 * 4 + k % kHalf / kOfWord, word = row + k / kHalf * 2;
      factors[row][static_cast<std::size_t>(k)] =
          factor_of_word(all[static_cast<std::size_t>(lane)].words[word], k % kOfWord, T());
    }
  }
  multiply_rows<kTransposed>(sums, factors, cols, is_first, T());
}

}  // namespace fusedsc::gpu::hopper
