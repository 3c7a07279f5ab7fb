/// A product of small matrices by 32 neighbouring threads, where GPUs have an instruction for it.
#pragma once

#include "fusedsc/common/gpu/tensors/vector.h"

namespace fusedsc::gpu {

/// D += A*B with 16-bit A (16 x 16) and B (16 x 8), float D (16 x 8), as NVIDIA's mma.m16n8k16 has them: of lane l,
/// with g = l / 4 and t = l % 4, registers of A hold columns 2t and 2t + 1 of rows g, g + 8, then columns 2t + 8 and 2t
/// + 9 of them; of B rows 2t and 2t + 1, then 2t + 8 and 2t + 9, of column g; of D columns 2t and 2t + 1 of row g, then
/// of g + 8.
struct WaveFragments {
  std::uint32_t a[4], b[2];
};

/// The nearest number with 10 fractional bits, of two as near the one whose last bit is 0. NaN and infinity stay what
/// they are. Products drop the other bits of a float by themselves, which makes it smaller: so its factors come from
/// here. (GPUs before Hopper have an instruction for the other way to choose only: of two the one farther from 0.)
FUSEDSC_DEVICE std::uint32_t to_tf32(float value) {
#if defined(__CUDA_ARCH__)
  std::uint32_t bits;
#if __CUDA_ARCH__ >= 900
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
#else
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
#endif
  return bits;
#else
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  return value != value ? 0x7fffffffu : (bits + 0xfffu + (bits >> 13 & 1)) & ~0x1fffu;
#endif
}
FUSEDSC_DEVICE float rounded_to_tf32(float value) { return __builtin_bit_cast(float, to_tf32(value)); }

/// Of a float's bits, for instructions that drop the last 13: of two as near the one farther from 0. In one instruction
/// whose result is where its reader wants it, while the compiler puts to_tf32()'s where its operand was: the larger of
/// bits and bits + half, as integers, since behind the NaN 0x7fffffff come negative ones. So is a NaN whose bits are
/// 0xfffff000 or more not kept, which no arithmetic makes.
FUSEDSC_DEVICE std::uint32_t round_to_tf32(std::uint32_t word) {
  const auto bits = static_cast<std::int32_t>(word);
#if defined(__CUDA_ARCH__)
  return static_cast<std::uint32_t>(__viaddmax_s32(bits, 0x1000, bits));
#else
  const auto up = static_cast<std::int32_t>(word + 0x1000u);
  return static_cast<std::uint32_t>(up > bits ? up : bits);
#endif
}

#if defined(FUSEDSC_HOST_EXECUTOR)
inline constexpr bool kWaveProducts = true;

/// Of the 32 threads, for what they have written to shared memory.
inline void wave_product_barrier() { executor::wave_barrier(); }

template <class T>
void wave_multiply_add(float (&d)[4], const WaveFragments& own, T) {
  const int lane = thread_index() % 32, g = lane / 4, t = lane % 4;
  auto* const place = executor::place_of_thread<WaveFragments>();
  const WaveFragments* wave = place - lane;
  *place = own;
  executor::wave_barrier();
  float a[2][16], b[2][16];
  for (int k = 0; k < 16; k += 2) {
    const int other_t = k % 8 / 2, half = k / 8;
    for (int i = 0; i < 2; ++i) {
      to_floats(wave[g * 4 + other_t].a[2 * half + i], a[i][k], a[i][k + 1], T());
      to_floats(wave[(2 * t + i) * 4 + other_t].b[half], b[i][k], b[i][k + 1], T());
    }
  }
  for (int i = 0; i < 4; ++i) {
    for (int k = 0; k < 16; ++k) d[i] += a[i / 2][k] * b[i % 2][k];
  }
}

/// D += A*B with A (16 x 8) and B (8 x 8) of TensorFloat-32: of lane l, registers of A hold column t of rows g and g +
/// 8, then column t + 4 of them; of B rows t and t + 4 of column g; D as above.
inline void wave_multiply_add_tf32(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  const int lane = thread_index() % 32, g = lane / 4, t = lane % 4;
  auto* const place = executor::place_of_thread<WaveFragments>();
  const WaveFragments* wave = place - lane;
  *place = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  executor::wave_barrier();
  const auto factor = [](std::uint32_t word) { return __builtin_bit_cast(float, word & ~0x1fffu); };  // cut off
  for (int i = 0; i < 4; ++i) {
    for (int k = 0; k < 8; ++k) {
      d[i] += factor(wave[g * 4 + k % 4].a[i / 2 + k / 4 * 2]) * factor(wave[(2 * t + i % 2) * 4 + k % 4].b[k / 4]);
    }
  }
}

/// Of A's first 8 columns and B's first 8 rows.
template <class T>
void wave_multiply_add_half(float (&d)[4], const std::uint32_t (&a)[2], std::uint32_t b, T) {
  wave_multiply_add(d, {{a[0], a[1], 0, 0}, {b, 0}}, T());
}
#elif defined(__CUDACC__)
inline constexpr bool kWaveProducts = true;

FUSEDSC_DEVICE void wave_product_barrier() { __syncwarp(); }

FUSEDSC_DEVICE void wave_multiply_add_half(float (&d)[4], const std::uint32_t (&a)[2], std::uint32_t b, Float16) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b));
}
FUSEDSC_DEVICE void wave_multiply_add_half(float (&d)[4], const std::uint32_t (&a)[2], std::uint32_t b, BFloat16) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b));
}

FUSEDSC_DEVICE void wave_multiply_add(float (&d)[4], const WaveFragments& own, Float16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(own.a[0]), "r"(own.a[1]), "r"(own.a[2]), "r"(own.a[3]), "r"(own.b[0]), "r"(own.b[1]));
}
FUSEDSC_DEVICE void wave_multiply_add(float (&d)[4], const WaveFragments& own, BFloat16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(own.a[0]), "r"(own.a[1]), "r"(own.a[2]), "r"(own.a[3]), "r"(own.b[0]), "r"(own.b[1]));
}

/// D += A*B with A (16 x 8) and B (8 x 8) of TensorFloat-32: of lane l, registers of A hold column t of rows g and g +
/// 8, then column t + 4 of them; of B rows t and t + 4 of column g; D as above.
FUSEDSC_DEVICE void wave_multiply_add_tf32(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#else
inline constexpr bool kWaveProducts = false;

FUSEDSC_DEVICE void wave_product_barrier() {}

template <class T>
FUSEDSC_DEVICE void wave_multiply_add(float (&d)[4], const WaveFragments& own, T) = delete;
#endif

#if defined(FUSEDSC_HOST_EXECUTOR) || defined(__CUDACC__)
/// Of TensorFloat-32, 8 in place of 16 columns of A and rows of B: as wave_multiply_add_tf32.
FUSEDSC_DEVICE void wave_multiply_add(float (&d)[4], const WaveFragments& own, float) {
  wave_multiply_add_tf32(d, own.a, own.b);
}
#endif

}  // namespace fusedsc::gpu
