#ifdef FUSEDSC_HOPPER
#include "fusedsc/forward/sliding_channel/product/sliding_product_launch.h"
#include "fusedsc/forward/sliding_channel/sliding_channel_kernels.h"

namespace fusedsc {
namespace {

constexpr const char* kName = "sliding_channel_conv2d";

std::string why_not(const SlidingChannelArguments& a) {
  if (a.bias || a.prologue || a.epilogue || a.statistics) return "there is a bias, a prologue or an epilogue";
  return gpu::why_not_sliding_planes(a.x, a.y, sliding_channels_of(a), a.allow_tf32);
}

gpu::SlidingProductPass pass_of(const SlidingChannelArguments& a, Arena& arena) {
  const gpu::WindowLines lines(sliding_channels_of(a), a.weight.sizes[0]);
  return {gpu::SlidingBands(lines, false), a.x, a.weight, a.y, arena};
}

std::size_t workspace_bytes(const SlidingChannelArguments& a, int /*threads*/) {
  Arena arena(nullptr);
  static_cast<void>(pass_of(a, arena));
  return arena.used();
}

void run(const SlidingChannelArguments& a, const Execution& execution) {
  Arena arena(execution.workspace);
  const gpu::SlidingProductPass pass = pass_of(a, arena);
  pass.lay_out(kName, execution.stream);
  pass.multiply(kName, execution.stream);
}

}  // namespace

Implementation<SlidingChannelArguments> sliding_channel_tf32_planes() {
  return {.name = "hopper_tf32_planes", .why_not = why_not, .workspace_bytes = workspace_bytes, .run = run};
}

}  // namespace fusedsc
#endif
