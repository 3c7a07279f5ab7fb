/// The instructions of AMD's matrix cores, one by one, and that pointwise convolutions multiply by them.
#include <gtest/gtest.h>

#include <cstring>

#include "fusedsc/common/gpu/products/matrix_cores.h"
#include "host_executor/executor.h"

namespace fusedsc::gpu {
namespace {

template <class T_, class Cores_>
struct Case {
  using T = T_;
  using Cores = Cores_;
};

/// Small integers, whose products every type can hold.
template <class Case>
class MatrixCores : public testing::Test {
 protected:
  using T = typename Case::T;
  using Cores = typename Case::Cores;

  void SetUp() override { executor::set_wave_size(Cores::kLanes); }

  static int a(int row, int k) { return (row * 7 + k * 3) % 11 - 5; }
  static int b(int column, int k) { return (column * 5 + k * 2) % 13 - 6; }
  /// A lane's, of the matrix whose elements element(row, k) gives.
  static typename Cores::Factors factors(int row, int first_k, int (*element)(int, int)) {
    T values[Cores::kFactors];
    for (int i = 0; i < Cores::kFactors; ++i) {
      from_accumulator(Accumulator<T>(element(row, first_k + i)), values[i]);
    }
    typename Cores::Factors result;
    static_assert(sizeof result == sizeof values);
    std::memcpy(&result, values, sizeof values);
    return result;
  }
};
using MatrixCoreCases =
    testing::Types<Case<Float16, Mfma<Float16>>, Case<BFloat16, Mfma<BFloat16>>, Case<float, Mfma<float>>,
                   Case<double, Mfma<double>>, Case<Float16, Wmma<Float16, 11>>, Case<BFloat16, Wmma<BFloat16, 11>>,
                   Case<Float16, Wmma<Float16, 12>>, Case<BFloat16, Wmma<BFloat16, 12>>>;
TYPED_TEST_SUITE(MatrixCores, MatrixCoreCases);

TYPED_TEST(MatrixCores, MultiplyMatricesOfAllLanes) {
  using Cores = typename TypeParam::Cores;
  bool is_seen[16][16] = {};
  executor::run(1, 128, 0, [&] {
    const int lane = thread_index() % Cores::kLanes;
    typename Cores::Sums sums;
    for (auto& sum : sums) sum = 1;
    Cores::multiply_add(sums, this->factors(Cores::a_row(lane), Cores::first_k(lane), this->a),
                        this->factors(Cores::b_row(lane), Cores::first_k(lane), this->b));
    for (int i = 0; i < Cores::kSums; ++i) {
      const int row = Cores::d_row(lane, i), column = Cores::b_row(lane);
      int expected = 1;
      for (int k = 0; k < 16; ++k) expected += this->a(row, k) * this->b(column, k);
      ASSERT_EQ(sums[static_cast<std::size_t>(i)], expected) << row << ", " << column;
      is_seen[row][column] = true;
    }
  });
  for (const auto& row : is_seen) {
    for (const bool is_element_seen : row) EXPECT_TRUE(is_element_seen);
  }
}

/// A lane's elements of D lie side by side in memory where tiles have columns as neighbours: runs of 16 bytes; but
/// doubles are 4 apart.
TYPED_TEST(MatrixCores, HaveRuns) {
  using Cores = typename TypeParam::Cores;
  constexpr int kRun = sizeof(typename TypeParam::T) == 8 ? 1 : 4;
  for (int lane = 0; lane < Cores::kLanes; ++lane) {
    for (int i = 0; i < Cores::kSums; ++i) {
      EXPECT_EQ(Cores::d_row(lane, i), Cores::d_row(lane, i / kRun * kRun) + i % kRun);
    }
    EXPECT_EQ(Cores::d_row(lane, 0) % kRun, 0);
  }
}

TEST(WmmaOfGfx11, WantsTheSameOfLanesSixteenApart) {
  executor::set_wave_size(32);
  executor::run(1, 32, 0, [] {
    std::uint32_t a[8] = {}, b[8] = {};
    a[3] = thread_index() == 20 ? 0x3c003c00 : 0;
    WmmaSums d = {};
    wmma(d, a, b, Float16());
    EXPECT_TRUE(std::isnan(d[0]));
  });
}

}  // namespace
}  // namespace fusedsc::gpu
