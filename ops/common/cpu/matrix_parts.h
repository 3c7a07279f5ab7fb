/// Floats as the exact sums of three bfloat16 parts, laid out as the matrix units (Intel AMX) read them.
///
/// An operand's lines are the rows of A or the columns of B. Operands are cut into blocks of kMatrixBlock lines by
/// kMatrixBlock of depth. A block has its parts one after the other, the leading one first; a part has two tiles, for
/// lines 0-15 and 16-31. A tile of A has a row of 64 bytes per line, one of B a row per pair of depths; its dwords are
/// pairs of bfloat16 with depth k in the lower and k + 16 in the upper half, so that no vector of floats is reordered.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fusedsc {

inline constexpr std::int64_t kMatrixBlock = 32;
inline constexpr std::int64_t kMatrixParts = 3;
inline constexpr std::int64_t kMatrixTileBytes = 1024;  // 16 rows of 64
inline constexpr std::int64_t kMatrixPartBytes = 2 * kMatrixTileBytes;
inline constexpr std::int64_t kMatrixBlockBytes = kMatrixParts * kMatrixPartBytes;

inline constexpr std::int64_t matrix_blocks(std::int64_t size) { return (size + kMatrixBlock - 1) / kMatrixBlock; }

/// Bytes of an operand's parts: its blocks, [line block][depth block].
inline constexpr std::int64_t matrix_parts_bytes(std::int64_t lines, std::int64_t depth) {
  return matrix_blocks(lines) * matrix_blocks(depth) * kMatrixBlockBytes;
}

// A block's parts, from as many of its lines and as much of its depth as there are; zeros for the rest. Only for
// machines with AVX-512.

/// A block of A: from[line * pitch + k].
void split_rows(const float* from, std::int64_t pitch, std::int64_t lines, std::int64_t depth, std::byte* block);
/// A block of B: from[k * pitch + line].
void split_columns(const float* from, std::int64_t pitch, std::int64_t lines, std::int64_t depth, std::byte* block);

}  // namespace fusedsc
