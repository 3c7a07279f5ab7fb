/// A product by fragments, and what becomes of it: of the forward pass, or as a gradient's header has it. For kernels
/// that are compiled with the library and for those that are generated.
#pragma once

#include <type_traits>

#include "fusedsc/forward/pointwise/fragments/pointwise_fragments_sink.h"
#include "fusedsc/forward/pointwise/fragments/pointwise_packed_product.h"
#include "fusedsc/forward/pointwise/fragments/pointwise_streamed_product.h"

namespace fusedsc::gpu {

/// Pass: Parameters, kInputGradient, Sink<T, Sweep, kFused, kClamps>; and for packed rows kExtras, extra(parameters, i)
/// and result(parameters).
template <class Pass, class T, class Tile, FragmentFusion kFusion>
struct FragmentsOfPass {
  using Product = std::conditional_t<Tile::kStreams, StreamedProduct<T, Tile, Pass::kInputGradient, kFusion>,
                                     FragmentProduct<T, Tile, Pass::kInputGradient, kFusion>>;
  using Packed = PackedProduct<Pass, T, Tile, kFusion>;
  using Sink = typename Pass::template Sink<T, FragmentSweep<Tile>, kFusion != FragmentFusion::none,
                                            kFusion == FragmentFusion::clamps>;

  FUSEDSC_HOST_DEVICE static constexpr std::size_t memory_bytes(const FragmentShape& shape) {
    if constexpr (Tile::kPacked) return Packed::memory_bytes(shape);
    else return Product::template memory_bytes<Sink>(shape.depth, shape.has_other);
  }

  FUSEDSC_DEVICE static void run(const typename Pass::Parameters& parameters) {
    if constexpr (Tile::kPacked) Packed::run(parameters);
    else Product::template run<Sink>(parameters);
  }
};

/// The forward pass.
struct ForwardFragments {
  using Parameters = PointwiseParameters;
  static constexpr bool kInputGradient = false;
  template <class T, class Sweep, bool kFused, bool kClamps>
  using Sink = FragmentSink<T, Sweep, kFused, kClamps>;
  static constexpr int kExtras = 1;
  FUSEDSC_DEVICE static PointwiseMatrix& extra(Parameters& p, int /*i*/) { return p.residual; }
  FUSEDSC_DEVICE static OutputMatrix& result(Parameters& p) { return p.y; }
};

}  // namespace fusedsc::gpu
