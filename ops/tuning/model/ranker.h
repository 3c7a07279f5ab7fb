/// Trees that say how long a kernel with a config takes: what a library of gradient-boosted trees has fitted to
/// measured rows (python -m benchmarks.fit), as plain data. They correct the roofline (model.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
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

/// Those of a role, by kernel. They are read when one is asked for: where the prior's choice always stays, a program
/// that measures nothing never does.
class KernelTrees {
 public:
  /// `line`: of the role, in a ranker's file. `damaged` is told, with why, where it is none: then there are no trees.
  /// Without it whoever asks for one gets InvalidArgument.
  using Damaged = std::function<void(const std::string& why)>;
  KernelTrees(std::string role, std::string line, Damaged damaged);
  ~KernelTrees();  // not here: clang 15 crashes on it, as HIP

  bool contains(std::string_view kernel) const { return find(kernel) != nullptr; }
  /// Null: nothing is known of it.
  const Trees* find(std::string_view kernel) const;

 private:
  void read() const;

  std::string role_;
  mutable std::string line_;  ///< until it is read
  Damaged damaged_;
  // Not call_once: where reading throws, the next call waits for ever, under ThreadSanitizer and with some libraries.
  mutable std::mutex reading_;
  mutable std::atomic<bool> is_read_ = false;
  mutable std::map<std::string, Trees, std::less<>> trees_;
};

struct RoleTrees {
  RoleTrees(std::string role, std::string line, KernelTrees::Damaged damaged, double margin)
      : kernels(std::move(role), std::move(line), std::move(damaged)), margin(margin) {}

  KernelTrees kernels;
  /// What is taken otherwise stays unless another is predicted to be faster by more than that: 0.05 is 5%; 1:
  /// always.
  double margin;
};

/// A file of one JSON object a line: first the head, with the margin of each role and how many bytes its line has; then
/// these lines, in the order of the head.
class Ranker {
 public:
  /// Throws InvalidArgument for what is no ranker, for one of another version or other features, and for one that is
  /// cut off. `damaged`: KernelTrees.
  static Ranker parsed(std::string_view text, const KernelTrees::Damaged& damaged = {});

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
