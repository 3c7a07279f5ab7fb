#include "fusedsc/forward/pointwise/skinny/pointwise_skinny_plan.h"

namespace fusedsc::gpu {
namespace {

/// Positions of an image at equal distances; 0 if they are not, else from one to the next.
std::int64_t position_step(const ConstTensorView& view) {
  const std::int64_t height = view.sizes[2], width = view.sizes[3];
  if (height > 1 && width > 1 && view.strides[2] != width * view.strides[3]) return 0;
  return width > 1 ? view.strides[3] : height > 1 ? view.strides[2] : 1;
}

bool suits(const ConstTensorView& view, bool channels_inner, std::int64_t run) {
  const std::int64_t step = position_step(view), area = view.sizes[2] * view.sizes[3];
  if (step == 0 || reinterpret_cast<std::uintptr_t>(view.data) % (run * size_of(view.dtype)) != 0) return false;
  if (view.sizes[0] > 1 && view.strides[0] % run != 0) return false;
  const bool has_positions = area > 1;
  if (channels_inner) {
    return view.strides[1] == 1 && view.sizes[1] % run == 0 && (!has_positions || step % run == 0);
  }
  return (!has_positions || step == 1) && area % run == 0 && (view.sizes[1] == 1 || view.strides[1] % run == 0);
}

}  // namespace

SkinnyLayout skinny_layout(std::initializer_list<ConstTensorView> inputs,
                           std::initializer_list<ConstTensorView> outputs) {
  SkinnyLayout layout{false, 0};
  for (const ConstTensorView& view : outputs) {
    if (view && position_step(view) == 0) return layout;
  }
  const ConstTensorView& x = *inputs.begin();
  const auto run = static_cast<std::int64_t>(16 / size_of(x.dtype));
  for (const std::int64_t vector : {run, run / 2, std::int64_t{1}}) {
    for (const bool inner : {x.sizes[1] > 1 && x.strides[1] == 1, false}) {
      if (vector == run / 2 && vector > 1 && inner) continue;  // kernels for neighbouring positions alone have these
      const auto fits = [&](const ConstTensorView& view) { return !view || suits(view, inner, vector); };
      if (std::all_of(inputs.begin(), inputs.end(), fits)) return {inner, static_cast<int>(vector)};
    }
  }
  return layout;
}

std::string why_not_skinny(const ConstTensorView& x, const ConstTensorView& weight, std::int64_t groups, bool slides,
                           const SkinnyLayout& layout) {
  const std::string elsewhere = needs_device(Device::gpu, x.device);
  if (!elsewhere.empty()) return elsewhere;
  if (groups != 1 || slides) return "there are groups or windows";
  if (weight.sizes[0] > kMostSkinnyOutputs)
    return "there are more than " + std::to_string(kMostSkinnyOutputs) + " outputs";
  if (x.elements() == 0) return "x is empty";
  if (layout.vector == 0) return "a tensor's positions are not at equal distances";
  constexpr std::int64_t kMostChannels = 2048;  // whose coefficients fit shared memory
  if (x.sizes[1] > kMostChannels) return "there are too many channels";
  return too_large_for_pointwise(x.sizes, {x.sizes[0], weight.sizes[0], x.sizes[2], x.sizes[3]});
}

SkinnyPositions skinny_positions(const Sizes& x, const SkinnyLayout& layout) {
  SkinnyPositions positions;
  const std::int64_t area = x[2] * x[3];
  positions.image_vectors = static_cast<int>(layout.channels_inner ? area : area / layout.vector);
  positions.vectors = static_cast<int>(x[0] * positions.image_vectors);
  positions.by_image_vectors = Divisor(static_cast<std::uint32_t>(positions.image_vectors));
  return positions;
}

}  // namespace fusedsc::gpu
