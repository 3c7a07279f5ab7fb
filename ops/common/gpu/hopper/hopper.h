/// What only NVIDIA's GPUs of compute capability 9.0 have: tiles that TMA moves between tensors and
/// shared memory by itself, and barriers that count its bytes (PTX ISA: cp.async.bulk, mbarrier). Tiles have rows of
/// 128 (or 64) bytes, in which TMA swizzles runs of 16 bytes so that columns fall on different banks.
#pragma once

#ifdef FUSEDSC_HOST_EXECUTOR
#include "host_executor/hopper_host.h"
#else

#include <cuda.h>

#include "fusedsc/common/gpu/tensors/vector.h"

/// Kernels for these GPUs; their parameters bring the descriptions of tensors, which TMA reads there.
#define FUSEDSC_HOPPER_KERNEL(threads) __global__ void __launch_bounds__(threads, 1)
#define FUSEDSC_GRID_CONSTANT __grid_constant__

namespace fusedsc::gpu::hopper {

using TensorMap = CUtensorMap;
inline constexpr int kMemoryLimit = static_cast<int>(kSharedMemoryLimit);

/// By all threads of a warpgroup: so many registers for each, from now on. kMore: than before; then it waits
/// until others of the block have less.
template <bool kMore, int kRegisters>
FUSEDSC_DEVICE void set_registers() {
  if constexpr (kMore) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
  else asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// What is the same for all threads of a warp, so that the compiler knows it.
FUSEDSC_DEVICE int uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }
/// By all lanes of a warp; modulo 32.
template <class T>
FUSEDSC_DEVICE T from_lane(T value, int lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}
FUSEDSC_DEVICE void warp_barrier() { __syncwarp(); }
/// What the lane so many further has; of the last ones anything.
FUSEDSC_DEVICE float of_later_lane(float value, int lanes) { return __shfl_down_sync(0xffffffffu, value, lanes); }
FUSEDSC_DEVICE bool any_of_warp(bool condition) { return __any_sync(0xffffffffu, condition) != 0; }

FUSEDSC_DEVICE std::uint32_t address_of(const void* memory) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(memory));
}

// ------------------------------------------------------------------------------------------- barriers of arriving
// bytes

/// In shared memory. Phases alternate between the parities 0 and 1.
using Barrier = std::uint64_t;

/// A phase ends after so many arrivals, and when the bytes that are expected have come.
FUSEDSC_DEVICE void initialise(Barrier* barrier, int arrivals = 1) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address_of(barrier)), "r"(arrivals) : "memory");
}
/// One of the arrivals that end the phase of a barrier without bytes.
FUSEDSC_DEVICE void arrive(Barrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address_of(barrier)) : "memory");
}
/// By one thread: the phase ends when so many bytes have come.
FUSEDSC_DEVICE void expect(Barrier* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address_of(barrier)), "r"(bytes)
               : "memory");
}
FUSEDSC_DEVICE void wait(Barrier* barrier, int parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(address_of(barrier)),
      "r"(parity)
      : "memory");
}
/// Of the threads of a warpgroup, or of some groups that have a number.
template <int kThreads = 128>
FUSEDSC_DEVICE void group_barrier(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(kThreads) : "memory");
}
/// Of groups of so many threads, whole warps.
FUSEDSC_DEVICE void group_barrier(int group, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(threads) : "memory");
}
/// Of a warp that has done its part and does not wait for the others.
FUSEDSC_DEVICE void arrive_at_group_barrier(int group, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(group + 1), "r"(threads) : "memory");
}

// ------------------------------------------------------------------------------------------------------------- copies

/// A description of a tensor, before its first use.
FUSEDSC_DEVICE void prefetch(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }

/// By one thread. {x, y}: the tile's first element and row; what lies outside of the tensor is 0.
FUSEDSC_DEVICE void start_load(void* tile, const TensorMap& map, int x, int y, Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          address_of(tile)),
      "l"(&map), "r"(x), "r"(y), "r"(address_of(barrier))
      : "memory");
}
/// A run of bytes, whose number and places are multiples of 16.
FUSEDSC_DEVICE void start_load(void* to, const void* from, int bytes, Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(address_of(to)),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(address_of(barrier))
      : "memory");
}
FUSEDSC_DEVICE void start_store(void* to, const void* from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(to)),
               "r"(address_of(from)), "r"(bytes)
               : "memory");
}
/// Of tiles of dense rows, the unit of places in a row: bytes.
inline constexpr int kRowUnit = 8;
/// Where a tile of images lies: its first channel, column and row, and the image.
struct ImagePlace {
  int channel, column, row, image;
};
/// Likewise, of images: [row][column][channel], as the map says. Places outside of an image are allowed.
FUSEDSC_DEVICE void start_load(void* tile, const TensorMap& map, const ImagePlace& from, Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];" ::"r"(address_of(tile)),
      "l"(&map), "r"(from.channel), "r"(from.column), "r"(from.row), "r"(from.image), "r"(address_of(barrier))
      : "memory");
}
FUSEDSC_DEVICE void start_store(const TensorMap& map, const ImagePlace& to, const void* tile) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(&map),
               "r"(to.channel), "r"(to.column), "r"(to.row), "r"(to.image), "r"(address_of(tile))
               : "memory");
}
/// What lies outside of the tensor is not stored.
FUSEDSC_DEVICE void start_store(const TensorMap& map, int x, int y, const void* tile) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(x),
               "r"(y), "r"(address_of(tile))
               : "memory");
}
FUSEDSC_DEVICE void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Until the thread's stores, but for the last kGroups groups, have read their tiles.
template <int kGroups = 0>
FUSEDSC_DEVICE void wait_for_stores() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kGroups) : "memory");
}
/// Before TMA or a product reads what threads have written, or a copy takes the place of what they read.
FUSEDSC_DEVICE void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ------------------------------------------------------------------------------------------------------------- tiles

