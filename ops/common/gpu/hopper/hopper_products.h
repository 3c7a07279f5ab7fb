/// Products of matrices by warpgroups of Hopper GPUs, asynchronous, of shared memory and of registers (PTX
/// ISA: wgmma).
#pragma once

#include "fusedsc/common/gpu/hopper/hopper.h"

#ifndef FUSEDSC_HOST_EXECUTOR  // which has them in hopper_host.h

namespace fusedsc::gpu::hopper {

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
#define FUSEDSC_SUMS_40(d)                                                                                       \
  FUSEDSC_SUMS_32(d), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), \
      "+f"(d[39])
#define FUSEDSC_LIST_40 FUSEDSC_LIST_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
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
  /* sums += A * B, A of shared memory; `is_first`: = instead of += */                                                 \
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
#define FUSEDSC_PRODUCTS_80(Type, name)                                                                               \
  FUSEDSC_PRODUCTS(Type, name, 40, "80", "%40", "%41", "%42", "%43", "%44", "%40", "%41", "%42", "%43", "%44", "%45", \
                   "%46")
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
FUSEDSC_PRODUCTS_80(Float16, "f16")
FUSEDSC_PRODUCTS_80(BFloat16, "bf16")
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
#undef FUSEDSC_PRODUCTS_80
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
#undef FUSEDSC_LIST_40
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
#undef FUSEDSC_SUMS_40
#undef FUSEDSC_SUMS_32
#undef FUSEDSC_SUMS_24
#undef FUSEDSC_SUMS_16
#undef FUSEDSC_SUMS_12
#undef FUSEDSC_SUMS_8
#undef FUSEDSC_SUMS_4

}  // namespace fusedsc::gpu::hopper

#endif

namespace fusedsc::gpu::hopper {

/// Likewise, of arrays of them.
template <class Sums, int kCount>
FUSEDSC_DEVICE void fence(Sums (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) fence(sums[i]);
}

}  // namespace fusedsc::gpu::hopper
