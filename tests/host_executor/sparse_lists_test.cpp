/// How much gpu_lists multiplies and adds, counted in the kernel itself.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <vector>

#include "fusedsc/forward/sparse/lists/sparse_lists_kernel.h"
#include "fusedsc/forward/sparse/lists/sparse_lists_plan.h"
#include "fusedsc/tuning/config.h"

namespace fusedsc::gpu {
namespace {

std::int64_t products = 0, additions = 0;

/// An addition is one to a sum that has something in it: no product of these tests is negative, and what a weight of
/// zero makes of an output that is not given adds nothing.
struct CountedProduct {
  template <class A>
  static void add(A& sum, A value, A weight) {
    ++products;
    additions += sum > 0 && weight > 0 ? 1 : 0;
    sum += value * weight;
  }
};

constexpr int kOutputs = 32;

/// y of one output, by kernels that count, and of that output the products and additions.
struct Counted {
  std::vector<float> y;
  std::int64_t products = 0, additions = 0;
};

Counted count(const std::vector<float>& map, std::int64_t height, std::int64_t width, const SparseTiling& tiling) {
  std::vector<float> x = map, packed(static_cast<std::size_t>(9 * kSparseRow), 0);
  for (std::size_t tap = 0; tap < 9; ++tap) packed[tap * kSparseRow] = static_cast<float>(tap + 1);
  const std::int64_t rows = height - 2, columns = width - 2;
  Counted counted;
  counted.y.assign(static_cast<std::size_t>(rows * columns), -1);
  const auto dense = [](const Sizes& sizes) { return dense_strides(sizes, Layout::contiguous); };
  SparseArguments a;
  const Sizes x_sizes{1, 1, height, width}, y_sizes{1, 1, rows, columns};
  a.x = {x.data(), DataType::float32, x_sizes, dense(x_sizes), Device::gpu};
  a.weight = {nullptr, DataType::float32, {1, 1, 3, 3}, {9, 9, 3, 1}, Device::gpu};
  a.packed = {packed.data(), DataType::float32, static_cast<std::int64_t>(packed.size()), Device::gpu};
  a.window.kernel = {3, 3};
  a.y = {counted.y.data(), DataType::float32, y_sizes, dense(y_sizes), Device::gpu};
  const SparseListsPlan plan = plan_sparse_lists(a, tiling);
  SparseListsParameters p = plan.parameters;
  p.x = a.x;
  p.y = a.y;
  p.weight = packed.data();
  products = additions = 0;
  executor::run(static_cast<unsigned>(plan.blocks), static_cast<unsigned>(p.threads), plan.shared_memory_bytes,
                [&] { SparseLists<float, kOutputs, 1, /*kCompressed=*/false, CountedProduct>::run(p); });
  EXPECT_EQ(products % kOutputs, 0);  // those that are not given are zeros of the weight, not of the map
  counted.products = products / kOutputs;
  counted.additions = additions;
  return counted;
}

/// The example that seed 002 works out (Figs. 4 and 6): a row of three windows of 3 x 3, the first with three values
/// other than zero. Of 27 products ten are left, of 24 additions seven.
TEST(SparseLists, MultipliesAndAddsAsOftenAsThePaperSays) {
  const std::vector<float> map = {0, 0, 1, 0, 2,  //
                                  3, 0, 0, 5, 0,  //
                                  0, 4, 0, 0, 6};
  std::vector<std::int64_t> of_windows;
  for (std::size_t first = 0; first < 3; ++first) {
    std::int64_t values = 0;
    for (std::size_t i = 0; i < 9; ++i) values += map[i / 3 * 5 + first + i % 3] != 0;
    of_windows.push_back(values);
  }
  ASSERT_EQ(of_windows, (std::vector<std::int64_t>{3, 3, 4}));
  for (const int lanes_of_wave : {32, 64}) {
    executor::set_wave_size(lanes_of_wave);
    for (const SparseTiling& tiling : {SparseTiling{32, 1, 3, 1, 4}, SparseTiling{32, 1, 2, 1, 8}}) {
      const Counted counted = count(map, 3, 5, tiling);
      EXPECT_EQ(counted.products, 10);
      EXPECT_EQ(counted.additions, 7);
      EXPECT_EQ(counted.y,
                (std::vector<float>{1 * 3 + 3 * 4 + 4 * 8, 1 * 2 + 5 * 6 + 4 * 7, 1 * 1 + 2 * 3 + 5 * 5 + 6 * 9}));
    }
  }
}

/// A window of nothing but zeros is marked, and nothing is multiplied.
TEST(SparseLists, OfNothingButZerosNothingIsMultiplied) {
  const Counted counted = count(std::vector<float>(15, -0.0F), 3, 5, {32, 1, 3, 1, 4});
  EXPECT_EQ(counted.products, 0);
  EXPECT_EQ(counted.additions, 0);
  EXPECT_EQ(counted.y, (std::vector<float>{0, 0, 0}));
}

}  // namespace
}  // namespace fusedsc::gpu
