#include "fusedsc/forward/pointwise/generated/pointwise_generated_order.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "fusedsc/tuning/generator/fragment_tiling.h"
#include "fusedsc/tuning/recorder.h"

namespace fusedsc::gpu {
namespace {

/// Of more the last would never be tried.
constexpr std::size_t kMostFragments = 64, kInARow = 3;

double counted_cycles(const FragmentProblem& problem, const tuning::Config& config) {
  const tuning::FragmentTiling tiling = tuning::fragment_tiling_of(config);
  const FragmentWarp warp{tiling.warps(), tiling.warp_positions(), tiling.warp_channels(), tiling.depth > 0};
  PointwiseProductParameters parameters;
  return plan_fragments(problem, config, warp, tiling.block_n * multiprocessors(), multiprocessors(), parameters);
}

}  // namespace

tuning::FragmentRows fragment_rows_of(const std::string& why_no_fragments, bool packed) {
  if (!why_no_fragments.empty()) return tuning::FragmentRows::none;
  return packed ? tuning::FragmentRows::packed : tuning::FragmentRows::whole;
}

tuning::Configs laid_out(const tuning::Configs& all, const FragmentProblem& problem) {
  std::vector<std::pair<double, tuning::Config>> fragments;
  tuning::Configs others;
  for (const tuning::Config& config : all) {
    if (tuning::is_fragment_tiling(config)) fragments.emplace_back(counted_cycles(problem, config), config);
    else others.push_back(config);
  }
  std::stable_sort(fragments.begin(), fragments.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  fragments.resize(std::min(fragments.size(), kMostFragments));
  tuning::Configs order;
  std::vector<std::size_t> places = tuning::spread_places(others.size());
  std::size_t other = 0;
  for (std::size_t i = 0; i < fragments.size(); ++i) {
    order.push_back(fragments[i].second);
    if (i % kInARow == kInARow - 1 && other < places.size()) order.push_back(others[places[other++]]);
  }
  while (other < places.size()) order.push_back(others[places[other++]]);
  // Candidates are taken from all over a list, in the order of spread_places(): the best has the first of these.
  places = tuning::spread_places(order.size());
  tuning::Configs list(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) list[places[i]] = order[i];
  return list;
}

}  // namespace fusedsc::gpu
