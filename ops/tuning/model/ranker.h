/// Trees that say how long a kernel with a config takes: what a library of gradient-boosted trees has fitted to
/// measured rows (python -m benchmarks.fit), as plain data. They correct the roofline (model.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fusedsc/tuning/model/model.h"

namespace fusedsc::tuning {

/// Of one kernel: log(microseconds / roofline) is the sum of a leaf of each.
class Trees {
 public:
  struct Node {
    std::int32_t feature = -1;  ///< -1: a leaf
    std::int32_t right = 0;     ///< place of the child for larger features; others go to the next node
    double value = 0;           ///< of a leaf; else: up to which a feature is not larger
  };

  /// Throws InvalidArgument where a node leads to none, or back.
  Trees(std::vector<std::int32_t> roots, std::vector<Node> nodes, std::size_t features);

  double sum(const Features& features) const;

 private:
  std::vector<std::int32_t> roots_;
  std::vector<Node> nodes_;
};

/// Those of a role.
struct RoleTrees {
  std::map<std::string, Trees, std::less<>> kernels;
  /// What is taken otherwise stays unless another is predicted to be faster by more than that: 0.05 is 5%; 1:
  /// always.
  double margin = 0;
};

class Ranker {
 public:
  /// Throws InvalidArgument for what is no ranker, or one of another version or other features.
  static Ranker parsed(std::string_view json);

  /// Null: it says nothing of the role.
  std::shared_ptr<const RoleTrees> of(std::string_view role) const;

 private:
  std::map<std::string, std::shared_ptr<const RoleTrees>, std::less<>> roles_;
};

/// One problem's candidates.
class Predictions {
 public:
  Predictions(const RoleTrees& trees, std::string_view problem, const Machine& machine);

  /// None: nothing is known of the kernel.
  std::optional<double> microseconds(std::string_view kernel, const Config& config);

 private:
  const RoleTrees& trees_;
  Machine machine_;
  ProblemFacts facts_;
  Features features_;
  std::size_t of_problem_;
  double roofline_;
};

}  // namespace fusedsc::tuning
