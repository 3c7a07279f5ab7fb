#include "fusedsc/forward/sparse/cpu/sparse_cpu.h"

#include "fusedsc/common/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fusedsc/forward/sparse/cpu/sparse_cpu.cpp"
#include "hwy/foreach_target.h"

#include <algorithm>
#include <vector>

#include "fusedsc/forward/sparse/cpu/ecr_lists-inl.h"
#include "fusedsc/forward/sparse/cpu/packed_weight-inl.h"
#include "fusedsc/runtime/pass-inl.h"
#include "fusedsc/tuning/role.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// Seed 002's ECR and PECR for many channels, outputs and images. Rounds of parts of the map: first the parts' windows
/// are compressed, then each part is multiplied with each block of outputs, whose sums stay in registers over a list
/// (Algorithm 2; a thread is a lane of a vector here). Pooling happens before anything is stored (Algorithm 4).
template <class T>
class SparsePass {
 public:
  /// `rows`: of y in a part; 0: as many as suit the caches and threads.
  SparsePass(const SparseArguments& arguments, int threads, void* workspace, std::int64_t rows)
      : arguments_(arguments),
        pooling_(arguments.pooling),
        y_(arguments.y),
        outputs_(y_.sizes[1] / arguments.groups),
        rows_(rows > 0 ? rows : rows_of_part(threads)),
        parts_of_image_(divide_up(y_.sizes[2], rows_)),
        parts_(y_.sizes[0] * parts_of_image_),
        compression_(arguments, columns(), convolved_rows(rows_)),
        positions_(convolved_rows(rows_) * columns()),
        packing_(arguments.weight, arguments.groups),
        arena_(workspace) {
    if (!arguments.packed)
      packed_ = arena_.take<T>(packed_sparse_weight_size(arguments.weight.sizes, arguments.groups));
    const std::int64_t list_bytes = positions_ * compression_.rows() * static_cast<std::int64_t>(2 * sizeof(T));
    round_ = std::clamp<std::int64_t>(kListBytes / std::max<std::int64_t>(list_bytes, 1), threads, 4 * threads);
    round_ = std::min(round_, parts_);
    for (std::int64_t i = 0; i < round_; ++i) {
      lists_.emplace_back(arena_, positions_, compression_.rows(), compression_.blocks());
    }
    lanes_ = std::min<std::int64_t>(threads, round_ * packing_.count());
    for (std::int64_t lane = 0; lane < lanes_; ++lane) scratch_.emplace_back(*this, arena_);
  }

  std::size_t workspace_bytes() const { return arena_.used(); }

  void run(const Execution& execution) {
    if (!arguments_.packed) {
      for_each(execution, packing_.count(), [this](std::int64_t block, Scratch&) { packing_.pack(block, packed_); });
    }
    for (std::int64_t first = 0; first < parts_; first += round_) {
      const std::int64_t parts = std::min(round_, parts_ - first);
      for_each(execution, parts, [&](std::int64_t i, Scratch& scratch) {
        compression_.compress(convolved(first + i), scratch.x, list(i));
      });
      // Neighbouring tasks read the same rows of the weight.
      for_each(execution, packing_.count() * parts, [&](std::int64_t task, Scratch& scratch) {
        run_task(first + task % parts, list(task % parts), task / parts, scratch);
      });
    }
  }

 private:
  static constexpr std::int64_t kPositions = 256;  ///< whose sums of a block of outputs fit a second-level cache
  static constexpr std::int64_t kListBytes = 16 << 20;
  /// Sums of a position in registers. Where there are few, two sets of them take turns, as products come in order.
  static constexpr std::int64_t kSums = std::min<std::int64_t>(8, kPackedOutputs / kLanes<T>);

  struct Scratch {
    typename EcrCompression<T>::Scratch x;
    T *sums, *results, *transposed, *bias;