/// A tile of rows of kRowBytes; where a run of 16 bytes lies.
template <int kRowBytes>
FUSEDSC_DEVICE int place_of_run(int row, int run) {
  static_assert(kRowBytes == 128 || kRowBytes == 64);
  return kRowBytes == 128 ? row * 128 + (run ^ (row & 7)) * 16 : row * 64 + (run ^ (row >> 1 & 3)) * 16;
}

/// Describes an operand to a product: rows of kRowBytes, groups of eight of them behind each other.
template <int kRowBytes>
FUSEDSC_DEVICE std::uint64_t describe(const void* tile) {
  constexpr std::uint64_t kSwizzle = kRowBytes == 128 ? 1 : 2, kGroup = kRowBytes * 8 / 16;
  return (address_of(tile) & 0x3ffff) >> 4 | std::uint64_t{1} << 16 | kGroup << 32 | kSwizzle << 62;
}

/// Likewise, of columns that go on in the next block of so many bytes where a row ends.
template <int kRowBytes>
FUSEDSC_DEVICE std::uint64_t describe_blocks(const void* tile, int block_bytes) {
  return (describe<kRowBytes>(tile) & ~(std::uint64_t{0x3fff} << 16)) | static_cast<std::uint64_t>(block_bytes / 16)
                                                                            << 16;
}

/// Describes an operand whose elements are all the same: 512 bytes of them, in any order.
FUSEDSC_DEVICE std::uint64_t describe_constant(const void* elements) {
  return (address_of(elements) & 0x3ffff) >> 4 | std::uint64_t{8} << 16 | std::uint64_t{8} << 32;
}

/// Four 8x8 matrices of 16-bit elements; each lane says where a row begins. Transposed: lanes get pairs of a column.
/// Their order is that of waits and barriers; other loads and stores may pass.
template <bool kTransposed = false>
FUSEDSC_DEVICE void load_matrices(const void* row, std::uint32_t (&to)[4]) {
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address_of(row)));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address_of(row)));
  }
}
/// Two of them; the rows of lanes from 16 on do not matter.
FUSEDSC_DEVICE void load_matrices(const void* row, std::uint32_t (&to)[2]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(to[0]), "=r"(to[1])
               : "r"(address_of(row)));
}
FUSEDSC_DEVICE void store_matrices(void* row, const std::uint32_t (&from)[2]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(address_of(row)), "r"(from[0]),
               "r"(from[1]));
}
/// Transposed: lanes bring pairs of a column.
template <bool kTransposed = false>
FUSEDSC_DEVICE void store_matrices(void* row, const std::uint32_t (&from)[4]) {
  if constexpr (kTransposed) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address_of(row)),
                 "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]));
  } else {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address_of(row)),
                 "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]));
  }
}

/// The bytes of a word in another order, from the last: 0x3210 is the same.
FUSEDSC_DEVICE std::uint32_t reordered(std::uint32_t word, std::uint32_t order) {
  return __byte_perm(word, word, order);
}
/// The same where 4 stands for a byte of zeros, and where it is written: compilers would do it once, before a loop, and
/// keep what comes of it in registers.
FUSEDSC_DEVICE std::uint32_t reordered_here(std::uint32_t word, std::uint32_t order) {
  std::uint32_t result;
  asm volatile("prmt.b32 %0, %1, 0, %2;" : "=r"(result) : "r"(word), "r"(order));
  return result;
}

/// Both halves of a word at least 0 and, if `to_six`, at most 6. A NaN stays one.
FUSEDSC_DEVICE std::uint32_t clamped_pair(std::uint32_t pair, bool to_six, Float16) {
  const std::uint32_t high = to_six ? 0x46004600u : 0x7c007c00u;
  asm("max.NaN.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(0));
  asm("min.NaN.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(high));
  return pair;
}
FUSEDSC_DEVICE std::uint32_t clamped_pair(std::uint32_t pair, bool to_six, BFloat16) {
  const std::uint32_t high = to_six ? 0x40c040c0u : 0x7f807f80u;
  asm("max.NaN.bf16x2 %0, %0, %1;" : "+r"(pair) : "r"(0));
  asm("min.NaN.bf16x2 %0, %0, %1;" : "+r"(pair) : "r"(high));
  return pair;
}

}  // namespace fusedsc::gpu::hopper

#endif
