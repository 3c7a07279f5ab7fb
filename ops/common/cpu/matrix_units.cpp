#include "fusedsc/common/cpu/matrix_units.h"

#include <atomic>

#if defined(__x86_64__) && defined(__linux__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <memory>

#include "fusedsc/common/cpu/intrinsics.h"
#include "hwy/base.h"

namespace fusedsc {
namespace {

/// AMX as the processor reports it, and as Linux allows it: on request, for the whole process.
bool find_matrix_units() {
  constexpr unsigned kBfloat16 = 1U << 22, kTiles = 1U << 24, kAvx512F = 1U << 16, kAvx512Bw = 1U << 30;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  if ((edx & kBfloat16) == 0 || (edx & kTiles) == 0 || (ebx & kAvx512F) == 0 || (ebx & kAvx512Bw) == 0) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

std::atomic<bool> allowed{true};

constexpr std::int64_t kLanes = 16;       // floats of a vector or of a tile's row
constexpr std::int64_t kDepthBlocks = 8;  // worked off at once: B's stay in the first-level cache
constexpr std::int64_t kLineBlocks = 8;   // of A, split at once

/// A's and B's parts, and the blocks of C that do not lie wholly in C.
struct Scratch {
  alignas(64) std::byte a[kLineBlocks * kDepthBlocks * kMatrixBlockBytes];
  alignas(64) std::byte b[kDepthBlocks * kMatrixBlockBytes];
  alignas(64) float c[kMatrixBlock * kMatrixBlock];
};

std::int64_t lesser(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

}  // namespace

bool machine_has_matrix_units() {
  static const bool found = find_matrix_units();
  return found;
}

void use_matrix_units(bool are_allowed) { allowed = are_allowed; }

// What follows is compiled for AVX-512 and AMX, and runs only where machine_has_matrix_units().
HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,amx-tile,amx-bf16")
namespace {

/// Eight tiles of 16 rows of 64 bytes, in the form that ldtilecfg reads.
struct alignas(64) TileConfiguration {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
const TileConfiguration kConfiguration;

/// Tiles 4 and 5: lines 0-15 and 16-31 of a part of A; 6 and 7: of B; 0 to 3: the four tiles of C.
[[gnu::always_inline]] inline void load_a(const std::byte* part) {
  _tile_loadd(4, part, 64);
  _tile_loadd(5, part + kMatrixTileBytes, 64);
}
[[gnu::always_inline]] inline void load_b(const std::byte* part) {
  _tile_loadd(6, part, 64);
  _tile_loadd(7, part + kMatrixTileBytes, 64);
}
[[gnu::always_inline]] inline void multiply_parts(Prefetcher::Walk& walk) {
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
  walk.step();
}
constexpr std::int64_t kStepsPerBlock = 6;  // calls of multiply_parts

/// A block of C, row_bytes from row to row, over `blocks` blocks of depth.
[[gnu::noinline]] void multiply_blocks(const std::byte* a, const std::byte* b, std::int64_t blocks, bool accumulate,
                                       float* c, std::int64_t row_bytes, Prefetcher& prefetcher) {
  asm volatile("" ::: "memory");  // the intrinsics do not tell the compiler what they read
  float* right = c + kLanes;
  float* below = c + 16 * (row_bytes / static_cast<std::int64_t>(sizeof(float)));
  float* corner = below + kLanes;
  if (accumulate) {
    _tile_loadd(0, c, row_bytes);
    _tile_loadd(1, right, row_bytes);
    _tile_loadd(2, below, row_bytes);
    _tile_loadd(3, corner, row_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  Prefetcher::Walk walk(prefetcher);
  for (; blocks > 0; --blocks, a += kMatrixBlockBytes, b += kMatrixBlockBytes) {
    load_b(b);
    load_a(a + 2 * kMatrixPartBytes);
    multiply_parts(walk);
    load_a(a + kMatrixPartBytes);
    multiply_parts(walk);
    load_a(a);
    multiply_parts(walk);
    load_b(b + 2 * kMatrixPartBytes);
    multiply_parts(walk);
    load_b(b + kMatrixPartBytes);
    multiply_parts(walk);
    load_a(a + kMatrixPartBytes);
    multiply_parts(walk);
  }
  _tile_stored(0, c, row_bytes);
  _tile_stored(1, right, row_bytes);
  _tile_stored(2, below, row_bytes);
  _tile_stored(3, corner, row_bytes);
}

/// As much of C's block as there is, through a whole one.
void multiply_partial(const std::byte* a, const std::byte* b, std::int64_t blocks, bool accumulate, float* c,
                      std::int64_t c_row, std::int64_t rows, std::int64_t columns, float* whole,
                      Prefetcher& prefetcher) {
  const __mmask16 left = first_lanes(columns), right = first_lanes(columns - kLanes);
  for (std::int64_t r = 0; accumulate && r < kMatrixBlock; ++r) {
    const __mmask16 exists = r < rows ? 0xffff : 0;
    _mm512_store_ps(whole + r * kMatrixBlock, _mm512_maskz_loadu_ps(left & exists, c + r * c_row));
    _mm512_store_ps(whole + r * kMatrixBlock + kLanes, _mm512_maskz_loadu_ps(right & exists, c + r * c_row + kLanes));
  }
  multiply_blocks(a, b, blocks, accumulate, whole, kMatrixBlock * sizeof(float), prefetcher);
  for (std::int64_t r = 0; r < rows; ++r) {
    _mm512_mask_storeu_ps(c + r * c_row, left, _mm512_load_ps(whole + r * kMatrixBlock));
    _mm512_mask_storeu_ps(c + r * c_row + kLanes, right, _mm512_load_ps(whole + r * kMatrixBlock + kLanes));
  }
}

/// One product: loops over what fits the scratch memory.
class Multiplication {
 public:
  Multiplication(const MatrixUnitProduct& product, Scratch& scratch, Prefetcher& prefetcher)
      : p_(product), scratch_(scratch), prefetcher_(prefetcher) {}

  void run() const {
    constexpr std::int64_t kDepth = kDepthBlocks * kMatrixBlock, kLines = kLineBlocks * kMatrixBlock;
    for (std::int64_t k = 0; k < p_.depth; k += kDepth) {
      const std::int64_t depth = lesser(kDepth, p_.depth - k);
      for (std::int64_t r = 0; r < p_.rows; r += kLines) {
        const std::int64_t rows = lesser(kLines, p_.rows - r);
        split_a(r, rows, k, depth);
        for (std::int64_t v = 0; v < p_.columns; v += kMatrixBlock) multiply_columns(r, rows, k, depth, v);
      }
    }
  }

 private:
  void split_a(std::int64_t row, std::int64_t rows, std::int64_t k, std::int64_t depth) const {
    std::byte* block = scratch_.a;
    for (std::int64_t r = 0; r < rows; r += kMatrixBlock) {
      for (std::int64_t i = 0; i < depth; i += kMatrixBlock, block += kMatrixBlockBytes) {
        const float* from = p_.a + (row + r) * p_.a_row + k + i;
        split_rows(from, p_.a_row, lesser(kMatrixBlock, rows - r), lesser(kMatrixBlock, depth - i), block);
      }
    }
  }

  const std::byte* parts_of_b(std::int64_t k, std::int64_t depth, std::int64_t column, std::int64_t columns) const {
    if (p_.b_parts != nullptr) {
      return p_.b_parts + (column / kMatrixBlock * matrix_blocks(p_.depth) + k / kMatrixBlock) * kMatrixBlockBytes;
    }
    std::byte* block = scratch_.b;
    for (std::int64_t i = 0; i < depth; i += kMatrixBlock, block += kMatrixBlockBytes) {
      split_columns(p_.b + (k + i) * p_.b_depth + column, p_.b_depth, columns, lesser(kMatrixBlock, depth - i), block);
    }
    return scratch_.b;
  }

  void multiply_columns(std::int64_t row, std::int64_t rows, std::int64_t k, std::int64_t depth,
                        std::int64_t column) const {
    const std::int64_t blocks = matrix_blocks(depth), columns = lesser(kMatrixBlock, p_.columns - column);
    const std::byte* b = parts_of_b(k, depth, column, columns);
    const std::byte* a = scratch_.a;
    const bool accumulate = p_.accumulate || k > 0;
    for (std::int64_t r = 0; r < rows; r += kMatrixBlock, a += blocks * kMatrixBlockBytes) {
      float* c = p_.c + (row + r) * p_.c_row + column;
      const std::int64_t lines = lesser(kMatrixBlock, rows - r);
      if (lines == kMatrixBlock && columns == kMatrixBlock) {
        multiply_blocks(a, b, blocks, accumulate, c, p_.c_row * static_cast<std::int64_t>(sizeof(float)), prefetcher_);
      } else {
        multiply_partial(a, b, blocks, accumulate, c, p_.c_row, lines, columns, scratch_.c, prefetcher_);
      }
    }
  }

  const MatrixUnitProduct& p_;
  Scratch& scratch_;
  Prefetcher& prefetcher_;
};

}  // namespace

void multiply_on_matrix_units(const MatrixUnitProduct& product, Prefetcher& prefetcher) {
  // Not itself thread_local: half a megabyte would be part of every thread of the program.
  static thread_local const std::unique_ptr<Scratch> scratch(new Scratch);
  _tile_loadconfig(&kConfiguration);
  Multiplication(product, *scratch, prefetcher).run();
  _tile_release();
}
HWY_POP_ATTRIBUTES

bool matrix_units_pay(const MatrixUnitProduct& p) {
  if (!allowed.load(std::memory_order_relaxed) || !machine_has_matrix_units()) return false;
  // Nanoseconds on a Sapphire Rapids: a block of products, a block of C, an element split, a vector multiplied and
  // added.
  constexpr double kBlock = 145, kResult = 40, kSplit = 0.11, kVector = 0.168, kStart = 100;
  const std::int64_t results = matrix_blocks(p.rows) * matrix_blocks(p.columns), deep = matrix_blocks(p.depth);
  const std::int64_t visits = results * ((deep + kDepthBlocks - 1) / kDepthBlocks);
  const double split_a = kSplit * static_cast<double>(p.rows * p.depth);
  const double split_b = p.b_parts != nullptr ? 0 : kSplit * static_cast<double>(p.columns * p.depth);
  const std::int64_t vectors = p.rows * p.depth * ((p.columns + kLanes - 1) / kLanes);
  const double matrices = kBlock * static_cast<double>(results * deep) + kResult * static_cast<double>(visits);
  return kStart + matrices + split_a + split_b < kVector * static_cast<double>(vectors);
}

std::int64_t matrix_unit_steps(const MatrixUnitProduct& p) {
  return matrix_blocks(p.rows) * matrix_blocks(p.columns) * matrix_blocks(p.depth) * kStepsPerBlock;
}

}  // namespace fusedsc

#else  // no AMX here

namespace fusedsc {

bool machine_has_matrix_units() { return false; }
void use_matrix_units(bool) {}
bool matrix_units_pay(const MatrixUnitProduct&) { return false; }
std::int64_t matrix_unit_steps(const MatrixUnitProduct&) { return 0; }
void multiply_on_matrix_units(const MatrixUnitProduct&, Prefetcher&) {}

}  // namespace fusedsc

#endif
