#include "fusedsc/common/cpu/targets.h"
#include "fusedsc/fused/dsc_block_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fusedsc/fused/dsc_block_backward_cpu.cpp"
#include "hwy/foreach_target.h"

#include <vector>

#include "fusedsc/common/cpu/depthwise_backward_pass-inl.h"
#include "fusedsc/fused/dsc_block_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// ga = W^T gy: the gradient at the activation's output.
template <class T>
struct ActivationGradient {
  WeightTile<T> weight;  ///< [M][C]
  PositionRows<T> grad_y;

  ActivationGradient(const DscBlockBackwardArguments& block, Arena& arena)
      : weight(block.pw_weight, false, arena), grad_y(block.grad_y) {}

  /// Rows [row, row + count) to a tile; `rows_tile` is scratch for grad_y, of which the rows in use are returned.
  const T* fill(std::int64_t image, std::int64_t row, std::int64_t count, T* rows_tile, T* tile) const {
    Gemm<T> product;
    product.rows = count * grad_y.view.sizes[3];
    product.columns = weight.pitch();
    product.depth = grad_y.view.sizes[1];
    product.a = grad_y.load(image, row, count, rows_tile);
    product.a_row = grad_y.pitch();
    product.b = weight.data();
    product.b_depth = weight.pitch();
    product.c = tile;
    product.c_row = weight.pitch();
    Prefetcher none;
    gemm(product, none);
    return product.a;
  }
};

/// Backward pass A: d and ga on a tile; the sums BatchNorm's backward needs, the pointwise weight's gradient, and
/// grad_bn where it is to be stored.
template <class T>
struct DscBlockBackwardA {
  const DscBlockBackwardArguments& block;
  Slices slices;
  Arena arena;
  DscMiddle<T> middle;
  ActivationGradient<T> gradient;
  std::int64_t lanes;
  T* mean;
  T* sums;         ///< [slice][2][pitch]
  T* grad_weight;  ///< [lane][M][pitch]
  T* grad_bias;    ///< [lane][M]

  DscBlockBackwardA(const DscBlockBackwardArguments& block_, int threads, void* workspace)
      : block(block_),
        slices(block.grad_y.sizes[0], block.grad_y.sizes[2], threads),
        arena(workspace),
        middle(block, arena),
        gradient(block, arena),
        lanes(std::min<std::int64_t>(threads, slices.count())),
        mean(arena.take<T>(middle.pitch())),
        sums(arena.take<T>(slices.count() * 2 * middle.pitch())),
        grad_weight(block.grad_pw_weight ? arena.take<T>(lanes * weight_size()) : nullptr),
        grad_bias(block.grad_pw_bias ? arena.take<T>(lanes * block.grad_y.sizes[1]) : nullptr) {}

  std::int64_t weight_size() const { return block.grad_y.sizes[1] * middle.pitch(); }

  struct Lane {
    DscDepthwise<T> depthwise;
    T* tile;      ///< d, then the activation of BN(d)
    T* gradient;  ///< ga, then the gradient at BN's output
    T* grad_y;

    Lane(const DscBlockBackwardA& pass, Arena& arena)
        : depthwise(pass.middle, arena),
          tile(arena.take<T>(pass.middle.tile_size())),
          gradient(arena.take<T>(pass.middle.tile_size())),
          grad_y(arena.take<T>(pass.gradient.grad_y.tile_size(pass.middle.tile_rows))) {}
  };

  std::size_t workspace_bytes() {
    Arena measured = arena;
    for (std::int64_t lane = 0; lane < lanes; ++lane) Lane(*this, measured);
    return measured.used();
  }

  void run(const Execution& execution, const MiddleGradient& result) {
    middle.pack(block);
    gradient.weight.pack();
    copy_channels(block.mean, T(0), 0, middle.channels(), 1, mean);
    std::vector<Lane> scratch;
    for (std::int64_t lane = 0; lane < lanes; ++lane) scratch.emplace_back(*this, arena);
    run_lanes(execution, lanes, [&](std::int64_t lane) {
      if (grad_weight != nullptr) std::fill_n(grad_weight + lane * weight_size(), weight_size(), T(0));
      if (grad_bias != nullptr) std::fill_n(grad_bias + lane * block.grad_y.sizes[1], block.grad_y.sizes[1], T(0));
      const Range mine = part_of(slices.count(), lanes, lane);
      for (std::int64_t slice = mine.begin; slice < mine.end; ++slice) {
        run_slice(slice, lane, scratch[static_cast<std::size_t>(lane)]);
      }
    });
    reduce(result);
  }

  void run_slice(std::int64_t slice, std::int64_t lane_index, Lane& lane) {
    std::fill_n(sums + slice * 2 * middle.pitch(), 2 * middle.pitch(), T(0));
    const Range images = slices.images_of(slice), rows = slices.rows_of(slice);
    for (std::int64_t n = images.begin; n < images.end; ++n) {
      for (std::int64_t h = rows.begin; h < rows.end; h += middle.tile_rows) {
        run_tile(n, h, std::min(middle.tile_rows, rows.end - h), slice, lane_index, lane);
      }
    }
  }

