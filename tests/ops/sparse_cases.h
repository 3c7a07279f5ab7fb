/// Cases of the convolution that skips zeros, and how they are verified, on the CPU or on a GPU.
#pragma once

#include <cmath>
#include <ostream>
#include <vector>

#include "fusedsc/forward/sparse.h"
#include "ops/cases.h"
#include "ops/verify.h"
#include "reference/activation.h"

namespace fusedsc::reference {

constexpr Operator<SparseArguments> kSparse{sparse_conv2d, sparse_conv2d_workspace_bytes};

struct SparseCase {
  DataType dtype = DataType::float32;
  Sizes x{};
  std::int64_t outputs = 1, groups = 1;
  Window window{};
  MaxPooling pooling{};
  Activation activation = Activation::identity;
  double zeros = 0.8;  ///< share of x
  bool bias = true, packed = false;
  Memories memories{};

  Sizes weight_sizes() const { return {outputs, x[1] / groups, window.kernel[0], window.kernel[1]}; }
};

inline std::ostream& operator<<(std::ostream& out, const SparseCase& problem) {
  out << name_of(problem.dtype) << ", x " << printed(problem.x) << ", M " << problem.outputs << ", groups "
      << problem.groups << ", kernel " << problem.window.kernel[0] << " x " << problem.window.kernel[1] << ", stride "
      << problem.window.stride[0] << " x " << problem.window.stride[1] << ", dilation " << problem.window.dilation[0]
      << " x " << problem.window.dilation[1] << ", padding " << problem.window.padding.left << ' '
      << problem.window.padding.right << ' ' << problem.window.padding.top << ' ' << problem.window.padding.bottom;
  if (problem.pooling) {
    out << ", pool " << problem.pooling.size[0] << " x " << problem.pooling.size[1] << " by "
        << problem.pooling.stride[0] << " x " << problem.pooling.stride[1];
  }
  return out << ", " << name_of(problem.activation) << ", " << problem.zeros << " zeros"
             << (problem.bias ? ", bias" : "") << (problem.packed ? ", packed" : "") << "\n  " << problem.memories;
}

/// As plain loops, over every value of x.
inline Array sparse_reference(const SparseCase& problem, const Array& x, const Array& weight, const Vector& bias) {
  const Precision precision(problem.dtype);
  const Window& window = problem.window;
  const std::int64_t channels = x.sizes[1] / problem.groups, outputs = problem.outputs / problem.groups;
  Array convolved({x.sizes[0], problem.outputs, window.output_height(x.sizes[2]), window.output_width(x.sizes[3])});
  for_each_index(convolved.sizes, [&](auto n, auto m, auto oh, auto ow) {
    Sum sum;
    if (!bias.empty()) sum.add(bias[static_cast<std::size_t>(m)]);
    for_each_index({1, channels, window.kernel[0], window.kernel[1]}, [&](auto, auto c, auto kh, auto kw) {
      const std::int64_t h = oh * window.stride[0] + kh * window.dilation[0] - window.padding.top;
      const std::int64_t w = ow * window.stride[1] + kw * window.dilation[1] - window.padding.left;
      if (h < 0 || h >= x.sizes[2] || w < 0 || w >= x.sizes[3]) return;
      sum.add(product(x.at(n, m / outputs * channels + c, h, w), weight.at(m, c, kh, kw)));
    });
    convolved.at(n, m, oh, ow) = activate(precision, problem.activation, sum.result(precision));
  });
  if (!problem.pooling) return convolved;
  const MaxPooling& pooling = problem.pooling;
  Array y({x.sizes[0], problem.outputs, pooling.output_height(convolved.sizes[2]),
           pooling.output_width(convolved.sizes[3])});
  for_each_index(y.sizes, [&](auto n, auto m, auto h, auto w) {
    Bounded most{-INFINITY, 0};
    for_each_index({1, 1, pooling.size[0], pooling.size[1]}, [&](auto, auto, auto i, auto j) {
      const Bounded& value = convolved.at(n, m, h * pooling.stride[0] + i, w * pooling.stride[1] + j);
      most = {std::max(most.value, value.value), std::max(most.error, value.error)};
    });
    y.at(n, m, h, w) = most;
  });
  return y;
}

struct SparseTensors {
  Tensor x, weight, y;
  Channels bias, packed;
  Array expected;