    Scratch(const SparsePass& pass, Arena& arena)
        : x(pass.compression_.take_scratch(arena)),
          sums(arena.take<T>(pass.positions_ * kPackedOutputs)),
          results(pass.pooling_ ? arena.take<T>(pass.rows_ * pass.y_.sizes[3] * kPackedOutputs) : sums),
          transposed(pass.y_.strides[1] == 1 ? nullptr : arena.take<T>(pass.rows_ * pass.y_.sizes[3] * kPackedOutputs)),
          bias(arena.take<T>(kPackedOutputs)) {}
  };

  /// Columns and rows of the convolution's result under those of y.
  std::int64_t columns() const { return (y_.sizes[3] - 1) * pooling_.stride[1] + pooling_.size[1]; }
  std::int64_t convolved_rows(std::int64_t rows) const { return (rows - 1) * pooling_.stride[0] + pooling_.size[0]; }

  /// Of y: few enough for the caches, and for all threads to have some.
  std::int64_t rows_of_part(int threads) const {
    const std::int64_t fit = kPositions / (columns() * pooling_.stride[0]);
    const std::int64_t share = y_.sizes[0] * y_.sizes[2] / (2 * threads);
    return std::clamp<std::int64_t>(std::min(fit, share), 1, y_.sizes[2]);
  }

  Range rows_of(std::int64_t part) const {
    const std::int64_t begin = part % parts_of_image_ * rows_;
    return {begin, std::min(begin + rows_, y_.sizes[2])};
  }
  SparsePart convolved(std::int64_t part) const {
    const Range rows = rows_of(part);
    const std::int64_t begin = rows.begin * pooling_.stride[0];
    return {part / parts_of_image_, {begin, begin + convolved_rows(rows.size())}};
  }
  const EcrLists<T>& list(std::int64_t i) const { return lists_[static_cast<std::size_t>(i)]; }

  /// body(item, the lane's scratch)
  template <class Body>
  void for_each(const Execution& execution, std::int64_t items, const Body& body) {
    const std::int64_t lanes = std::min(lanes_, items);
    run_lanes(execution, lanes, [&](std::int64_t lane) {
      const Range own = part_of(items, lanes, lane);
      for (std::int64_t item = own.begin; item < own.end; ++item) body(item, scratch_[static_cast<std::size_t>(lane)]);
    });
  }

  void run_task(std::int64_t part, const EcrLists<T>& lists, std::int64_t output_block, const Scratch& scratch) const {
    const std::int64_t of_group = packing_.count() / arguments_.groups, group = output_block / of_group;
    const std::int64_t within = output_block % of_group * kPackedOutputs;
    const std::int64_t output = group * outputs_ + within, count = std::min(kPackedOutputs, outputs_ - within);
    const Range rows = rows_of(part);
    const std::int64_t windows = convolved_rows(rows.size()) * columns();
    begin_sums(output, count, windows, scratch);
    const T* weight = arguments_.packed ? static_cast<const T*>(arguments_.packed.data) : packed_;
    weight += output_block * compression_.rows_of_group() * kPackedOutputs;
    const std::int64_t blocks = compression_.blocks_of_group();
    for (std::int64_t block = group * blocks; block < (group + 1) * blocks; ++block) {
      const std::int64_t* begin = lists.begins + block * windows;
      for (std::int64_t i = 0; i < windows; ++i) {
        multiply(lists, {begin[i], begin[i + 1]}, weight, scratch.sums + i * kPackedOutputs);
      }
    }
    activate_all(scratch.sums, windows * kPackedOutputs);
    if (pooling_) pool(rows.size(), scratch);
    const std::int64_t place =
        part / parts_of_image_ * y_.strides[0] + output * y_.strides[1] + rows.begin * y_.strides[2];
    with_storage<T>(y_.dtype, [&]<class Storage>() {
      if (arguments_.y_counts) store_lists<Storage>(rows.size(), count, scratch, place);
      else store(rows.size(), count, scratch, static_cast<Storage*>(y_.data) + place);
    });
  }

