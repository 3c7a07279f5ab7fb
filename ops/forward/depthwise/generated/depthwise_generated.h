/// The code generator of depthwise convolution, forward: from a problem and a tiling to the text of a kernel, of the
/// same device headers as the kernels that are compiled with the library. Nothing here needs a GPU or a compiler.
#pragma once

#include <string>

#include "fusedsc/forward/depthwise.h"
#include "fusedsc/tuning/config.h"
#include "fusedsc/tuning/generator/depthwise_tiling.h"

namespace fusedsc::generated {

/// What a text depends on, of a problem and a device.
struct DepthwiseTarget {
  std::string architecture;       ///< as compilers name it
  bool copies_run_ahead = false;  ///< kCopiesRunAhead of the device
  int joined_channels = 1;        ///< neighbouring channels of all tensors that can be loaded as one vector
};

/// A kernel as text, and how it is launched.
struct DepthwiseText {
  std::string text;
  std::size_t shared_memory_bytes = 0;
  int channels = 1, columns = 1;  ///< of a thread
  int period = 1;                 ///< rows of a strip, and its overlap, are worked off in whole periods of so many
};

/// Empty, or why there is no text for such a problem.
std::string why_no_depthwise_text(const DepthwiseArguments& a);

/// Row data reuse with other tilings and windows than those of ../rows: `channels=2 columns=6 ahead=3 block_n=4`.
tuning::Configs depthwise_configs(const DepthwiseArguments& a, const DepthwiseTarget& target);

/// Throws Unsupported where the config does not fit the problem.
DepthwiseText depthwise_text(const DepthwiseArguments& a, const DepthwiseTarget& target, const tuning::Config& config);

}  // namespace fusedsc::generated