  explicit SparseTensors(const SparseCase& problem)
      : x(problem.dtype, problem.x, problem.memories.x),
        weight(problem.dtype, problem.weight_sizes(), problem.memories.weight),
        y(problem.dtype,
          sparse_output_sizes(problem.x, problem.weight_sizes(), problem.groups, problem.window, problem.pooling),
          problem.memories.y) {
    Random random(41);
    x.fill(random, -1, 2);
    Array values = x.values();
    for (Bounded& value : values.elements) {
      if (std::uniform_real_distribution<double>()(random) < problem.zeros) value = {coin(random) ? 0.0 : -0.0, 0};
    }
    x.fill(values);
    weight.fill(random, -1, 1);
    if (problem.bias) bias = Channels(problem.dtype, problem.outputs).fill(random, -1, 1);
    expected = sparse_reference(problem, x.values(), weight.values(), problem.bias ? bias.values() : Vector());
    if (!problem.packed) return;
    packed = Channels(accumulation_type(problem.dtype), packed_sparse_weight_size(weight.sizes(), problem.groups));
    pack_sparse_weight({weight, problem.groups, packed}, {});
  }

  SparseArguments arguments(const SparseCase& problem) {
    SparseArguments arguments;
    arguments.x = x;
    arguments.weight = weight;
    if (problem.packed) {
      arguments.weight.data = nullptr;
      arguments.packed = packed;
    }
    arguments.bias = bias;
    arguments.groups = problem.groups;
    arguments.window = problem.window;
    arguments.activation = problem.activation;
    arguments.pooling = problem.pooling;
    arguments.y = y;
    return arguments;
  }
};

inline void verify_sparse(const SparseCase& problem) {
  SparseTensors tensors(problem);
  verify(kSparse, tensors.arguments(problem), {{"y", tensors.y, tensors.expected}});
}

/// Channels and outputs around whole vectors and blocks, windows of any shape, rows of one part and of several.
inline std::vector<SparseCase> sparse_edges(DataType dtype) {
  const Window three{{3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}};
  const SparseCase kGeometries[] = {
      {.x = {1, 1, 5, 5}, .outputs = 1, .window = {{3, 3}, {1, 1}, {1, 1}, {}}},
      {.x = {2, 3, 9, 8}, .outputs = 64, .window = three},
      {.x = {1, 16, 7, 7}, .outputs = 65, .window = three},
      {.x = {2, 17, 6, 5}, .outputs = 63, .window = three},
      {.x = {1, 70, 4, 4}, .outputs = 130, .window = three},
      {.x = {3, 40, 5, 6}, .outputs = 8, .window = {{1, 1}, {1, 1}, {1, 1}, {}}},
      {.x = {1, 300, 3, 3}, .outputs = 20, .window = {{1, 1}, {2, 2}, {1, 1}, {}}},
      {.x = {2, 20, 11, 12}, .outputs = 24, .window = {{5, 5}, {1, 1}, {1, 1}, {2, 2, 2, 2}}},
      {.x = {1, 12, 13, 11}, .outputs = 16, .window = {{3, 2}, {3, 2}, {1, 1}, {1, 0, 2, 1}}},
      {.x = {1, 12, 9, 14}, .outputs = 16, .window = {{3, 3}, {1, 2}, {2, 3}, {3, 2, 1, 4}}},
      {.x = {2, 36, 6, 6}, .outputs = 24, .groups = 4, .window = three},
      {.x = {1, 80, 5, 5}, .outputs = 140, .groups = 2, .window = three},
      {.x = {1, 4, 3, 300}, .outputs = 5, .window = three},
      {.x = {1, 2, 40, 30}, .outputs = 3, .window = three},
      {.x = {1, 8, 1, 1}, .outputs = 9, .window = three},
  };
  const MaxPooling kPoolings[] = {{}, {{2, 2}, {2, 2}}, {{3, 3}, {2, 2}}, {{2, 3}, {1, 1}}, {{1, 2}, {3, 1}}};
  std::vector<SparseCase> cases;
  for (SparseCase problem : kGeometries) {
    problem.dtype = dtype;
    for (const MaxPooling& pooling : kPoolings) {
      if (problem.window.output_height(problem.x[2]) < pooling.size[0]) continue;
      if (problem.window.output_width(problem.x[3]) < pooling.size[1]) continue;
      problem.pooling = pooling;
      problem.activation = pooling ? Activation::relu : Activation::identity;
      problem.packed = !problem.packed;
      problem.memories = Memories::all(problem.packed ? Memory::channels_last : Memory::contiguous);
      cases.push_back(problem);
    }
  }
  return cases;
}

/// Of maps without zeros, with some, and with nothing else.
inline std::vector<SparseCase> sparse_shares(DataType dtype) {
  std::vector<SparseCase> cases;
  for (const double zeros : {0.0, 0.3, 0.7, 0.95, 1.0}) {
    for (const bool pools : {false, true}) {
      cases.push_back({.dtype = dtype,
                       .x = {2, 33, 8, 9},
                       .outputs = 40,
                       .window = {{3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}},
                       .pooling = pools ? MaxPooling{{2, 2}, {2, 2}} : MaxPooling{},
                       .activation = pools ? Activation::relu : Activation::silu,
                       .zeros = zeros});
    }
  }
  return cases;
}

inline std::vector<SparseCase> random_sparse(DataType dtype) {
  Random random(42);
  std::vector<SparseCase> cases;
  while (cases.size() < 60) {
    SparseCase problem{.dtype = dtype};
    problem.groups = between(random, 1, 3);
    problem.x = {between(random, 1, 3), problem.groups * between(random, 1, 40), between(random, 1, 12),
                 between(random, 1, 14)};
    problem.outputs = problem.groups * between(random, 1, 70);
    const auto side = [&](std::int64_t most) { return between(random, 1, most); };
    problem.window = {{side(4), side(4)}, {side(3), side(3)}, {side(2), side(2)}, {}};
    for (std::int64_t* padding : {&problem.window.padding.left, &problem.window.padding.right,
                                  &problem.window.padding.top, &problem.window.padding.bottom}) {
      *padding = between(random, 0, 3);
    }
    if (coin(random)) problem.pooling = {{side(3), side(3)}, {side(3), side(3)}};
    problem.activation = one_of(random, kActivations);
    problem.zeros = std::uniform_real_distribution<double>()(random);
    problem.bias = coin(random);
    problem.packed = coin(random);
    problem.memories = Memories::random(random);
    try {
      sparse_output_sizes(problem.x, problem.weight_sizes(), problem.groups, problem.window, problem.pooling);
    } catch (const InvalidArgument&) {
      continue;  // a window larger than the map
    }
    cases.push_back(problem);
  }
  return cases;
}

/// 3 x 3 with padding.
inline const Window kSame3x3{{3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}};

inline void run_empty_sparse_batch(DataType dtype) {
  const SparseCase problem{.dtype = dtype, .x = {0, 3, 4, 4}, .outputs = 2, .window = {{3, 3}, {1, 1}, {1, 1}, {}}};
  SparseTensors tensors(problem);
  run(kSparse, tensors.arguments(problem));
}

/// A NaN and an infinity in x, each in an image of its own: they are values like others, and ReLU and the greatest of a
/// window keep NaN, as PyTorch's do.
class NonFiniteSparse {
 public:
  explicit NonFiniteSparse(DataType dtype)
      : problem_{.dtype = dtype,
                 .x = {2, 18, 6, 6},
                 .outputs = 70,
                 .window = kSame3x3,
                 .pooling = {{2, 2}, {2, 2}},
                 .activation = Activation::relu},
        tensors_(problem_) {
    Array x = tensors_.x.values();
    x.at(0, 4, 2, 3).value = NAN;
    x.at(1, 17, 5, 0).value = INFINITY;
    tensors_.x.fill(x);
  }

  SparseArguments arguments() { return tensors_.arguments(problem_); }

  void expect_reaches_what_a_dense_convolution_would(int threads) {
    tensors_.y.wipe();
    run(kSparse, arguments(), threads);
    const Array y = tensors_.y.values();
    for_each_index(y.sizes, [&](auto n, auto m, auto h, auto w) {
      const double value = y.at(n, m, h, w).value;
      if (n == 0) {  // rows 1 to 3, columns 2 to 4 of the convolution's result
        EXPECT_EQ(std::isnan(value), h <= 1 && w >= 1) << m << ' ' << h << ' ' << w;
      } else {
        const bool is_reached = h == 2 && w == 0;
        EXPECT_FALSE(std::isnan(value)) << m << ' ' << h << ' ' << w;
        EXPECT_TRUE(is_reached || std::isfinite(value)) << m << ' ' << h << ' ' << w;
      }
    });
  }

 private:
  SparseCase problem_;
  SparseTensors tensors_;
};

}  // namespace fusedsc::reference