  void begin_sums(std::int64_t output, std::int64_t count, std::int64_t windows, const Scratch& scratch) const {
    std::fill_n(scratch.bias, kPackedOutputs, T(0));
    if (arguments_.bias) {
      with_storage<T>(arguments_.bias.dtype, [&]<class Storage>() {
        const Storage* bias = static_cast<const Storage*>(arguments_.bias.data) + output;
        for (std::int64_t m = 0; m < count; ++m) store_partial<T>(load_partial<T>(bias + m, 1), scratch.bias + m, 1);
      });
    }
    for (std::int64_t i = 0; i < windows; ++i)
      std::copy_n(scratch.bias, kPackedOutputs, scratch.sums + i * kPackedOutputs);
  }

  /// sums[m] += the list's values times their rows of the weight
  static void multiply(const EcrLists<T>& lists, const Range& list, const T* weight, T* sums) {
    if (list.size() == 0) return;
    const Tag<T> d;
    constexpr bool kTwoSets = kSums <= 4;
    for (std::int64_t m = 0; m < kPackedOutputs; m += kSums * kLanes<T>) {
      Vec<T> even[kSums], odd[kSums];
      HWY_UNROLL(8) for (std::int64_t j = 0; j < kSums; ++j) {
        even[j] = hn::Load(d, sums + m + j * kLanes<T>);
        if constexpr (kTwoSets) odd[j] = hn::Zero(d);
      }
      const auto add = [&](std::int64_t i, Vec<T>(&to)[kSums]) HWY_ATTR {
        const auto value = hn::Set(d, lists.values[i]);
        const T* row = weight + lists.offsets[i] + m;
        HWY_UNROLL(8) for (std::int64_t j = 0; j < kSums; ++j) {
          to[j] = hn::MulAdd(value, hn::LoadU(d, row + j * kLanes<T>), to[j]);
        }
      };
      std::int64_t i = list.begin;
      if constexpr (kTwoSets) {
        for (; i + 1 < list.end; i += 2) {
          add(i, even);
          add(i + 1, odd);
        }
      }
      for (; i < list.end; ++i) add(i, even);
      HWY_UNROLL(8) for (std::int64_t j = 0; j < kSums; ++j) {
        if constexpr (kTwoSets) even[j] = hn::Add(even[j], odd[j]);
        hn::Store(even[j], d, sums + m + j * kLanes<T>);
      }
    }
  }

  void activate_all(T* sums, std::int64_t size) const {
    if (arguments_.activation == Activation::identity) return;
    with_activation(arguments_.activation, [&]<Activation kActivation>() {
      for (std::int64_t i = 0; i < size; i += kLanes<T>) {
        hn::Store(activate<kActivation, T>(hn::Load(Tag<T>(), sums + i)), Tag<T>(), sums + i);
      }
    });
  }

