/// Where the gradients of few outputs are left to "gpu_skinny" on a GPU with 132 multiprocessors: not of the problem
/// that it was measured to lose on an H200 (96→4 at 32 positions: 7.56 µs, "gpu_tiles" 2.12), but of those that it was
/// measured to win.
#include <gtest/gtest.h>

#include "host_executor/fitting.h"

namespace fusedsc {
namespace {

constexpr int kMultiprocessors = 132;

std::string prior(const std::string& role, const std::string& problem) {
  const std::string taken = Fitting(kMultiprocessors).prior(role, problem);
  testing::Test::RecordProperty("taken", taken);
  return taken.substr(0, taken.find('/'));
}

/// As rows of measurements have them. `x`, `grad_y`: sizes and layout.
std::string problem(const std::string& x, const std::string& grad_y, const std::string& weight, bool wants_weight) {
  const std::string align = " align=64 gpu";
  return "x=float16" + x + align + ", weight=float16" + weight + align + ", groups=1, grad_y=float16" + grad_y + align +
         ", sums{normaliser{training}}, grad_x=float16" + x + align +
         (wants_weight
              ? ", grad_weight=float16" + weight + align + ", grad_bias=float16[" + weight.substr(1, 1) + "]" + align
              : "") +
         ", allow_tf32";
}

struct Case {
  const char *x, *grad_y, *weight;
};

constexpr Case kSmall{"[1,96,32,1] channels_last", "[1,4,32,1] channels_last", "[4,96,1,1] channels_last"};
constexpr Case kLarge[] = {
    {"[128,64,28,28] channels_last", "[128,1,28,28] channels_last", "[1,64,1,1] contiguous"},
    {"[128,64,28,28] channels_last", "[128,4,28,28] channels_last", "[4,64,1,1] contiguous"},
    {"[128,64,28,28] contiguous", "[128,2,28,28] contiguous", "[2,64,1,1] contiguous"},
    {"[128,384,14,14] contiguous", "[128,1,14,14] contiguous", "[1,384,1,1] contiguous"},
};

TEST(PointwiseSkinnyPrior, FewElementsAreLeftToOthers) {
  // Of one gradient "gpu_fragments" or "gpu_tiles", which were measured alike.
  const std::string input =
      prior("pointwise_conv2d.grad_input", problem(kSmall.x, kSmall.grad_y, kSmall.weight, false));
  EXPECT_TRUE(input == "gpu_fragments" || input == "gpu_tiles") << input;
  EXPECT_EQ(prior("pointwise_conv2d.backward", problem(kSmall.x, kSmall.grad_y, kSmall.weight, true)), "gpu_separate");
}

TEST(PointwiseSkinnyPrior, ManyElementsAreItsOwn) {
  for (const Case& one : kLarge) {
    SCOPED_TRACE(one.x);
    EXPECT_EQ(prior("pointwise_conv2d.backward", problem(one.x, one.grad_y, one.weight, true)), "gpu_skinny");
    EXPECT_EQ(prior("pointwise_conv2d.grad_input", problem(one.x, one.grad_y, one.weight, false)), "gpu_skinny");
  }
}

}  // namespace
}  // namespace fusedsc
