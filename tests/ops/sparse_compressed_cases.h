/// Compressed maps that tests own, and how convolutions that read or write them are verified, on the CPU or on a GPU.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "ops/sparse_cases.h"

namespace fusedsc::reference {

class CompressedMap {
 public:
  CompressedMap(DataType dtype, const Sizes& sizes)
      : sizes_(sizes),
        values_(dtype, {sizes[0], compressed_channels(sizes[1]), sizes[2], sizes[3]}, Memory::channels_last),
        channels_(DataType::float32, compressed_channels_size(sizes)),
        counts_(DataType::float32, compressed_counts_size(sizes)) {}

  TensorView view() {
    const TensorView all = values_.view();
    return {all.data, all.dtype, sizes_, compressed_strides(sizes_), all.device};
  }
  ChannelVector channels() { return channels_; }
  ChannelVector counts() { return counts_; }

  /// A map's values, as the format's definition has them. What lies behind those of a list is NaN and 255.
  void fill(const Array& map) {
    Array values(values_.sizes());
    for (Bounded& value : values.elements) value.value = NAN;
    std::memset(channels_.vector().data, 0xff, bytes_of(channels_));
    std::memset(counts_.vector().data, 0, bytes_of(counts_));
    for_each_list([&](auto n, auto list, auto h, auto w) {
      std::int64_t count = 0;
      for (std::int64_t c = list; c < std::min(list + kMapList, sizes_[1]); ++c) {
        const double value = map.at(n, c, h, w).value;
        if (value == 0) continue;
        values.at(n, list + count, h, w).value = value;
        byte(channels_, n, list + count, h, w) = static_cast<std::uint8_t>(c - list);
        ++count;
        ++count_byte(n, c, h, w);
      }
    });
    values_.fill(values);
  }

  void wipe() {
    values_.wipe();
    channels_.tensor().wipe();
    counts_.tensor().wipe();
  }
  bool same_bits(const CompressedMap& other) const {
    return values_.same_bits(other.values_) && channels_.tensor().same_bits(other.channels_.tensor()) &&
           counts_.tensor().same_bits(other.counts_.tensor());
  }

  /// The map, and that every list is what the definition says: channels in order, counts right, zeros behind.
  Array decoded() {
    Array map(sizes_);
    const Array values = values_.values();
    for_each_list([&](auto n, auto list, auto h, auto w) {
      std::int64_t place = 0;
      for (std::int64_t run = list; run < list + kMapList; run += kMapRun) {
        std::int64_t last = run - 1;
        for (int i = count_byte(n, run, h, w); i > 0; --i, ++place) {
          const std::int64_t channel = list + byte(channels_, n, list + place, h, w);
          const double value = values.at(n, list + place, h, w).value;
          ASSERT_TRUE(channel > last && channel < std::min(run + kMapRun, sizes_[1])) << channel << " in " << run;
          ASSERT_NE(value, 0);
          map.at(n, channel, h, w).value = value;
          last = channel;
        }
      }
      for (; place < kMapList; ++place) {
        ASSERT_EQ(values.at(n, list + place, h, w).value, 0) << place;
        ASSERT_EQ(byte(channels_, n, list + place, h, w), 0) << place;
      }
    });
    EXPECT_TRUE(values_.surroundings_untouched() && channels_.tensor().surroundings_untouched() &&
                counts_.tensor().surroundings_untouched());
    return map;
  }

  void fill_bytes(unsigned char channels, unsigned char counts) {
    std::memset(channels_.vector().data, channels, bytes_of(channels_));
    std::memset(counts_.vector().data, counts, bytes_of(counts_));
  }

 private:
  template <class Body>
  void for_each_list(const Body& body) {
    for_each_index({sizes_[0], values_.sizes()[1] / kMapList, sizes_[2], sizes_[3]},
                   [&](auto n, auto list, auto h, auto w) { body(n, list * kMapList, h, w); });
  }
  std::size_t bytes_of(Channels& vector) const { return static_cast<std::size_t>(vector.vector().size) * 4; }
  std::int64_t place(std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) const {
    return ((n * sizes_[2] + h) * sizes_[3] + w) * values_.sizes()[1] + c;
  }
  std::uint8_t& byte(Channels& vector, std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) const {
    return static_cast<std::uint8_t*>(vector.vector().data)[place(n, c, h, w)];
  }
  std::uint8_t& count_byte(std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
    return static_cast<std::uint8_t*>(counts_.vector().data)[place(n, c, h, w) / kMapRun];
  }