  /// NaN is greater than anything.
  void pool(std::int64_t rows, const Scratch& scratch) const {
    const Tag<T> d;
    T* to = scratch.results;
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t column = 0; column < y_.sizes[3]; ++column, to += kPackedOutputs) {
        const std::int64_t first = row * pooling_.stride[0] * columns() + column * pooling_.stride[1];
        for (std::int64_t m = 0; m < kPackedOutputs; m += kLanes<T>) {
          auto most = hn::Load(d, scratch.sums + first * kPackedOutputs + m);
          for (std::int64_t h = 0; h < pooling_.size[0]; ++h) {
            for (std::int64_t w = 0; w < pooling_.size[1]; ++w) {
              const auto value = hn::Load(d, scratch.sums + (first + h * columns() + w) * kPackedOutputs + m);
              most = hn::IfThenElse(hn::Or(hn::Gt(value, most), hn::IsNaN(value)), value, most);
            }
          }
          hn::Store(most, d, to + m);
        }
      }
    }
  }

  template <class Storage>
  void store(std::int64_t rows, std::int64_t count, const Scratch& scratch, Storage* to) const {
    const std::int64_t width = y_.sizes[3], positions = rows * width;
    if (y_.strides[1] == 1) {
      for (std::int64_t i = 0; i < positions; ++i) {
        store_line(scratch.results + i * kPackedOutputs, count, 1,
                   to + i / width * y_.strides[2] + i % width * y_.strides[3]);
      }
      return;
    }
    transpose(scratch.results, kPackedOutputs, scratch.transposed, positions, positions, kPackedOutputs);
    for (std::int64_t m = 0; m < count; ++m) {
      for (std::int64_t row = 0; row < rows; ++row) {
        store_line(scratch.transposed + m * positions + row * width, width, y_.strides[3],
                   to + m * y_.strides[1] + row * y_.strides[2]);
      }
    }
  }

  /// y as a compressed map: from `place` on `count` channels of so many rows.
  template <class Storage>
  void store_lists(std::int64_t rows, std::int64_t count, const Scratch& scratch, std::int64_t place) const {
    Storage* values = static_cast<Storage*>(y_.data);
    std::uint8_t* channels = static_cast<std::uint8_t*>(arguments_.y_channels.data);
    std::uint8_t* counts = static_cast<std::uint8_t*>(arguments_.y_counts.data);
    for (std::int64_t i = 0; i < rows * y_.sizes[3]; ++i, place += y_.strides[3]) {  // rows follow one another
      T* from = scratch.results + i * kPackedOutputs;
      std::fill(from + count, from + kPackedOutputs, T(0));
      for (std::int64_t list = 0; list < count; list += kMapList) {
        const std::int64_t at = place + list;
        write_list(from + list, values + at, channels + at, counts + at / kMapRun);
      }
    }
  }

  template <class Storage>
  static void store_line(const T* from, std::int64_t size, std::int64_t stride, Storage* to) {
    if (stride != 1) {
      for (std::int64_t i = 0; i < size; ++i) store_partial<T>(load_partial<T>(from + i, 1), to + i * stride, 1);
      return;
    }
    std::int64_t i = 0;
    for (; i + kLanes<T> <= size; i += kLanes<T>) store_as<T>(load_as<T>(from + i), to + i);
    if (i < size) store_partial<T>(load_partial<T>(from + i, size - i), to + i, size - i);
  }

  const SparseArguments& arguments_;
  const MaxPooling& pooling_;
  const TensorView& y_;
  std::int64_t outputs_;  ///< of a group
  std::int64_t rows_;     ///< of y, of a part
  std::int64_t parts_of_image_, parts_;
  EcrCompression<T> compression_;
  std::int64_t positions_;  ///< of a part
  SparseWeightPacking<T> packing_;
  Arena arena_;
  T* packed_ = nullptr;
  std::int64_t round_ = 0, lanes_ = 0;  ///< parts of a round, and threads
  std::vector<EcrLists<T>> lists_;
  std::vector<Scratch> scratch_;
};

Plan<SparseArguments> sparse_plan(const SparseArguments& arguments, std::int64_t rows, int threads) {
  return plan_of_pass_by_type<SparsePass>(arguments, threads, rows);
}

template <class T>
void pack(const PackSparseWeightArguments& arguments, const Execution& execution) {
  const SparseWeightPacking<T> packing(arguments.weight, arguments.groups);
  const std::int64_t lanes = std::min<std::int64_t>(execution.threads, packing.count());
  run_lanes(execution, lanes, [&](std::int64_t lane) {
    const Range own = part_of(packing.count(), lanes, lane);
    for (std::int64_t i = own.begin; i < own.end; ++i) packing.pack(i, static_cast<T*>(arguments.packed.data));
  });
}

