#include "fusedsc/tuning/model/ranker.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "fusedsc/common/status.h"
#include "fusedsc/tuning/store/json_error.h"

namespace fusedsc::tuning {
namespace {

constexpr int kVersion = 2;

Trees trees_of(const nlohmann::json& object, std::size_t features) {
  const auto wanted = object.at("feature").get<std::vector<std::int32_t>>(),
             right = object.at("right").get<std::vector<std::int32_t>>();
  const auto values = object.at("value").get<std::vector<double>>();
  check(right.size() == wanted.size() && values.size() == wanted.size(), "its nodes' columns differ in length");
  std::vector<Trees::Node> nodes;
  nodes.reserve(wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) nodes.push_back({wanted[i], right[i], values[i]});
  return {object.at("roots").get<std::vector<std::int32_t>>(), std::move(nodes), features};
}

/// The next line of a text, without its end, which is taken from it.
std::string_view next_line(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(text.size(), line.size() + 1));
  return line;
}

/// read(): what JSON's exceptions say, too, as InvalidArgument.
template <class Read>
auto translated(const Read& read) {
  try {
    return read();
  } catch (const nlohmann::json::exception& error) {
    throw InvalidArgument(not_whole(error));
  }
}

}  // namespace

Trees::Trees(std::vector<std::int32_t> roots, std::vector<Node> nodes, std::size_t features)
    : roots_(std::move(roots)), nodes_(std::move(nodes)) {
  const auto count = static_cast<std::int32_t>(nodes_.size());
  for (const std::int32_t root : roots_) check(root >= 0 && root < count, "a tree has no root");
  for (std::int32_t i = 0; i < count; ++i) {
    const Node& node = nodes_[static_cast<std::size_t>(i)];
    if (node.feature < 0) continue;
    check(node.feature < static_cast<std::int32_t>(features), "a node asks for a feature that there is not");
    // Children come behind their node: no way leads round.
    check(i + 1 < count && node.right > i && node.right < count, "a node leads nowhere");
  }
}

double Trees::sum(const Features& features) const {
  double sum = 0;
  for (const std::int32_t root : roots_) {
    const Node* node = &nodes_[static_cast<std::size_t>(root)];
    while (node->feature >= 0) {
      const bool goes_left = features[static_cast<std::size_t>(node->feature)] <= node->value;
      node = goes_left ? node + 1 : &nodes_[static_cast<std::size_t>(node->right)];
    }
    sum += node->value;
  }
  return sum;
}

KernelTrees::KernelTrees(std::string role, std::string line, Damaged damaged)
    : role_(std::move(role)), line_(std::move(line)), damaged_(std::move(damaged)) {}

KernelTrees::~KernelTrees() = default;

const Trees* KernelTrees::find(std::string_view kernel) const {
  if (!is_read_.load(std::memory_order_acquire)) {
    const std::lock_guard lock(reading_);
    if (!is_read_.load(std::memory_order_relaxed)) {
      read();
      is_read_.store(true, std::memory_order_release);
    }
  }
  const auto found = trees_.find(kernel);
  return found != trees_.end() ? &found->second : nullptr;
}

void KernelTrees::read() const {
  try {
    trees_ = translated([this] {
      const auto object = nlohmann::json::parse(line_);
      check(object.at("role").get<std::string>() == role_, "the line of ", role_, " is another role's");
      std::map<std::string, Trees, std::less<>> trees;
      for (const auto& [kernel, of_kernel] : object.at("kernels").items()) {
        trees.emplace(kernel, trees_of(of_kernel, feature_names().size()));
      }
      return trees;
    });
  } catch (const InvalidArgument& error) {
    if (!damaged_) throw;
    damaged_(error.what());
  }
  line_ = std::string();
}

Ranker Ranker::parsed(std::string_view text, const KernelTrees::Damaged& damaged) {
  return translated([&] {
    const auto head = nlohmann::json::parse(next_line(text));
    check(head.at("version").get<int>() == kVersion, "it is of another version");
    check(head.at("features").get<std::vector<std::string>>() == feature_names(), "it was fitted to other features");
    Ranker ranker;
    for (const auto& of_role : head.at("roles")) {
      const auto role = of_role.at("role").get<std::string>();
      const std::string_view line = next_line(text);
      check(line.size() == of_role.at("bytes").get<std::size_t>(), "it is not whole: the line of ", role, " has ",
            line.size(), " bytes, not ", of_role.at("bytes").dump());
      ranker.roles_.emplace(
          role, std::make_shared<RoleTrees>(role, std::string(line), damaged, of_role.at("margin").get<double>()));
    }
    return ranker;
  });
}

std::shared_ptr<const RoleTrees> Ranker::of(std::string_view role) const {
  const auto found = roles_.find(role);
  return found != roles_.end() ? found->second : nullptr;
}

Predictions::Predictions(const RoleTrees& trees, std::string_view problem, const Machine& machine)
    : trees_(trees), machine_(machine), facts_(facts_of(problem)), roofline_(roofline_us(facts_, machine)) {
  append_problem_features(features_, facts_, machine_);
  of_problem_ = features_.size();
}

std::optional<double> Predictions::microseconds(std::string_view kernel, const Config& config) {
  const Trees* const trees = trees_.kernels.find(kernel);
  if (trees == nullptr) return std::nullopt;
  features_.resize(of_problem_);
  append_config_features(features_, facts_, config, machine_);
  return roofline_ * std::exp(trees->sum(features_));
}

}  // namespace fusedsc::tuning
