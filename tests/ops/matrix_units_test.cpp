/// Products on the CPU's matrix units against double precision.
#include "fusedsc/common/cpu/matrix_units.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "fusedsc/runtime/arena.h"

namespace fusedsc::reference {
namespace {

enum class Weights { as_floats, split };  // B

struct Case {
  std::int64_t rows, columns, depth;
  Weights weights = Weights::as_floats;
  bool accumulate = false;
};

class MatrixUnits : public testing::Test {
 protected:
  void SetUp() override {
    if (!machine_has_matrix_units()) GTEST_SKIP() << "this machine has no matrix units";
  }

  /// Normally distributed, NaN in the gaps between lines.
  std::vector<float> random_lines(std::int64_t lines, std::int64_t length, std::int64_t pitch) {
    std::vector<float> values(static_cast<std::size_t>(lines * pitch), std::numeric_limits<float>::quiet_NaN());
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < lines; ++i) {
      for (std::int64_t j = 0; j < length; ++j) values[static_cast<std::size_t>(i * pitch + j)] = normal(random_);
    }
    return values;
  }

  void verify(const Case& test) {
    const auto [rows, columns, depth, weights, accumulate] = test;
    const std::int64_t a_pitch = depth + 5, b_pitch = columns + 3, c_pitch = columns + 7;
    const std::vector<float> a = random_lines(rows, depth, a_pitch);
    const std::vector<float> b = random_lines(depth, columns, b_pitch);
    const std::vector<float> before = random_lines(rows, columns, c_pitch);
    std::vector<float> c = before;
    if (!accumulate) std::fill(c.begin(), c.end(), std::numeric_limits<float>::quiet_NaN());

    MatrixUnitProduct product{
        .rows = rows, .columns = columns, .depth = depth, .a = a.data(), .accumulate = accumulate};
    product.a_row = a_pitch;
    product.c = c.data();
    product.c_row = c_pitch;
    std::vector<char> memory(static_cast<std::size_t>(matrix_parts_bytes(columns, depth)) + Arena::kAlignment);
    if (weights == Weights::split) {
      product.b_parts = split(b, b_pitch, depth, columns, memory);
    } else {
      product.b = b.data();
      product.b_depth = b_pitch;
    }
    Prefetcher none;
    multiply_on_matrix_units(product, none);

    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t v = 0; v < c_pitch; ++v) {
        const float result = c[static_cast<std::size_t>(r * c_pitch + v)];
        if (v >= columns) {
          ASSERT_TRUE(std::isnan(result)) << "written beyond the columns, at row " << r;
          continue;
        }
        double sum = accumulate ? before[static_cast<std::size_t>(r * c_pitch + v)] : 0, magnitude = std::abs(sum);
        for (std::int64_t k = 0; k < depth; ++k) {
          const double term =
              double(a[static_cast<std::size_t>(r * a_pitch + k)]) * b[static_cast<std::size_t>(k * b_pitch + v)];
          sum += term;
          magnitude += std::abs(term);
        }
        // Each term's dropped parts, and the roundings of the sum.
        const double roundings = 4 + std::sqrt(static_cast<double>(depth));
        ASSERT_NEAR(result, sum, roundings * std::numeric_limits<float>::epsilon() * magnitude)
            << "row " << r << ", column " << v << " of " << rows << " x " << columns << ", depth " << depth;
      }
    }
  }

 private:
  static const std::byte* split(const std::vector<float>& b, std::int64_t pitch, std::int64_t depth,
                                std::int64_t columns, std::vector<char>& memory) {
    void* start = memory.data();
    std::size_t space = memory.size();
    auto* parts =
        static_cast<std::byte*>(std::align(Arena::kAlignment, memory.size() - Arena::kAlignment, start, space));
    std::byte* block = parts;
    for (std::int64_t v = 0; v < columns; v += kMatrixBlock) {
      for (std::int64_t k = 0; k < depth; k += kMatrixBlock, block += kMatrixBlockBytes) {
        split_columns(b.data() + k * pitch + v, pitch, std::min(kMatrixBlock, columns - v),
                      std::min(kMatrixBlock, depth - k), block);
      }
    }
    return parts;
  }

  std::mt19937 random_{7};
};

/// Next to the sizes of tiles, of blocks, and of what is split at once.
TEST_F(MatrixUnits, ProductsOfAllSizes) {
  constexpr std::int64_t kSizes[] = {1, 2, 15, 16, 17, 31, 32, 33, 64, 100};
  for (const std::int64_t rows : kSizes) {
    for (const std::int64_t columns : kSizes) {
      for (const std::int64_t depth : kSizes) verify({rows, columns, depth});
    }
  }
  for (const auto& [rows, columns, depth] : {std::array{300, 40, 70}, {33, 300, 300}, {70, 17, 1000}, {513, 33, 257}}) {
    verify({rows, columns, depth});
  }
}

TEST_F(MatrixUnits, OperandsOfAllKinds) {
  for (const Weights weights : {Weights::as_floats, Weights::split}) {
    for (const bool accumulate : {false, true}) {
      for (const std::int64_t size : {5, 32, 39, 290}) {
        verify({size, 24, 47, weights, accumulate});
        verify({40, size, 56, weights, accumulate});
        verify({33, 64, size, weights, accumulate});
      }
    }
  }
}

}  // namespace
}  // namespace fusedsc::reference
