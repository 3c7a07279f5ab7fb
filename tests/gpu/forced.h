/// The kernels for GPUs among those that are forced.
#pragma once

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/gpu_under_test.h"
#include "ops/forced.h"

namespace fusedsc::reference {

/// The kernels that can run a problem, of those named, or of all but generated ones, which generated_gpu_test.cpp runs.
using Names = std::vector<std::string_view>;

template <class Arguments>
std::vector<tuning::Kernel<Arguments>> able(std::span<const tuning::Kernel<Arguments>> kernels,
                                            const Arguments& arguments, const Names& names = {}) {
  std::vector<tuning::Kernel<Arguments>> found;
  for (const tuning::Kernel<Arguments>& kernel : kernels) {
    const bool is_generated = std::string_view(kernel.name) == "generated";
    const bool is_named =
        names.empty() ? !is_generated : std::find(names.begin(), names.end(), kernel.name) != names.end();
    if (is_named && kernel.unsupported(arguments).empty()) found.push_back(kernel);
  }
  return found;
}

/// Of a kernel's configs for a problem at most `most` that are far apart, others for each problem; as force() takes
/// them.
template <class Arguments>
std::vector<std::string> some_choices(const tuning::Kernel<Arguments>& kernel, const Arguments& arguments,
                                      std::size_t problem, std::size_t most) {
  const tuning::Configs configs = kernel.configs(arguments);
  EXPECT_FALSE(configs.empty()) << kernel.name;
  std::vector<std::string> some;
  const std::size_t step = std::max<std::size_t>(configs.size() / most, 1);
  for (std::size_t i = 0; i < std::min(most, configs.size()); ++i) {
    const tuning::Config& config = configs[(i * step + problem) % configs.size()];
    const std::string words = tuning::printed(config);
    EXPECT_EQ(tuning::parsed(words), config);
    some.push_back(kernel.name + (words.empty() ? "" : '/' + words));
  }
  return some;
}

/// The configs of one role's kernels that ran by force in a test. A problem takes those that none before it has taken:
/// on a GPU all of them, so that in the end every config has run that a kernel lists for any of the problems; on the
/// host executor, which is slow, at most `most`, far apart, and some again where all have run.
class ConfigTour {
 public:
  template <class Arguments>
  std::vector<std::string> next(const tuning::Kernel<Arguments>& kernel, const Arguments& arguments, std::size_t most) {
    const tuning::Configs configs = kernel.configs(arguments);
    EXPECT_FALSE(configs.empty()) << kernel.name;
    std::vector<std::string> left, known;
    for (const std::size_t place : tuning::spread_places(configs.size())) {
      const std::string words = tuning::printed(configs[place]);
      EXPECT_EQ(tuning::parsed(words), configs[place]);
      const std::string choice = kernel.name + (words.empty() ? "" : '/' + words);
      (runs_.emplace(choice, 0).first->second == 0 ? left : known).push_back(choice);
    }
    if (gpu_is_host_executor()) {
      left.resize(std::min(left.size(), most));
      for (std::size_t i = 0; i < known.size() && left.size() < most; ++i) left.push_back(known[i]);
    } else if (left.empty()) {
      left.push_back(known.front());
    }
    for (const std::string& choice : left) ++runs_[choice];
    return left;
  }

  /// How many ran, and how many there are: for whoever reads the test's report.
  void record(const char* role) const {
    std::size_t ran = 0;
    for (const auto& [choice, runs] : runs_) ran += runs > 0;
    if (!gpu_is_host_executor()) {
      EXPECT_EQ(ran, runs_.size()) << role << ": not every config has run";
    }
    testing::Test::RecordProperty(std::string(role) + " configs",
                                  std::to_string(ran) + " of " + std::to_string(runs_.size()));
  }

 private:
  std::map<std::string, int> runs_;
};

}  // namespace fusedsc::reference