  void run_tile(std::int64_t n, std::int64_t h, std::int64_t count, std::int64_t slice, std::int64_t lane_index,
                Lane& lane) {
    const std::int64_t positions = count * middle.columns(), pitch = middle.pitch();
    lane.depthwise.fill(n, h, count, lane.tile);
    const T* grad_y = gradient.fill(n, h, count, lane.grad_y, lane.gradient);
    T* slice_sums = sums + slice * 2 * pitch;
    apply_activation_backward<PositionMajor<T>, T>(Patch<T>{lane.gradient, pitch}, {lane.tile, pitch}, middle.affine(),
                                                   {mean, slice_sums, slice_sums + pitch}, {positions, pitch});
    for (std::int64_t r = 0; r < count && block.grad_bn; ++r) {
      store_tile<T>(lane.gradient + r * middle.columns() * pitch, block.grad_bn,
                    {.image = n, .row = h + r, .positions = middle.columns(), .channels = middle.channels()});
    }
    if (grad_weight != nullptr) {
      apply_affine<T>(lane.tile, positions, pitch, middle.affine());
      Gemm<T> product;
      product.rows = block.grad_y.sizes[1];
      product.columns = pitch;
      product.depth = positions;
      product.a = grad_y;
      product.a_row = 1;
      product.a_depth = gradient.grad_y.pitch();
      product.b = lane.tile;
      product.b_depth = pitch;
      product.c = grad_weight + lane_index * weight_size();
      product.c_row = pitch;
      product.accumulate = true;
      Prefetcher none;
      gemm(product, none);
    }
    if (grad_bias == nullptr) return;
    T* bias = grad_bias + lane_index * block.grad_y.sizes[1];
    for (std::int64_t p = 0; p < positions; ++p) {
      for (std::int64_t m = 0; m < block.grad_y.sizes[1]; ++m) bias[m] += grad_y[p * gradient.grad_y.pitch() + m];
    }
  }

  /// Slices and lanes, added in their order.
  void reduce(const MiddleGradient& result) {
    const std::int64_t pitch = middle.pitch();
    for (std::int64_t s = 1; s < slices.count(); ++s) add_in_place(sums, sums + s * 2 * pitch, 2 * pitch);
    std::copy_n(sums, middle.channels(), static_cast<T*>(result.sum_grad.data));
    std::copy_n(sums + pitch, middle.channels(), static_cast<T*>(result.sum_grad_times_centered.data));
    if (grad_weight != nullptr) {
      for (std::int64_t lane = 1; lane < lanes; ++lane) {
        add_in_place(grad_weight, grad_weight + lane * weight_size(), weight_size());
      }
      TensorView view = block.grad_pw_weight;
      view.sizes = {1, view.sizes[1], 1, view.sizes[0]};
      view.strides = {0, view.strides[1], 0, view.strides[0]};
      store_tile<T>(grad_weight, view, {.positions = view.sizes[3], .channels = view.sizes[1]});
    }
    if (grad_bias == nullptr) return;
    const std::int64_t outputs = block.grad_y.sizes[1];
    with_storage<T>(block.grad_pw_bias.dtype, [&]<class Storage>() {
      for (std::int64_t m = 0; m < outputs; ++m) {
        T sum = grad_bias[m];
        for (std::int64_t lane = 1; lane < lanes; ++lane) sum += grad_bias[lane * outputs + m];
        static_cast<Storage*>(block.grad_pw_bias.data)[m] = scalar_storage<Storage>(sum);
      }
    });
  }
};

/// Backward pass B's output gradients: BatchNorm's backward over grad_bn (loaded, or from a product again) and d
/// (loaded, or computed again), a few rows at a time.
template <class T>
struct RecomputedGradients {
  struct Context {
    const DscBlockBackwardArguments& block;
    const MiddleGradient& coefficients;
  };
  static constexpr bool kOneBlock = true;

  const Context context;
  DscMiddle<T> middle;
  ActivationGradient<T> gradient;
  T* grad_scale;
  T* output_scale;
  T* offset;

  RecomputedGradients(const Context& context_, const DepthwiseBackwardArguments&, const ChannelBlocks&, Arena& arena)
      : context(context_),
        middle(context.block, arena),
        gradient(context.block, arena),
        grad_scale(arena.take<T>(middle.pitch())),
        output_scale(arena.take<T>(middle.pitch())),
        offset(arena.take<T>(middle.pitch())) {}

  void pack() {
    middle.pack(context.block);
    gradient.weight.pack();
    copy_channels(context.coefficients.grad_scale, T(0), 0, middle.channels(), 1, grad_scale);
    copy_channels(context.coefficients.output_scale, T(0), 0, middle.channels(), 1, output_scale);
    copy_channels(context.coefficients.offset, T(0), 0, middle.channels(), 1, offset);
  }

  struct Lane {
    const RecomputedGradients& gradients;
    DscDepthwise<T> depthwise;
    T* tile;      ///< d
    T* gradient;  ///< the gradient at d, of the rows [first, last) of `image`
    T* grad_y;
    std::int64_t image = -1, first = 0, last = 0;

