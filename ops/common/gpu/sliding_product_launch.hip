#ifdef FUSEDSC_HOPPER
#include "fusedsc/common/gpu/sliding_product_launch.h"

#include <limits>

#include "fusedsc/common/gpu/hopper.h"
#include "fusedsc/common/gpu/pointwise_plan.h"
#include "fusedsc/runtime/implementation.h"

namespace fusedsc::gpu {
namespace {

FUSEDSC_KERNEL(SlidingWeightBands::kThreads, 2)
lay_out_kernel(SlidingWeightBands p) { lay_out_sliding_weight(p); }

template <class Product, int kBlocks>
FUSEDSC_KERNEL(Product::kThreads, kBlocks)
product_kernel(SlidingProductParameters p) { Product::run(p); }

template <int kBlocks, int kRowTiles, int kGroups, int kWarpRows, int kWarpColumns, int kStages>
constexpr SlidingProductInstance instance() {
  using Product = SlidingProduct<kRowTiles, kGroups, kWarpRows, kWarpColumns, kStages>;
  return {Product::kRows, Product::kPieces, Product::kThreads, product_kernel<Product, kBlocks>, Product::memory_bytes};
}

const SlidingProductInstance kInstances[] = {
    // Blocks that shall fit a multiprocessor; of a warp, 16 rows and 32 positions; warps for rows and for positions;
    // stages
    instance<2, 1, 2, 8, 1, 4>(), instance<1, 1, 2, 8, 1, 8>(), instance<2, 2, 1, 4, 2, 4>(),
    instance<1, 2, 1, 4, 2, 8>(), instance<2, 2, 1, 2, 4, 4>(), instance<2, 2, 1, 1, 8, 3>(),
    instance<2, 1, 1, 4, 2, 4>(), instance<1, 1, 1, 4, 2, 8>(), instance<2, 1, 1, 2, 4, 4>(),
    instance<1, 1, 1, 2, 4, 6>(), instance<1, 1, 2, 4, 2, 4>(), instance<1, 1, 2, 2, 4, 3>(),
};

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

int memory_of(const SlidingProductInstance& instance, const SlidingBands& bands) {
  return instance.memory(bands.depth(), bands.most(SlidingWeightBands::kRows));
}

/// In microseconds.
double cost_of(const SlidingProductInstance& instance, const SlidingBands& bands, const PlanePieces& pieces) {
  const std::int64_t row_blocks = divide_up(bands.rows(), instance.rows), tiles = divide_up(pieces.all, instance.pieces);
  const int resident = resident_blocks(instance.kernel, instance.threads, static_cast<std::size_t>(memory_of(instance, bands)));
  const int blocks_at_once = std::max(1, resident / multiprocessors());
  const double rounds = static_cast<double>(divide_up(tiles * row_blocks, resident));
  const double steps = bands.most(instance.rows), positions = 4.0 * instance.pieces;
  const double bytes = (steps * 8 + instance.rows) * positions * 4;
  const double products = bands.most(16) * 8.0 * instance.rows * positions;
  const double weight = instance.rows / 16.0 * bands.most(16) * 512;
  return 2 + weight * blocks_at_once / 60e3 + rounds * blocks_at_once * std::max(bytes / 30e3, products / 500e3);
}

bool are_planes(const ConstTensorView& view) {
  const std::int64_t area = view.sizes[2] * view.sizes[3];
  return view.strides[3] == 1 && view.strides[2] == view.sizes[3] && view.strides[1] == area &&
         (view.sizes[0] == 1 || view.strides[0] % kPiecePositions == 0) &&
         reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0;
}

}  // namespace

std::string why_not_sliding_planes(const ConstTensorView& x, const ConstTensorView& y, const SlidingChannels& windows,
                                   bool allow_tf32) {
  const std::string elsewhere = needs_device(Device::gpu, x.device);
  if (!elsewhere.empty()) return elsewhere;
  if (x.dtype != DataType::float32 || !uses_tf32(x.dtype, allow_tf32)) return "it is for float32 with TF32";
  if (x.elements() == 0 || y.elements() == 0) return "a tensor is empty";
  if (!are_planes(x) || !are_planes(y) || x.sizes[2] * x.sizes[3] % kPiecePositions != 0)
    return "an image is not dense and contiguous, or not aligned to 16 bytes, or has no multiple of 4 positions";
  const std::int64_t filters = y.sizes[1];
  if (windows.channels % 32 != 0 || filters % 32 != 0) return "channels or filters are no multiple of 32";
  if (!WindowLines::can_be(windows, filters)) return "not all windows are shared by as many filters";
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (x.elements() > kMost || y.elements() > kMost || windows.channels > 16384 || filters > 16384) return "a tensor is too large";
  const WindowLines lines(windows, filters);
  const PlanePieces pieces(x.sizes[0], x.sizes[2] * x.sizes[3]);
  for (const bool rows_are_channels : {false, true}) {
    if (SlidingProductPass::choose({lines, rows_are_channels}, pieces) == nullptr) return "no tile fits block memory";
  }
  return {};
}

const SlidingProductInstance* SlidingProductPass::choose(const SlidingBands& bands, const PlanePieces& pieces) {
  const SlidingProductInstance* best = nullptr;
  double least = std::numeric_limits<double>::infinity();
  for (const SlidingProductInstance& instance : kInstances) {
    if (memory_of(instance, bands) > hopper::kMemoryLimit) continue;
    const double cost = cost_of(instance, bands, pieces);
    if (cost >= least) continue;
    least = cost;
    best = &instance;
  }
  return best;
}

SlidingProductPass::SlidingProductPass(const SlidingBands& bands, const ConstTensorView& from,
                                       const ConstTensorView& weight, const TensorView& to, Arena& arena)
    : weight_(bands) {
  const PlanePieces pieces(from.sizes[0], from.sizes[2] * from.sizes[3]);
  instance_ = choose(bands, pieces);
  weight_.weight = static_cast<const float*>(weight.data);
  weight_.filter = weight.strides[0];
  weight_.channel = weight.strides[1];
  weight_.fragments = arena.take<Aligned<std::uint32_t, 4>>(weight_.fragments_count());
  p_.bands = bands;
  p_.pieces = pieces;
  p_.from = {static_cast<const float*>(from.data), from.strides[0]};
  p_.to = static_cast<float*>(to.data);
  p_.to_image = to.strides[0];
  p_.fragments = weight_.fragments;
  p_.steps = weight_.steps;
  p_.row_blocks = static_cast<int>(divide_up(bands.rows(), instance_->rows));
  p_.tiles = static_cast<int>(divide_up(pieces.all, instance_->pieces));
  const int resident = resident_blocks(instance_->kernel, instance_->threads, static_cast<std::size_t>(memory_of(*instance_, bands)));
  p_.splits = static_cast<int>(std::clamp<std::int64_t>(resident / p_.row_blocks, 1, p_.tiles));
}

void SlidingProductPass::lay_out(const char* name, void* stream) const {
  launch_following(name, lay_out_kernel, weight_.blocks(), SlidingWeightBands::kThreads, stream, weight_);
}

void SlidingProductPass::multiply(const char* name, void* stream) const {
  launch_following(name, instance_->kernel, std::int64_t{p_.row_blocks} * p_.splits, instance_->threads, stream, p_,
                   static_cast<std::size_t>(memory_of(*instance_, p_.bands)));
}

}  // namespace fusedsc::gpu
#endif
