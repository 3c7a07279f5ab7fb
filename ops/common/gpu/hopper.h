/// What only NVIDIA's GPUs of compute capability 9.0 have: tiles that the copy engine moves between tensors and block
/// memory by itself, barriers that count its bytes, and matrix products that read block memory (PTX ISA: cp.async.bulk,
/// mbarrier, wgmma). Tiles have rows of 128 (or 64) bytes, in which the copy engine exchanges runs of 16 bytes so that
/// columns fall on different banks.
#pragma once

#ifdef FUSEDSC_HOST_EXECUTOR
#include "host_executor/hopper_host.h"
#else

#include <cuda.h>

#include "fusedsc/common/gpu/vector.h"

/// Kernels for these GPUs; their parameters bring the descriptions of tensors, which the copy engine reads there.
#define FUSEDSC_HOPPER_KERNEL(threads) __global__ void __launch_bounds__(threads, 1)
#define FUSEDSC_GRID_CONSTANT __grid_constant__

namespace fusedsc::gpu::hopper {

using TensorMap = CUtensorMap;
inline constexpr int kMemoryLimit = static_cast<int>(kBlockMemoryLimit);

/// What is the same for all threads of a warp, so that the compiler knows it.
FUSEDSC_DEVICE int uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }
FUSEDSC_DEVICE void warp_barrier() { __syncwarp(); }
FUSEDSC_DEVICE bool any_of_warp(bool condition) { return __any_sync(0xffffffffu, condition) != 0; }

FUSEDSC_DEVICE std::uint32_t address_of(const void* memory) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(memory));
}

// ------------------------------------------------------------------------------------------- barriers of arriving
// bytes

/// In block memory. Phases alternate between the parities 0 and 1.
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
/// Of the threads of a group of four warps, or of some groups that have a number.
template <int kThreads = 128>
FUSEDSC_DEVICE void group_barrier(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(kThreads) : "memory");
}
/// Of groups of so many threads, whole warps.
FUSEDSC_DEVICE void group_barrier(int group, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(threads) : "memory");
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
/// Before the copy engine or a product reads what threads have written.
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
  constexpr std::uint64_t kExchange = kRowBytes == 128 ? 1 : 2, kGroup = kRowBytes * 8 / 16;
  return (address_of(tile) & 0x3ffff) >> 4 | std::uint64_t{1} << 16 | kGroup << 32 | kExchange << 62;
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

// ----------------------------------------------------------------------------------------------------------- products

/// Before the first product that uses registers which threads have written.
FUSEDSC_DEVICE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FUSEDSC_DEVICE void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Until all but the last kGroups committed ones are done.
template <int kGroups>
FUSEDSC_DEVICE void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}
/// Keeps the compiler from moving uses of the sums to where the products still run.
template <int kCount>
FUSEDSC_DEVICE void fence(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

#define FUSEDSC_SUMS_4(d) "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define FUSEDSC_LIST_4 "%0, %1, %2, %3"
#define FUSEDSC_SUMS_8(d) FUSEDSC_SUMS_4(d), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define FUSEDSC_LIST_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define FUSEDSC_SUMS_12(d) FUSEDSC_SUMS_8(d), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
#define FUSEDSC_LIST_12 FUSEDSC_LIST_8 ", %8, %9, %10, %11"
#define FUSEDSC_SUMS_16(d)                                                                                    \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), \
      "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define FUSEDSC_SUMS_32(d)                                                                                       \
  FUSEDSC_SUMS_16(d), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), \
      "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]),    \
      "+f"(d[31])
#define FUSEDSC_SUMS_24(d)                                                                                       \
  FUSEDSC_SUMS_16(d), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), \
      "+f"(d[23])
#define FUSEDSC_LIST_24 FUSEDSC_LIST_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define FUSEDSC_SUMS_48(d)                                                                                       \
  FUSEDSC_SUMS_32(d), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), \
      "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]),    \
      "+f"(d[47])
