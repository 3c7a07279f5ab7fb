/// The code generator of pointwise convolution, forward: from a problem and a tiling to the text of a kernel, of the
/// same device headers as the kernels that are compiled with the library. Nothing here needs a GPU or a compiler.
#pragma once

#include "fusedsc/forward/pointwise.h"
#include "fusedsc/forward/pointwise/generated/pointwise_fragments_text.h"
#include "fusedsc/forward/pointwise/generated/pointwise_tiles_text.h"
#include "fusedsc/tuning/generator/pointwise_tiling.h"

namespace fusedsc::generated {

/// Three kinds of kernels: channel distribution, `wave_w=8 wave_c=64 ...` (generator/pointwise_tiling.h), the best of
/// them first; and with other sizes the tiles of ../tiles, `rows=64 columns=128 depth=32 groups=1 block_n=2`, and the
/// fragments of ../fragments (generator/fragment_tiling.h).
tuning::Configs pointwise_configs(const PointwiseArguments& a, const PointwiseTarget& target);

/// Throws Unsupported where the config does not fit the problem.
GeneratedText pointwise_text(const PointwiseArguments& a, const PointwiseTarget& target, const tuning::Config& config);

}  // namespace fusedsc::generated
