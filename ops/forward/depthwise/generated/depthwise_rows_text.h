/// The texts of generated depthwise kernels, whatever their direction: row data reuse with other tilings and windows
/// than those that are compiled with the library. Nothing here needs a GPU or a compiler.
#pragma once

#include <string>

#include "fusedsc/common/problem.h"
#include "fusedsc/tuning/config.h"
#include "fusedsc/tuning/generator/depthwise_tiling.h"

namespace fusedsc::generated {

/// What a text depends on, of a device and the tensors' memory.
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

/// Empty, or why there is no text for such a window, whose channels have `multiplier` outputs each.
std::string why_no_rows_text(const Window& window, std::int64_t multiplier);

/// `channels=2 columns=6 ahead=3 block_n=4`, of such a problem.
tuning::Configs rows_configs(const tuning::DepthwiseExtents& extents, const DepthwiseTarget& target);

/// What the directions' texts differ in.
struct RowsWords {
  std::string fused;                         ///< ", a prologue", for people
  const char *header, *parameters, *kernel;  ///< of the device: the last two of fusedsc::gpu
  std::string fusion;                        ///< the kernel's last template argument
  const char* rows_bytes;                    ///< shared memory of Rows, an expression
  std::string sums_bytes;                    ///< likewise of what a block adds up; "0"
  const char* start;                         ///< whether the next kernel may start at once, a statement
};
/// `why_not`: why_no_rows_text(). Throws Unsupported where there is no such text, or the config does not fit.
DepthwiseText rows_text(const tuning::DepthwiseExtents& extents, const DepthwiseTarget& target,
                        const tuning::Config& config, const std::string& why_not, const RowsWords& words);

}  // namespace fusedsc::generated