#define FUSEDSC_SUMS_64(d)                                                                                       \
  FUSEDSC_SUMS_48(d), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), \
      "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),    \
      "+f"(d[63])
#define FUSEDSC_SUMS_80(d)                                                                                       \
  FUSEDSC_SUMS_64(d), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), \
      "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]),    \
      "+f"(d[79])
#define FUSEDSC_SUMS_96(d)                                                                                       \
  FUSEDSC_SUMS_80(d), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), \
      "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]),    \
      "+f"(d[95])
#define FUSEDSC_LIST_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define FUSEDSC_LIST_32 \
  FUSEDSC_LIST_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FUSEDSC_LIST_48 \
  FUSEDSC_LIST_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define FUSEDSC_LIST_64 \
  FUSEDSC_LIST_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FUSEDSC_LIST_80 \
  FUSEDSC_LIST_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define FUSEDSC_LIST_96 \
  FUSEDSC_LIST_80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"

#define FUSEDSC_PRODUCTS(Type, name, count, size, a, b, again, transposed, rows_transposed, a0, a1, a2, a3,            \
                         b_of_registers, again_of_registers, transposed_of_registers)                                  \
  /* sums += A * B, A of block memory; `is_first`: = instead of += */                                                  \
  template <bool kTransposed, bool kRowsTransposed = false>                                                            \
  FUSEDSC_DEVICE void multiply(float(&d)[count], std::uint64_t rows, std::uint64_t cols, bool is_first, Type) {        \
    asm volatile(                                                                                                      \
        "{\n.reg .pred more;\nsetp.ne.b32 more, " again ", 0;\nwgmma.mma_async.sync.aligned.m64n" size "k16.f32." name \
        "." name " {" FUSEDSC_LIST_##count "}, " a ", " b ", more, 1, 1, " rows_transposed ", " transposed ";\n}"      \
        : FUSEDSC_SUMS_##count(d)                                                                                      \
        : "l"(rows), "l"(cols), "r"(is_first ? 0 : 1), "n"(kTransposed ? 1 : 0), "n"(kRowsTransposed ? 1 : 0));        \
  }                                                                                                                    \
  /* A of registers, in the order of load_matrices. */                                                                 \
  template <bool kTransposed>                                                                                          \
  FUSEDSC_DEVICE void multiply(float(&d)[count], const std::uint32_t(&rows)[4], std::uint64_t cols, bool is_first,     \
                               Type) {                                                                                 \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, " again_of_registers                                          \
                 ", 0;\nwgmma.mma_async.sync.aligned.m64n" size "k16.f32." name "." name " {" FUSEDSC_LIST_##count     \
                 "}, {" a0 ", " a1 ", " a2 ", " a3 "}, " b_of_registers ", more, 1, 1, " transposed_of_registers       \
                 ";\n}"                                                                                                \
                 : FUSEDSC_SUMS_##count(d)                                                                             \
                 : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "l"(cols), "r"(is_first ? 0 : 1),           \
                   "n"(kTransposed ? 1 : 0));                                                                          \
  }
#define FUSEDSC_PRODUCTS_8(Type, name) \
  FUSEDSC_PRODUCTS(Type, name, 4, "8", "%4", "%5", "%6", "%7", "%8", "%4", "%5", "%6", "%7", "%8", "%9", "%10")
#define FUSEDSC_PRODUCTS_16(Type, name) \
  FUSEDSC_PRODUCTS(Type, name, 8, "16", "%8", "%9", "%10", "%11", "%12", "%8", "%9", "%10", "%11", "%12", "%13", "%14")
#define FUSEDSC_PRODUCTS_24(Type, name)                                                                               \
  FUSEDSC_PRODUCTS(Type, name, 12, "24", "%12", "%13", "%14", "%15", "%16", "%12", "%13", "%14", "%15", "%16", "%17", \
                   "%18")
#define FUSEDSC_PRODUCTS_32(Type, name)                                                                               \
  FUSEDSC_PRODUCTS(Type, name, 16, "32", "%16", "%17", "%18", "%19", "%20", "%16", "%17", "%18", "%19", "%20", "%21", \
                   "%22")
