/// How the texts of generated kernels are written, whatever they compute.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "fusedsc/common/data_type.h"
#include "fusedsc/common/status.h"
#include "fusedsc/tuning/config.h"

namespace fusedsc::generated {

/// A kernel in words. `body`: C++, whole lines; in it T is the tensors' type, and `parameters` are the kernel's.
struct KernelWords {
  std::string title;         ///< "Depthwise convolution, forward: float32, 3x3, stride 1"
  std::string architecture;  ///< as compilers name it
  const tuning::Config& config;
  std::initializer_list<const char*> headers;  ///< of ops/, but for the one that all texts include
  bool multiplies_matrices;                    ///< FUSEDSC_MATRIX_KERNEL_OF in place of FUSEDSC_KERNEL
  int threads, blocks;                         ///< of a block; of a compute unit at the same time, at least
  const char* parameters;                      ///< of fusedsc::gpu
  DataType dtype;
  std::string body;
};
std::string kernel_text(const KernelWords& kernel);

template <class Tiling>
tuning::Configs configs_of(const std::vector<Tiling>& tilings) {
  tuning::Configs configs;
  for (const Tiling& tiling : tilings) configs.push_back(config_of(tiling));
  return configs;
}

/// What `tiling_of` reads in the config. Throws Unsupported where that is none of these; `why_none`: why there are
/// none.
template <class Tiling>
Tiling tiling_among(const std::vector<Tiling>& tilings, Tiling (*tiling_of)(const tuning::Config&),
                    const tuning::Config& config, const std::string& why_none = "") {
  Tiling tiling;
  try {
    tiling = tiling_of(config);
  } catch (const InvalidArgument& error) {
    throw Unsupported(std::string("generated: ") + error.what());
  }
  if (std::find(tilings.begin(), tilings.end(), tiling) == tilings.end()) {
    throw Unsupported("generated: there is no kernel of this problem with " + tuning::printed(config) +
                      (why_none.empty() ? "" : ", as " + why_none));
  }
  return tiling;
}

/// Of those that are there: {{"a prologue", true}, ...} is ", a prologue".
std::string listed(std::initializer_list<std::pair<const char*, bool>> parts);

/// "true" or "false".
const char* word(bool value);

/// Template arguments that say what they are: "T, /*kernel*/ 3, /*stride*/ 1".
std::string arguments_of(const char* first, std::initializer_list<std::pair<const char*, std::string>> others);

/// The line that makes a wrong prediction of shared memory an error of the compiler.
std::string asserted_bytes(const std::string& expression, std::size_t bytes);

}  // namespace fusedsc::generated
