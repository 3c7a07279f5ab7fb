#include "fusedsc/tuning/model/ranker.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "fusedsc/common/status.h"

namespace fusedsc::tuning {
namespace {

constexpr int kVersion = 1;

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

Ranker Ranker::parsed(std::string_view json) {
  try {
    const auto object = nlohmann::json::parse(json);
    check(object.at("version").get<int>() == kVersion, "it is of another version");
    const std::vector<std::string> features = feature_names();
    check(object.at("features").get<std::vector<std::string>>() == features, "it was fitted to other features");
    Ranker ranker;
    for (const auto& [role, of_role] : object.at("roles").items()) {
      auto trees = std::make_shared<RoleTrees>();
      trees->margin = of_role.at("margin").get<double>();
      for (const auto& [kernel, of_kernel] : of_role.at("kernels").items()) {
        trees->kernels.emplace(kernel, trees_of(of_kernel, features.size()));
      }
      ranker.roles_.emplace(role, std::move(trees));
    }
    return ranker;
  } catch (const nlohmann::json::exception& error) {
    throw InvalidArgument(std::string("it is no ranker: ") + error.what());
  }
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
  const auto trees = trees_.kernels.find(kernel);
  if (trees == trees_.kernels.end()) return std::nullopt;
  features_.resize(of_problem_);
  append_config_features(features_, facts_, config, machine_);
  return roofline_ * std::exp(trees->second.sum(features_));
}

}  // namespace fusedsc::tuning