#define FUSEDSC_PRODUCTS_48(Type, name)                                                                               \
  FUSEDSC_PRODUCTS(Type, name, 24, "48", "%24", "%25", "%26", "%27", "%28", "%24", "%25", "%26", "%27", "%28", "%29", \
                   "%30")
#define FUSEDSC_PRODUCTS_64(Type, name)                                                                               \
  FUSEDSC_PRODUCTS(Type, name, 32, "64", "%32", "%33", "%34", "%35", "%36", "%32", "%33", "%34", "%35", "%36", "%37", \
                   "%38")
#define FUSEDSC_PRODUCTS_96(Type, name)                                                                               \
  FUSEDSC_PRODUCTS(Type, name, 48, "96", "%48", "%49", "%50", "%51", "%52", "%48", "%49", "%50", "%51", "%52", "%53", \
                   "%54")
#define FUSEDSC_PRODUCTS_128(Type, name)                                                                               \
  FUSEDSC_PRODUCTS(Type, name, 64, "128", "%64", "%65", "%66", "%67", "%68", "%64", "%65", "%66", "%67", "%68", "%69", \
                   "%70")
#define FUSEDSC_PRODUCTS_160(Type, name)                                                                               \
  FUSEDSC_PRODUCTS(Type, name, 80, "160", "%80", "%81", "%82", "%83", "%84", "%80", "%81", "%82", "%83", "%84", "%85", \
                   "%86")
#define FUSEDSC_PRODUCTS_192(Type, name)                                                                          \
  FUSEDSC_PRODUCTS(Type, name, 96, "192", "%96", "%97", "%98", "%99", "%100", "%96", "%97", "%98", "%99", "%100", \
                   "%101", "%102")

// Products of 64 rows, and 8 to 192 columns, by 16 values of k. A has its k innermost, or its rows if
// kRowsTransposed; B its k, or its columns if kTransposed.
FUSEDSC_PRODUCTS_8(Float16, "f16")
FUSEDSC_PRODUCTS_8(BFloat16, "bf16")
FUSEDSC_PRODUCTS_16(Float16, "f16")
FUSEDSC_PRODUCTS_16(BFloat16, "bf16")
FUSEDSC_PRODUCTS_24(Float16, "f16")
FUSEDSC_PRODUCTS_24(BFloat16, "bf16")
FUSEDSC_PRODUCTS_32(Float16, "f16")
FUSEDSC_PRODUCTS_32(BFloat16, "bf16")
FUSEDSC_PRODUCTS_48(Float16, "f16")
FUSEDSC_PRODUCTS_48(BFloat16, "bf16")
FUSEDSC_PRODUCTS_64(Float16, "f16")
FUSEDSC_PRODUCTS_64(BFloat16, "bf16")
FUSEDSC_PRODUCTS_96(Float16, "f16")
FUSEDSC_PRODUCTS_96(BFloat16, "bf16")
FUSEDSC_PRODUCTS_128(Float16, "f16")
FUSEDSC_PRODUCTS_128(BFloat16, "bf16")
FUSEDSC_PRODUCTS_160(Float16, "f16")
FUSEDSC_PRODUCTS_160(BFloat16, "bf16")
FUSEDSC_PRODUCTS_192(Float16, "f16")
FUSEDSC_PRODUCTS_192(BFloat16, "bf16")

