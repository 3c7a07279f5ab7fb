#ifdef FUSEDSC_HOPPER
#include "fusedsc/common/divide_up.h"
#include "fusedsc/forward/sliding_channel/product/sliding_product_launch.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "fusedsc/common/gpu/hopper/hopper_host.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_plan.h"
#include "fusedsc/runtime/implementation.h"

namespace fusedsc::gpu {
namespace {

FUSEDSC_KERNEL(SlidingFragments::kThreads, 2)
lay_out_kernel(SlidingFragments p) { lay_out_sliding_fragments(p); }

template <class Product>
FUSEDSC_KERNEL(Product::kThreads, 2)
product_kernel(SlidingProductParameters p) {
  Product::run(p);
}

template <int kRowTiles, int kGroups, int kWarpRows, int kWarpColumns, int kStages>
constexpr SlidingProductInstance instance() {
  using Product = SlidingProduct<kRowTiles, kGroups, kWarpRows, kWarpColumns, kStages>;
  return {Product::kRows, Product::kPieces, Product::kThreads, kStages, product_kernel<Product>, Product::memory_bytes};
}

/// Other tiles, of 32 to 256 rows and 64 to 256 positions, are faster for some layer, none by more than a tenth.
const SlidingProductInstance kInstances[] = {
    // Of a warp, 16 rows and 32 positions; warps for rows and for positions; stages
    instance<1, 1, 4, 2, 4>(),
    instance<2, 1, 4, 2, 4>(),
};
/// Where the weight of more rows does not fit shared memory.
const SlidingProductInstance kFewRows = instance<1, 1, 2, 4, 3>();

/// `steps`: of the fragments of 16 rows.
int memory_of(const SlidingProductInstance& instance, const SlidingBands& bands, int steps) {
  return instance.memory(bands.depth(), steps);
}

/// Blocks of the same rows.
int splits_of(const SlidingProductInstance& instance, const SlidingBands& bands, const PlanePieces& pieces, int steps) {
  const auto memory = static_cast<std::size_t>(memory_of(instance, bands, steps));
  const int resident = resident_blocks(instance.kernel, instance.threads, memory);
  return static_cast<int>(std::clamp<std::int64_t>(resident / divide_up(bands.rows(), instance.rows), 1,
                                                   divide_up(pieces.all, instance.pieces)));
}

/// In microseconds; fitted to the times of both tiles on DSXplore's layers on an H200.
double cost_of(const SlidingProductInstance& instance, const SlidingBands& bands, const PlanePieces& pieces,
               int steps) {
  constexpr double kStart = 2.6, kLatency = 0.8;                          // of copies: what stages hide
  constexpr double kCopied = 63.7e3, kStored = 33.2e3, kWeight = 11.4e3;  // bytes of a multiprocessor per microsecond
  constexpr double kMemory = 4.18e6, kCache = 4.68e6;                     // of all
  const int splits = splits_of(instance, bands, pieces, steps), block_steps = bands.most(instance.rows);
  const auto row_blocks = static_cast<double>(divide_up(bands.rows(), instance.rows));
  const double beside = std::max(1.0, std::ceil(row_blocks * splits / multiprocessors()));
  const double piece_row = 16.0 * instance.pieces;
  const auto stages = static_cast<double>(divide_up(block_steps, 4));
  const double tile = stages * std::max(kLatency / (instance.stages - 1), beside * 32 * piece_row / kCopied) +
                      beside * instance.rows * piece_row / kStored;
  const auto tiles = static_cast<double>(divide_up(divide_up(pieces.all, instance.pieces), splits));
  const double weight = beside * instance.rows / 16 * steps * 512 / kWeight;
  const double all_pieces = 16.0 * pieces.all;
  return kStart + std::max({tiles * tile + weight, (bands.rows() + bands.depth()) * all_pieces / kMemory,
                            (block_steps * 8 * row_blocks + bands.rows()) * all_pieces / kCache});
}

/// Null: none fits shared memory.
const SlidingProductInstance* choose(const SlidingBands& bands, const PlanePieces& pieces) {
  const int steps = bands.most(SlidingFragments::kRows);
  const auto fits = [&](const SlidingProductInstance& instance) {
    return memory_of(instance, bands, steps) <= hopper::kMemoryLimit;
  };
  const SlidingProductInstance* best = nullptr;
  double least = std::numeric_limits<double>::infinity();
  for (const SlidingProductInstance& instance : kInstances) {
    if (!fits(instance)) continue;
    const double cost = cost_of(instance, bands, pieces, steps);
    if (cost >= least) continue;
    least = cost;
    best = &instance;
  }
  return best != nullptr || !fits(kFewRows) ? best : &kFewRows;
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
  if (!hopper::is_hopper()) return "the GPU is no Hopper";
  if (!uses_tf32(x.dtype, allow_tf32)) return "it is for float32 where it may be TensorFloat-32";
  if (x.elements() == 0 || y.elements() == 0) return "a tensor is empty";
  if (!are_planes(x) || !are_planes(y) || x.sizes[2] * x.sizes[3] % kPiecePositions != 0)
    return "an image is not dense and contiguous, or not aligned to 16 bytes, or has no multiple of 4 positions";
  const std::int64_t filters = y.sizes[1];
  if (windows.channels % 32 != 0 || filters % 32 != 0) return "channels or filters are no multiple of 32";
  if (!WindowLines::can_be(windows, filters)) return "not all windows are shared by as many filters";
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (x.elements() > kMost || y.elements() > kMost || windows.channels > 16384 || filters > 16384)
    return "a tensor is too large";
  const WindowLines lines(windows, filters);
  for (const bool rows_are_channels : {false, true}) {
    const SlidingBands bands(lines, rows_are_channels);
    if (memory_of(kFewRows, bands, bands.most(SlidingFragments::kRows)) > hopper::kMemoryLimit)
      return "the weight of 32 rows does not fit shared memory";
  }
  return {};
}

SlidingProductPass::SlidingProductPass(const SlidingBands& bands, const ConstTensorView& from,
                                       const ConstTensorView& weight, const TensorView& to, Arena& arena)
    : weight_(bands) {
  const PlanePieces pieces(from.sizes[0], from.sizes[2] * from.sizes[3]);
  instance_ = choose(bands, pieces);
  weight_.weight = static_cast<const float*>(weight.data);
  weight_.filter = weight.strides[0];
  weight_.channel = weight.strides[1];
  weight_.fragments = arena.take<SlidingFragment>(weight_.fragments_count());
  p_.bands = bands;
  p_.pieces = pieces;
  p_.from = {static_cast<const float*>(from.data), from.strides[0]};
  p_.to = static_cast<float*>(to.data);
  p_.to_image = to.strides[0];
  p_.fragments = weight_.fragments;
  p_.steps = weight_.steps;
  p_.row_blocks = static_cast<int>(divide_up(bands.rows(), instance_->rows));
  p_.tiles = static_cast<int>(divide_up(pieces.all, instance_->pieces));
  p_.splits = splits_of(*instance_, bands, pieces, p_.steps);
}

void SlidingProductPass::lay_out(const char* name, void* stream) const {
  launch_following(name, lay_out_kernel, weight_.blocks(), SlidingFragments::kThreads, stream, weight_);
}

void SlidingProductPass::multiply(const char* name, void* stream) const {
  launch_following(name, instance_->kernel, std::int64_t{p_.row_blocks} * p_.splits, instance_->threads, stream, p_,
                   static_cast<std::size_t>(memory_of(*instance_, p_.bands, p_.steps)));
}

}  // namespace fusedsc::gpu
#endif