  Sizes sizes_;
  Tensor values_;
  Channels channels_, counts_;
};

inline SparseArguments reading(SparseArguments arguments, CompressedMap& x) {
  arguments.x = x.view();
  arguments.x_channels = x.channels();
  arguments.x_counts = x.counts();
  return arguments;
}

inline SparseArguments writing(SparseArguments arguments, CompressedMap& y) {
  arguments.y = y.view();
  arguments.y_channels = y.channels();
  arguments.y_counts = y.counts();
  return arguments;
}

/// Whether two arrays have the same numbers; zeros of either sign are the same, and NaN is.
inline testing::AssertionResult same_numbers(const Array& actual, const Array& expected) {
  for (std::size_t i = 0; i < expected.elements.size(); ++i) {
    const double a = actual.elements[i].value, b = expected.elements[i].value;
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    return testing::AssertionFailure() << "element " << i << " is " << a << ", not " << b;
  }
  return testing::AssertionSuccess();
}

/// Of a convolution from dense to dense map: to the bit the same from and to compressed ones, with any number of
/// threads and whatever the workspace held. That itself is as the reference says.
inline void verify_compressed(const SparseArguments& dense, Tensor& x, Tensor& y,
                              const std::optional<Array>& expected) {
  const bool reads = dense.groups == 1 || dense.x.sizes[1] / dense.groups % kMapRun == 0;
  const bool writes = dense.groups == 1 || dense.y.sizes[1] / dense.groups % kMapList == 0;
  y.wipe();
  run(kSparse, dense);
  if (expected) {
    ASSERT_TRUE(matches(y, *expected));
  }
  const Tensor like = y;
  CompressedMap from(dense.x.dtype, dense.x.sizes), to(dense.x.dtype, dense.y.sizes);
  from.fill(x.values());
  for (const int threads : {1, 3}) {
    const auto poison = static_cast<unsigned char>(threads == 1 ? 0xff : 0x00);
    SCOPED_TRACE(testing::Message() << threads << " threads");
    if (reads) {
      y.wipe();
      run(kSparse, reading(dense, from), threads, poison);
      EXPECT_TRUE(y.same_bits(like)) << "from a compressed map";
    }
    if (writes) {
      to.wipe();
      run(kSparse, writing(dense, to), threads, poison);
      EXPECT_TRUE(same_numbers(to.decoded(), like.values())) << "to a compressed map";
    }
    if (!reads || !writes || testing::Test::HasFailure()) continue;
    const CompressedMap before = to;
    to.wipe();
    run(kSparse, writing(reading(dense, from), to), threads, poison);
    EXPECT_TRUE(to.same_bits(before)) << "from and to a compressed map";
  }
}

inline void verify_compressed_case(const SparseCase& problem) {
  SparseTensors tensors(problem);
  verify_compressed(tensors.arguments(problem), tensors.x, tensors.y, tensors.expected);
}

/// Channels and outputs around lists and runs, groups that end within a list.
inline std::vector<SparseCase> compressed_edges(DataType dtype) {
  const Window one{{1, 1}, {1, 1}, {1, 1}, {}};
  std::vector<SparseCase> cases = {
      {.x = {2, 48, 6, 6}, .outputs = 128, .groups = 2, .window = kSame3x3, .activation = Activation::relu},
      {.x = {1, 120, 5, 5}, .outputs = 96, .groups = 3, .window = one, .activation = Activation::relu},
      {.x = {1, 144, 4, 3}, .outputs = 64, .groups = 2, .window = kSame3x3, .zeros = 0.3},
      {.x = {1, 31, 4, 5}, .outputs = 33, .window = one, .activation = Activation::relu},
      {.x = {1, 32, 4, 5}, .outputs = 32, .window = one, .zeros = 0.0},
      {.x = {1, 33, 4, 5}, .outputs = 31, .window = kSame3x3, .activation = Activation::relu6},
      {.x = {2, 200, 3, 5}, .outputs = 97, .window = {{1, 1}, {2, 1}, {1, 1}, {}}, .activation = Activation::relu},
      {.x = {1, 65, 7, 7}, .outputs = 130, .window = {{3, 2}, {2, 3}, {2, 1}, {1, 0, 2, 1}}},
  };
  for (SparseCase& problem : cases) problem.dtype = dtype;
  const std::vector<SparseCase> edges = sparse_edges(dtype);
  for (std::size_t i = 0; i < edges.size(); i += 3) cases.push_back(edges[i]);
  return cases;
}

/// NaN and infinities are values like others; a NaN in the result is given, too.
inline void verify_non_finite_compressed(DataType dtype) {
  const SparseCase problem{.dtype = dtype,
                           .x = {2, 40, 5, 6},
                           .outputs = 70,
                           .window = kSame3x3,
                           .pooling = {{2, 2}, {2, 2}},
                           .activation = Activation::relu,
                           .zeros = 0.9};
  SparseTensors tensors(problem);
  Array x = tensors.x.values();
  x.at(0, 35, 2, 3).value = NAN;
  x.at(1, 7, 4, 0).value = INFINITY;
  x.at(1, 8, 0, 0).value = -INFINITY;
  tensors.x.fill(x);
  verify_compressed(tensors.arguments(problem), tensors.x, tensors.y, std::nullopt);
  const Array y = tensors.y.values();
  EXPECT_TRUE(std::isnan(y.at(0, 69, 1, 1).value));
}

/// Nothing but the map and the weight is read, whatever bytes somebody has put into a map; memory behind them is
/// watched.
inline void run_with_any_bytes(DataType dtype) {
  for (const std::int64_t kernel : {1, 3}) {
    const SparseCase problem{.dtype = dtype, .x = {1, 20, 3, 3}, .outputs = 33, .window = {{kernel, kernel}}};
    SparseTensors tensors(problem);
    CompressedMap from(dtype, problem.x);
    from.fill(tensors.x.values());
    for (const unsigned char bytes : {0x09, 0x20, 0x7f, 0xff}) {
      from.fill_bytes(bytes, bytes);
      run(kSparse, reading(tensors.arguments(problem), from));
    }
  }
}

}  // namespace fusedsc::reference