#define FUSEDSC_TF32_PRODUCTS(count, size, a, b, again, a0, a1, a2, a3, b_of_registers, again_of_registers)        \
  template <bool kTransposed>                                                                                      \
  FUSEDSC_DEVICE void multiply(float(&d)[count], std::uint64_t rows, std::uint64_t cols, bool is_first, float) {   \
    static_assert(!kTransposed);                                                                                   \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, " again ", 0;\nwgmma.mma_async.sync.aligned.m64n" size    \
                 "k8.f32.tf32.tf32 {" FUSEDSC_LIST_##count "}, " a ", " b ", more, 1, 1;\n}"                       \
                 : FUSEDSC_SUMS_##count(d)                                                                         \
                 : "l"(rows), "l"(cols), "r"(is_first ? 0 : 1));                                                   \
  }                                                                                                                \
  template <bool kTransposed>                                                                                      \
  FUSEDSC_DEVICE void multiply(float(&d)[count], const std::uint32_t(&rows)[4], std::uint64_t cols, bool is_first, \
                               float) {                                                                            \
    static_assert(!kTransposed);                                                                                   \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, " again_of_registers                                      \
                 ", 0;\nwgmma.mma_async.sync.aligned.m64n" size "k8.f32.tf32.tf32 {" FUSEDSC_LIST_##count          \
                 "}, {" a0 ", " a1 ", " a2 ", " a3 "}, " b_of_registers ", more, 1, 1;\n}"                         \
                 : FUSEDSC_SUMS_##count(d)                                                                         \
                 : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "l"(cols), "r"(is_first ? 0 : 1));      \
  }

// The same of TensorFloat-32, by 8 values of k: floats, of which a product ignores the last 13 bits (numbers are cut
// off, not rounded). Both operands have their k innermost; registers hold one element each, as load_matrices brings
// them, if to it an element of floats is a pair.
FUSEDSC_TF32_PRODUCTS(16, "32", "%16", "%17", "%18", "%16", "%17", "%18", "%19", "%20", "%21")
FUSEDSC_TF32_PRODUCTS(24, "48", "%24", "%25", "%26", "%24", "%25", "%26", "%27", "%28", "%29")
FUSEDSC_TF32_PRODUCTS(32, "64", "%32", "%33", "%34", "%32", "%33", "%34", "%35", "%36", "%37")
FUSEDSC_TF32_PRODUCTS(48, "96", "%48", "%49", "%50", "%48", "%49", "%50", "%51", "%52", "%53")
FUSEDSC_TF32_PRODUCTS(64, "128", "%64", "%65", "%66", "%64", "%65", "%66", "%67", "%68", "%69")
FUSEDSC_TF32_PRODUCTS(80, "160", "%80", "%81", "%82", "%80", "%81", "%82", "%83", "%84", "%85")
FUSEDSC_TF32_PRODUCTS(96, "192", "%96", "%97", "%98", "%96", "%97", "%98", "%99", "%100", "%101")

#undef FUSEDSC_TF32_PRODUCTS
#undef FUSEDSC_PRODUCTS_192
#undef FUSEDSC_PRODUCTS_160
#undef FUSEDSC_PRODUCTS_128
#undef FUSEDSC_PRODUCTS_96
#undef FUSEDSC_PRODUCTS_64
#undef FUSEDSC_PRODUCTS_48
#undef FUSEDSC_PRODUCTS_32
#undef FUSEDSC_PRODUCTS_24
#undef FUSEDSC_PRODUCTS_16
#undef FUSEDSC_PRODUCTS_8
#undef FUSEDSC_PRODUCTS
#undef FUSEDSC_LIST_96
#undef FUSEDSC_LIST_80
#undef FUSEDSC_LIST_64
#undef FUSEDSC_LIST_48
#undef FUSEDSC_LIST_32
#undef FUSEDSC_LIST_24
#undef FUSEDSC_LIST_16
#undef FUSEDSC_LIST_12
#undef FUSEDSC_LIST_8
#undef FUSEDSC_LIST_4
#undef FUSEDSC_SUMS_96
#undef FUSEDSC_SUMS_80
#undef FUSEDSC_SUMS_64
#undef FUSEDSC_SUMS_48
#undef FUSEDSC_SUMS_32
#undef FUSEDSC_SUMS_24
#undef FUSEDSC_SUMS_16
#undef FUSEDSC_SUMS_12
#undef FUSEDSC_SUMS_8
#undef FUSEDSC_SUMS_4

}  // namespace fusedsc::gpu::hopper

#endif