void pack_on_target(const PackSparseWeightArguments& arguments, const Execution& execution) {
  if (arguments.weight.dtype == DataType::float64) return pack<double>(arguments, execution);
  return pack<float>(arguments, execution);
}

/// The lists of one row after the other, counted.
template <class T>
SparseWork count(const SparseArguments& a) {
  const std::int64_t rows = a.window.output_height(a.x.sizes[2]), columns = a.window.output_width(a.x.sizes[3]);
  const EcrCompression<T> compression(a, columns, 1);
  std::vector<char> memory;
  const auto take = [&](Arena arena) {
    const auto scratch = compression.take_scratch(arena);
    const EcrLists<T> lists(arena, columns, compression.rows(), compression.blocks());
    return std::tuple(arena.used(), scratch, lists);
  };
  memory.resize(std::get<0>(take(Arena(nullptr))) + Arena::kAlignment);
  const auto [used, scratch, lists] = take(Arena(memory.data()));
  const std::int64_t outputs = a.weight.sizes[0] / a.groups, blocks = compression.blocks_of_group();
  SparseWork work;
  for (std::int64_t image = 0; image < a.x.sizes[0]; ++image) {
    for (std::int64_t row = 0; row < rows; ++row) {
      compression.compress({image, {row, row + 1}}, scratch, lists);
      for (std::int64_t i = 0; i < a.groups * columns; ++i) {
        const std::int64_t group = i / columns, column = i % columns;
        std::int64_t values = 0;
        for (std::int64_t block = group * blocks; block < (group + 1) * blocks; ++block) {
          const std::int64_t* begin = lists.begins + block * columns + column;
          values += begin[1] - begin[0];
        }
        work.products += outputs * values;
        work.additions += outputs * std::max<std::int64_t>(values - 1, 0);
        work.dense_products += outputs * compression.rows_of_group();
        work.dense_additions += outputs * (compression.rows_of_group() - 1);
      }
    }
  }
  return work;
}

SparseWork sparse_work_on_target(const SparseArguments& arguments) {
  return arguments.x.dtype == DataType::float64 ? count<double>(arguments) : count<float>(arguments);
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fusedsc {
namespace {

HWY_EXPORT(sparse_plan);
HWY_EXPORT(pack_on_target);
HWY_EXPORT(sparse_work_on_target);

/// Rows of y that a part has: more read the weight less often, fewer leave sums and lists in nearer caches.
tuning::Configs configs(const SparseArguments& a) {
  constexpr std::int64_t kMostPositions = 2048;  // whose sums of 64 outputs are half a megabyte
  const std::int64_t columns = (a.y.sizes[3] - 1) * a.pooling.stride[1] + a.pooling.size[1];
  tuning::Variants variants({});
  for (std::int64_t rows = 1; rows <= a.y.sizes[2]; rows *= 2) {
    if (rows > 1 && rows * a.pooling.stride[0] * columns > kMostPositions) break;
    variants.vary(tuning::Knob::rows, rows);
  }
  return variants.configs();
}

}  // namespace

tuning::Kernel<SparseArguments> sparse_cpu() {
  return {
      .name = "cpu",
      .unsupported = [](const SparseArguments& a) { return needs_device(Device::cpu, a.x.device); },
      .configs = configs,
      .plan =
          [](const SparseArguments& a, const tuning::Config& config, int threads) {
            tuning::check_listed("cpu", a, config, {}, configs);
            return HWY_DYNAMIC_DISPATCH(sparse_plan)(a, config[tuning::Knob::rows], threads);
          },
  };
}

void cpu::pack_sparse_weight(const PackSparseWeightArguments& arguments, const Execution& execution) {
  HWY_DYNAMIC_DISPATCH(pack_on_target)(arguments, execution);
}

SparseWork cpu::sparse_work(const SparseArguments& arguments) {
  return HWY_DYNAMIC_DISPATCH(sparse_work_on_target)(arguments);
}

}  // namespace fusedsc
#endif
