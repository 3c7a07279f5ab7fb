/// The texts of generated kernels that multiply matrices by tiles, whatever their direction. Nothing here needs a GPU
/// or a compiler.
#pragma once

#include <string>

#include "fusedsc/common/status.h"
#include "fusedsc/tuning/config.h"
#include "fusedsc/tuning/generator/fragment_tiling.h"
#include "fusedsc/tuning/generator/matrix_tiling.h"

namespace fusedsc::generated {

/// What a text depends on, of a device and the tensors' memory.
struct PointwiseTarget {
  std::string architecture;     ///< as compilers name it
  int units = 1;                ///< multiprocessors: only the order of configs depends on them
  int copy_stages = 1;          ///< kCopyStages of the device
  bool has_tf32 = false;        ///< kernels of TensorFloat-32 are compiled for it
  bool channels_inner = false;  ///< the tensors' channels are neighbours, else their positions
  bool elements = false;        ///< most neighbours are no runs of 8 bytes
  /// Of channels_last tensors, where there are products by fragments.
  tuning::FragmentRows fragments = tuning::FragmentRows::none;
};

/// A kernel as text, and how it is launched.
struct GeneratedText {
  std::string text;
  int threads = 0;
  std::size_t shared_memory_bytes = 0;
  int positions = 0, channels = 0;  ///< of a block's tile
};

/// "Pointwise convolution, forward: float32, channels_last"; `fused`: ", a prologue".
std::string title_of(tuning::Direction direction, DataType dtype, bool channels_inner, const std::string& fused);

/// `rows=64 columns=128 depth=32 groups=1 block_n=2`, of such a problem.
tuning::Configs tiles_configs(const tuning::MatrixExtents& extents, const PointwiseTarget& target);

/// What the directions' texts differ in.
struct TilesWords {
  std::string fused;                         ///< for people
  const char *header, *parameters, *kernel;  ///< of the device: the last two of fusedsc::gpu
  const char *memory, *its_bytes;            ///< gpu::<memory><T, Tile, ...><its_bytes>(rows_other, cols_other)
  bool names_elements = false;               ///< in a last template argument, not in the kernel's name
};
/// Throws Unsupported where the config does not fit.
GeneratedText tiles_text(const tuning::MatrixExtents& extents, const PointwiseTarget& target,
                         const tuning::Config& config, const TilesWords& words);

}  // namespace fusedsc::generated