    Lane(const RecomputedGradients& gradients_, Arena& arena)
        : gradients(gradients_),
          depthwise(gradients.middle, arena),
          tile(arena.take<T>(gradients.middle.tile_size())),
          gradient(arena.take<T>(gradients.middle.tile_size())),
          grad_y(arena.take<T>(gradients.gradient.grad_y.tile_size(gradients.middle.tile_rows))) {}

    void load(const TilePart& part, std::int64_t, T* to) {
      if (part.image != image || part.row < first || part.row >= last) fill(part.image, part.row);
      const DscMiddle<T>& middle = gradients.middle;
      const std::int64_t row_size = middle.columns() * middle.pitch();
      std::copy_n(gradient + (part.row - first) * row_size, part.positions * middle.pitch(), to);
    }

    void fill(std::int64_t n, std::int64_t row) {
      const DscMiddle<T>& middle = gradients.middle;
      const DscBlockBackwardArguments& block = gradients.context.block;
      image = n;
      first = row;
      last = std::min(row + middle.tile_rows, middle.rows());
      const std::int64_t count = last - first, pitch = middle.pitch(), positions = count * middle.columns();
      depthwise.fill(n, first, count, tile);
      if (block.grad_bn) {
        for (std::int64_t r = 0; r < count; ++r) {
          load_tile<T>(block.grad_bn,
                       {.image = n, .row = first + r, .positions = middle.columns(), .channels = middle.channels()}, {},
                       gradient + r * middle.columns() * pitch);
        }
      } else {
        gradients.gradient.fill(n, first, count, grad_y, gradient);
        apply_activation_backward<PositionMajor<T>, T>(Patch<T>{gradient, pitch}, {tile, pitch}, middle.affine(), {},
                                                       {positions, pitch});
      }
      const Patch<T> grad{gradient, pitch};
      apply_gradient_prologue<PositionMajor<T>, T>(grad, {tile, pitch},
                                                   {gradients.grad_scale, gradients.output_scale, gradients.offset, {}},
                                                   {positions, pitch}, grad);
    }
  };
};

template <class T>
using BackwardB = DepthwiseBackwardPass<T, RecomputedGradients<T>>;

MiddleGradient take_middle_gradient(const DscBlockBackwardArguments& block, Arena& arena) {
  const ConstTensorView d = middle_view(block.x, block.dw_weight, block.window);
  MiddleGradient middle;
  for (ChannelVector* vector :
       {&middle.sum_grad, &middle.sum_grad_times_centered, &middle.grad_scale, &middle.output_scale, &middle.offset}) {
    *vector = take_channels(arena, d);
  }
  return middle;
}

template <class T>
std::size_t backward_workspace(const DscBlockBackwardArguments& block, int threads) {
  Arena arena(nullptr);
  const MiddleGradient middle = take_middle_gradient(block, arena);
  std::size_t bytes = DscBlockBackwardA<T>(block, threads, nullptr).workspace_bytes();
  if (wants_depthwise_gradients(block)) {
    const DepthwiseBackwardArguments depthwise = depthwise_backward_of(block);
    bytes = std::max(bytes, BackwardB<T>({block, middle}, depthwise, threads, nullptr).workspace_bytes());
  }
  return arena.used() + bytes;
}

template <class T>
void backward_run(const DscBlockBackwardArguments& block, const Execution& execution) {
  Arena arena(execution.workspace);
  const MiddleGradient middle = take_middle_gradient(block, arena);
  const Execution rest = rest_of(execution, arena);
  DscBlockBackwardA<T>(block, rest.threads, rest.workspace).run(rest, middle);
  batch_norm_coefficients(coefficients_of(block, middle), execution);
  if (!wants_depthwise_gradients(block)) return;
  const DepthwiseBackwardArguments depthwise = depthwise_backward_of(block);
  BackwardB<T>({block, middle}, depthwise, rest.threads, rest.workspace).run(rest);
}

std::size_t dsc_block_backward_workspace(const DscBlockBackwardArguments& block, int threads) {
  if (block.x.dtype == DataType::float64) return backward_workspace<double>(block, threads);
  return backward_workspace<float>(block, threads);
}

void dsc_block_backward_run(const DscBlockBackwardArguments& block, const Execution& execution) {
  if (block.x.dtype == DataType::float64) return backward_run<double>(block, execution);
  backward_run<float>(block, execution);
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fusedsc {
namespace {

HWY_EXPORT(dsc_block_backward_workspace);
HWY_EXPORT(dsc_block_backward_run);

}  // namespace

Implementation<DscBlockBackwardArguments> dsc_block_backward_cpu() {
  return {
      .name = "cpu_fused",
      .why_not = [](const DscBlockBackwardArguments& block) { return needs_device(Device::cpu, block.x.device); },
      .workspace_bytes = [](const DscBlockBackwardArguments& block,
                            int threads) { return HWY_DYNAMIC_DISPATCH(dsc_block_backward_workspace)(block, threads); },
      .run =
          [](const DscBlockBackwardArguments& block, const Execution& execution) {
            HWY_DYNAMIC_DISPATCH(dsc_block_backward_run)
            (block, execution);
          },
  };
}

}  // namespace fusedsc
#endif
