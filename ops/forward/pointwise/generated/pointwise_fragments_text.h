/// The texts of generated kernels that multiply by fragments, forward and of the input gradient. Nothing here needs a
/// GPU or a compiler.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "fusedsc/common/problem.h"
#include "fusedsc/forward/pointwise/generated/pointwise_tiles_text.h"
#include "fusedsc/tuning/generator/fragment_tiling.h"

namespace fusedsc::generated {

/// What the directions' texts differ in.
struct FragmentWords {
  std::string fused;                                           ///< for people
  const char *header, *parameters, *pass;                      ///< of the device: the last two of fusedsc::gpu
  bool only_clamps = true;                                     ///< activations do
  int groups = 1;                                              ///< of channels
  std::vector<std::pair<const char*, std::string>> constants;  ///< members of the parameters that are known

  void set(const char* member, const std::string& value) { constants.emplace_back(member, value); }
  /// Of a pointer that is null where there is nothing.
  void set_if_null(const char* member, bool is_there) {
    if (!is_there) set(member, "nullptr");
  }
};
/// "Activation::relu6".
std::string activation_word(Activation activation);

/// None where the target has no such kernels.
tuning::Configs fragments_configs(const tuning::FragmentExtents& extents, const PointwiseTarget& target);

/// Throws Unsupported where the config does not fit.
GeneratedText fragments_text(const tuning::FragmentExtents& extents, const PointwiseTarget& target,
                             const tuning::Config& config, const FragmentWords& words);

}  // namespace fusedsc::generated
