/// BatchNorms folded: cases, and how they are verified, on the CPU or on a GPU.
#pragma once

#include "fusedsc/fused/batch_norm_fold.h"
#include "ops/cases.h"
#include "ops/verify.h"
#include "reference/batch_norm.h"

namespace fusedsc::reference {

/// One BatchNorm; of its vectors any may be missing, and each has a type of its own.
struct FoldedTensors {
  std::int64_t channels;
  double eps;
  Channels weight, bias, mean, variance;

  FoldedTensors(std::int64_t channels_, double eps_) : channels(channels_), eps(eps_) {}

  Channels& filled(Channels& vector, DataType dtype, double low, double high, Random& random) {
    return vector = Channels(dtype, channels).fill(random, low, high);
  }
  FoldedBatchNorm arguments() { return {channels, weight, bias, mean, variance, eps}; }
};

/// The rows of `expected`, with those of a BatchNorm added.
struct FoldedRows {
  Vector rows[static_cast<int>(StatisticsRow::count)];

  void add(const Precision& precision, const FoldedTensors& norm) {
    const auto channels = static_cast<std::size_t>(norm.channels);
    const auto values = [&](const Channels& vector, double otherwise) {
      const Vector given = vector.values();
      return given.empty() ? Vector(channels, Bounded{otherwise, 0}) : given;
    };
    // Values of float64 are rounded once where sums are float32.
    const auto rounded = [&](Vector vector) {
      for (Bounded& value : vector) value.error += precision.accumulation * value.magnitude();
      return vector;
    };
    const Vector mean = rounded(values(norm.mean, 0)), variance = rounded(values(norm.variance, 1));
    const Vector inverse =
        norm.variance.values().empty() ? Vector(channels, Bounded{1, 0}) : invstd(precision, variance, 1, norm.eps);
    const Affine map = batch_norm(precision, rounded(values(norm.weight, 1)), rounded(values(norm.bias, 0)),
                                  {mean, inverse}, Activation::identity);
    const Vector* own[] = {&mean, &inverse, &variance, &map.scale, &map.shift};
    for (std::size_t i = 0; i < std::size(own); ++i) rows[i].insert(rows[i].end(), own[i]->begin(), own[i]->end());
  }
};

/// Writes statistics of `dtype`, an accumulation type, in rows that lie as far apart as they are long, or further.
inline void verify_fold(DataType dtype, std::vector<FoldedTensors>& norms, bool apart) {
  BatchNormFoldArguments arguments;
  FoldedRows expected;
  std::int64_t channels = 0;
  for (FoldedTensors& norm : norms) {
    arguments.batch_norms.push_back(norm.arguments());
    expected.add(Precision(dtype), norm);
    channels += norm.channels;
  }
  const std::int64_t rows = std::size(expected.rows);
  Tensor statistics(dtype, {1, 1, rows, channels}, apart ? Memory::sliced : Memory::contiguous);
  arguments.statistics = statistics;
  Array values(statistics.sizes());
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t c = 0; c < channels; ++c) {
      values.at(0, 0, row, c) = expected.rows[row][static_cast<std::size_t>(c)];
    }
  }
  fold_batch_norms(arguments, {});
  memory().wait();
  EXPECT_TRUE(matches(statistics, values));
}

/// All vectors of one type, as .half() and .double() leave them; blocks of three BatchNorms, with parameters and
/// without, and one that fills several blocks of a GPU.
inline void verify_folds_of(DataType vectors, DataType dtype) {
  Random random(31);
  for (const bool affine : {true, false}) {
    std::vector<FoldedTensors> norms;
    for (const std::int64_t channels : {96, 1, 321}) {
      FoldedTensors& norm = norms.emplace_back(channels, 1e-5);
      norm.filled(norm.mean, vectors, -1, 1, random);
      norm.filled(norm.variance, vectors, 0.1, 4, random);
      if (!affine) continue;
      norm.filled(norm.weight, vectors, -1, 2, random);
      norm.filled(norm.bias, vectors, -1, 2, random);
    }
    SCOPED_TRACE(std::string(name_of(vectors)) + (affine ? ", with parameters" : ""));
    verify_fold(dtype, norms, affine);
  }
}

/// Any vectors, and more BatchNorms than a launch takes.
inline void verify_random_folds(DataType dtype) {
  Random random(32);
  for (int i = 0; i < 20; ++i) {
    std::vector<FoldedTensors> norms;
    for (std::int64_t left = between(random, 1, 20); left > 0; --left) {
      FoldedTensors& norm = norms.emplace_back(between(random, 1, 150), coin(random) ? 1e-5 : 1e-3);
      const auto maybe = [&](Channels& vector, double low, double high) {
        if (random() % 4 != 0) norm.filled(vector, one_of(random, kDataTypes), low, high, random);
      };
      maybe(norm.weight, -1, 2);
      maybe(norm.bias, -1, 2);
      maybe(norm.mean, -1, 1);
      maybe(norm.variance, 0, 4);
    }
    SCOPED_TRACE(i);
    verify_fold(dtype, norms, coin(random));
  }
}

}  // namespace fusedsc::reference
