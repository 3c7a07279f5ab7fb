#ifdef FUSEDSC_HOPPER
#include <algorithm>

#include "fusedsc/backward/pointwise/hopper/pointwise_hopper_parameters.h"
#include "fusedsc/backward/pointwise/hopper_weight/pointwise_hopper_transposing_kernel.h"
#include "fusedsc/backward/pointwise/hopper_weight/pointwise_hopper_weight_pass.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc {
namespace gpu::hopper {
namespace {

constexpr const char* kName = "pointwise_conv2d_backward";

constexpr int kThreadsOfMultiprocessor = 2048;

template <class T>
FUSEDSC_KERNEL(Transposing<T>::kThreads, kThreadsOfMultiprocessor / Transposing<T>::kThreads)
transposing_kernel(const TransposingParameters p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(FUSEDSC_HOST_EXECUTOR)  // other chips of a build have none of this
  Transposing<T>::run(p);
#endif
}

template <class T>
void launch_transposing(const TransposingParameters& p, std::int64_t blocks, void* stream) {
  launch_following(kName, transposing_kernel<T>, blocks, Transposing<T>::kThreads, stream, p,
                   static_cast<std::size_t>(p.memory_bytes()));
}

/// The same tensor, elsewhere.
ConstTensorView channels_last(const ConstTensorView& view, const void* data) {
  return {data, view.dtype, view.sizes, dense_strides(view.sizes, Layout::channels_last), Device::gpu};
}

/// The arguments of the weight gradient with the tensors that it reads channels_last, in memory of the workspace.
PointwiseBackwardArguments with_channels_last(const PointwiseBackwardArguments& a, Arena& arena) {
  PointwiseBackwardArguments laid_out = without_input(a);
  const auto take = [&](ConstTensorView& view) {
    if (!view) return;
    view = channels_last(view, arena.take<char>(view.elements() * static_cast<std::int64_t>(size_of(view.dtype))));
  };
  take(laid_out.x);
  take(laid_out.grad_y);
  take(laid_out.gradient_prologue.output);
  return laid_out;
}

/// Runs of channels to a block: as many as make a tile of some kilobytes, at most a line of memory, and fewer where
/// that would leave multiprocessors without a block.
int runs_of_block(const PointwiseBackwardArguments& a) {
  constexpr int kMostRuns = 8, kFewestRuns = 2, kTileBytes = 7 << 10;
  const std::int64_t area = area_of(a), bytes = static_cast<std::int64_t>(size_of(a.x.dtype));
  const std::int64_t all =
      (a.x.elements() + (a.gradient_prologue.output ? 2 : 1) * a.grad_y.elements()) / area * bytes / 16;
  int runs = kMostRuns;
  while (runs > kFewestRuns && (area * 16 * runs > kTileBytes || all < runs * multiprocessors())) runs /= 2;
  return runs;
}

void launch_transposing(const PointwiseBackwardArguments& from, const PointwiseBackwardArguments& to, void* stream) {
  TransposingParameters p;
  const auto area = static_cast<int>(area_of(from));
  p.positions = area;
  p.runs = runs_of_block(from);
  // Runs of channels lie 16 * area bytes apart: of a multiple of 64 bytes, but not of 128, two share banks and so on.
  p.rotation = area % 2 != 0 ? 3 : area % 4 != 0 ? 2 : area % 8 != 0 ? 1 : 0;
  std::int64_t blocks = 0;
  TransposedTensor* next = p.tensors;
  const int channels = 16 / static_cast<int>(size_of(from.x.dtype)) * p.runs;
  const auto add = [&](const ConstTensorView& view, const ConstTensorView& result) {
    if (!view) return;
    next->from = view.data;
    next->to = const_cast<void*>(result.data);
    next->from_image = view.strides[0];
    next->channels = static_cast<int>(view.sizes[1]);
    const int tiles = (next->channels + channels - 1) / channels;
    next->by_tiles = Divisor(static_cast<std::uint32_t>(tiles));
    next->blocks = static_cast<int>(view.sizes[0] * tiles);
    blocks += next->blocks;
    ++next;
  };
  add(from.grad_y, to.grad_y);
  add(from.gradient_prologue.output, to.gradient_prologue.output);
  add(from.x, to.x);
  if (size_of(from.x.dtype) == 2) launch_transposing<std::uint16_t>(p, blocks, stream);
  else launch_transposing<float>(p, blocks, stream);
}

std::string why_not_transposing(const PointwiseBackwardArguments& a) {
  if (!a.grad_weight) return "the weight gradient is not wanted";
  if (a.grad_bias) return "the bias gradient is wanted";
  if (a.groups != 1 || a.windows.channels > 0) return "there are groups or windows";
  if (a.x.dtype == DataType::float64) return "the tensors are float64";
  if (a.x.dtype == DataType::float32 && !a.allow_tf32) return "TF32 is not allowed";
  if (a.x.elements() == 0 || a.grad_y.elements() == 0) return "a tensor is empty";
  const std::int64_t area = area_of(a), bytes = static_cast<std::int64_t>(size_of(a.x.dtype));
  if (area == 1) return "tensors of one position per image are channels_last";
  if (area * bytes % 16 == 0) return "maps are whole runs of 16 bytes, as other kernels take them";
  constexpr std::int64_t kLargestArea = 576;  // of which a block's fewest runs fit its memory
  if (area > kLargestArea) return "maps are large";
  for (const ConstTensorView& view : {a.x, a.grad_y, a.gradient_prologue.output}) {
    if (!view) continue;
    if (!has_aligned_images(view)) {
      return "an image is not dense and contiguous, or not aligned to 16 bytes";
    }
    if (view.sizes[1] * bytes % 16 != 0) return "the channels of a position are no whole runs of 16 bytes";
  }
  return {};
}

Plan<PointwiseBackwardArguments> plan_transposing(const PointwiseBackwardArguments& a, int threads) {
  Arena arena(nullptr);
  const Plan<PointwiseBackwardArguments> weight = plan_pointwise_weight_gradient(with_channels_last(a, arena), threads);
  return {arena.used() + weight.workspace_bytes,
          [weight = weight.unchecked_run](const PointwiseBackwardArguments& like, const Execution& execution) {
            Arena taken(execution.workspace);
            const PointwiseBackwardArguments laid_out = with_channels_last(like, taken);
            launch_transposing(like, laid_out, execution.stream);
            weight(laid_out, rest_of(execution, taken));
          }};
}

}  // namespace
}  // namespace gpu::hopper

bool suits_pointwise_transposing(const PointwiseBackwardArguments& a) {
  // Where two channels are a run together, others go over the tensors once for each tile of the weight: often enough?
  constexpr std::int64_t kManyPositions = 4096, kFewestPositions = 256;
  const std::int64_t area = a.x.sizes[2] * a.x.sizes[3], bytes = static_cast<std::int64_t>(size_of(a.x.dtype)),
                     positions = a.x.sizes[0] * area, channels = a.x.sizes[1], outputs = a.grad_y.sizes[1];
  if (area * bytes % 8 == 0 && positions > kManyPositions && channels * outputs < 32 * (channels + outputs)) {
    return false;
  }
  return bytes != 4 || positions >= kFewestPositions;
}

Implementation<PointwiseBackwardArguments> pointwise_backward_hopper_transposing() {
  using namespace gpu::hopper;
  return {"hopper_transposing",
          [](const PointwiseBackwardArguments& a) { return why_not_on_hopper(a, why_not_transposing); },
          plan_transposing};
}

}  // namespace fusedsc
#endif
