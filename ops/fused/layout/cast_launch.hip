#include <algorithm>

#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/fused/layout/cast_gpu.h"
#include "fusedsc/fused/layout/cast_kernel.h"

namespace fusedsc::gpu {
namespace {

template <class From, class To>
FUSEDSC_KERNEL(kCastThreads, 1)
cast_kernel(CastParameters parameters) {
  wait_for_previous_kernel();
  cast_runs<From, To>(parameters);
}

SlidingCast sliding_of(const CastArguments& arguments, int run) {
  const SlidingChannels& windows = arguments.windows;
  const auto& [from, to] = arguments.runs.back();
  const Sizes sizes{to.elements() / (arguments.gathers ? windows.width : windows.channels), windows.width, 1, 1};
  const ConstTensorView weight{nullptr, from.dtype, sizes, dense_strides(sizes, Layout::contiguous), from.device};
  const auto in_fours = [](std::int64_t number) { return number % 4 == 0; };
  const auto is_aligned = [](const auto& view) {
    return reinterpret_cast<std::uintptr_t>(view.data) % (4 * size_of(view.dtype)) == 0;
  };
  return {run, arguments.gathers,
          in_fours(windows.width) && in_fours(windows.step) && in_fours(windows.channels) && is_aligned(from) &&
              is_aligned(to),
          WeightSource(weight, windows),
          Divisor(static_cast<std::uint32_t>(arguments.gathers ? windows.width : windows.channels))};
}

using Kernel = void (*)(CastParameters);

template <class From>
Kernel kernel_to(DataType to) {
  switch (to) {
    case DataType::float32: return cast_kernel<From, float>;
    case DataType::float64: return cast_kernel<From, double>;
    case DataType::float16: return cast_kernel<From, Float16>;
    case DataType::bfloat16: return cast_kernel<From, BFloat16>;
  }
  return nullptr;
}

Kernel kernel_of(DataType from, DataType to) {
  switch (from) {
    case DataType::float32: return kernel_to<float>(to);
    case DataType::float64: return kernel_to<double>(to);
    case DataType::float16: return kernel_to<Float16>(to);
    case DataType::bfloat16: return kernel_to<BFloat16>(to);
  }
  return nullptr;
}

}  // namespace

void cast(const CastArguments& arguments, void* stream) {
  for (std::size_t first = 0; first < arguments.runs.size(); first += kMostCasts) {
    CastParameters p;
    std::int64_t blocks = 0;
    for (std::size_t i = 0; i < kMostCasts && first + i < arguments.runs.size(); ++i) {
      const auto& [from, to] = arguments.runs[first + i];
      p.from[i] = from.data;
      p.to[i] = to.data;
      p.elements[i] = to.elements();
      blocks += (to.elements() + kCastBlock - 1) / kCastBlock;
      p.end[i] = static_cast<std::uint32_t>(blocks);
      if (arguments.windows.channels > 0 && first + i + 1 == arguments.runs.size()) {
        p.sliding = sliding_of(arguments, static_cast<int>(i));
      }
    }
    const auto& [from, to] = arguments.runs.front();
    launch_following("cast", kernel_of(from.dtype, to.dtype), blocks, kCastThreads, stream, p);
  }
}

}  // namespace fusedsc::gpu
