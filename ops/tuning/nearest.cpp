#include "fusedsc/tuning/nearest.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <tuple>
#include <utility>

namespace fusedsc::tuning {
namespace {

/// A tensor of activations in a problem's text: "x=float16[64,32,112,112]". Where the digits of its images are.
struct Images {
  std::size_t begin = 0, end = 0;
  std::int64_t batch = 0;
};

bool is_of_name(char c) { return c == '_' || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

/// The next from `from` on. Lists that follow '=' at once are no tensors' sizes, and weights have no images.
std::optional<Images> next_images(std::string_view problem, std::size_t from) {
  for (std::size_t open = problem.find('[', from); open != std::string_view::npos; open = problem.find('[', open + 1)) {
    std::size_t type = open;
    while (type > 0 && is_of_name(problem[type - 1])) --type;
    const std::size_t close = problem.find(']', open);
    if (type == open || type == 0 || problem[type - 1] != '=' || close == std::string_view::npos) continue;
    std::size_t name = type - 1;
    while (name > 0 && is_of_name(problem[name - 1])) --name;
    const std::string_view sizes = problem.substr(open + 1, close - open - 1);
    const bool is_weight = problem.substr(name, type - 1 - name).find("weight") != std::string_view::npos;
    if (is_weight || std::count(sizes.begin(), sizes.end(), ',') != 3) continue;
    Images found{.begin = open + 1, .end = open + 1 + sizes.find(',')};
    std::from_chars(problem.data() + found.begin, problem.data() + found.end, found.batch);
    return found;
  }
  return std::nullopt;
}

/// The key of what is alike.
std::string key(const ForAnyBatch& any) { return for_any_16_bits(any.text); }

double distance(std::int64_t a, std::int64_t b) {
  return std::abs(std::log2(static_cast<double>(a) / static_cast<double>(b)));
}

}  // namespace

std::optional<ForAnyBatch> for_any_batch(std::string_view problem) {
  if (!problem.starts_with("x=")) return std::nullopt;
  ForAnyBatch result;
  std::size_t done = 0;
  for (auto images = next_images(problem, 0); images; images = next_images(problem, images->end)) {
    if (result.batch == 0) result.batch = images->batch;
    if (images->batch != result.batch) continue;  // something else than images
    result.text.append(problem.substr(done, images->begin - done)) += 'N';
    done = images->end;
  }
  result.text += problem.substr(done);
  if (result.batch <= 0) return std::nullopt;
  return result;
}

std::string for_any_16_bits(std::string_view problem) {
  std::string result(problem);
  if (problem.find(" gpu") == std::string_view::npos) return result;
  constexpr std::string_view kName = "bfloat16";
  for (auto at = result.find(kName); at != std::string::npos; at = result.find(kName, at)) result.erase(at, 1);
  return result;
}

void Nearest::add(Entry entry) {
  if (const auto any = for_any_batch(entry.problem)) entries_[key(*any)].emplace(any->batch, std::move(entry));
}

std::vector<const Entry*> Nearest::of(std::string_view problem) const {
  const auto any = for_any_batch(problem);
  const auto found = any ? entries_.find(key(*any)) : entries_.end();
  if (found == entries_.end()) return {};
  struct Near {
    double distance;
    bool is_other_type;
    const Entry* entry;
  };
  std::vector<Near> near;
  for (auto entry = found->second.rbegin(); entry != found->second.rend(); ++entry) {
    const std::int64_t batch = entry->first;
    if (entry->second.problem == problem) continue;  // what was found unfit for it
    if (batch > any->batch * kMostTimes || batch * kMostTimes < any->batch) continue;
    const bool is_other_type = for_any_batch(entry->second.problem)->text != any->text;
    near.push_back({distance(batch, any->batch), is_other_type, &entry->second});
  }
  std::stable_sort(near.begin(), near.end(), [](const Near& a, const Near& b) {
    return std::tie(a.distance, a.is_other_type) < std::tie(b.distance, b.is_other_type);
  });
  std::vector<const Entry*> result;
  result.reserve(near.size());
  for (const Near& one : near) result.push_back(one.entry);
  return result;
}

}  // namespace fusedsc::tuning
