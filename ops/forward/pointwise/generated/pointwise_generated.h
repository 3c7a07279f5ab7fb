/// The code generator of pointwise convolution, forward: from a problem and a tiling to the text of a kernel, of the
/// same device headers as the kernels that are compiled with the library. Nothing here needs a GPU or a compiler.
#pragma once

#include <string>

#include "fusedsc/forward/pointwise.h"
#include "fusedsc/tuning/config.h"
#include "fusedsc/tuning/generator/pointwise_tiling.h"

namespace fusedsc::generated {

/// What a text depends on, of a problem and a device.
struct PointwiseTarget {
  std::string architecture;     ///< as compilers name it
  int units = 1;                ///< multiprocessors: only the order of configs depends on them
  int copy_stages = 1;          ///< kCopyStages of the device
  bool has_tf32 = false;        ///< kernels of TensorFloat-32 are compiled for it
  bool channels_inner = false;  ///< the tensors' channels are neighbours, else their positions
  bool has_runs = false;        ///< whose elements are runs of several, so that the kernels of tiles can be taken
};

/// A kernel as text, and how it is launched.
struct GeneratedText {
  std::string text;
  int threads = 0;
  std::size_t shared_memory_bytes = 0;
  int positions = 0, channels = 0;  ///< of a block's tile
};

/// Two kinds of kernels: channel distribution, `wave_w=8 wave_c=64 ...` (generator/pointwise_tiling.h), and the tiles
/// of
/// ../tiles with other sizes, `rows=64 columns=128 depth=32 groups=1 block_n=2`. The best first.
tuning::Configs pointwise_configs(const PointwiseArguments& a, const PointwiseTarget& target);

/// Throws Unsupported where the config does not fit the problem.
GeneratedText pointwise_text(const PointwiseArguments& a, const PointwiseTarget& target, const tuning::Config& config);

}  // namespace fusedsc::generated
