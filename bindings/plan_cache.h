/// Plans that are kept: an operator that is called again with the same problem, as in each step of a training, works
/// nothing out anew.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fusedsc/backward/members.h"
#include "fusedsc/forward/members.h"
#include "fusedsc/fused/members.h"
#include "fusedsc/runtime/plan.h"
#include "fusedsc/tuning/problem_key.h"
#include "fusedsc/tuning/version.h"

namespace fusedsc::aten {

/// Of an operator. For any number of threads; the plan that was used longest ago is the first to go.
template <class Arguments>
class PlanCache {
 public:
  using MakePlan = Plan<Arguments> (*)(const Arguments&, int threads);

  static constexpr std::size_t kMostPlans = 1024;

  /// The kept plan, or one that is made. `device`: its number, of those of its kind.
  std::shared_ptr<const Plan<Arguments>> plan(MakePlan make, const Arguments& arguments, int threads, int device) {
    thread_local tuning::ProblemKey key;
    key.begin();
    key.add(reinterpret_cast<std::uintptr_t>(make), threads, device, arguments);
    if (auto found = find(key)) return found;
    const std::uint64_t version = tuning::choices_version();
    auto made = std::make_shared<const Plan<Arguments>>(make(arguments, threads));  // not under the lock: may take long
    keep(key, made, version);
    return made;
  }

  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return plans_.size();
  }

 private:
  struct Kept {
    std::uint64_t hash;
    std::vector<std::uint64_t> words;
    std::shared_ptr<const Plan<Arguments>> plan;
  };

  /// Whatever is chosen otherwise now may change each plan.
  void drop_outdated() {
    const std::uint64_t version = tuning::choices_version();
    if (version == version_) return;
    places_.clear();
    plans_.clear();
    version_ = version;
  }

  std::shared_ptr<const Plan<Arguments>> find(const tuning::ProblemKey& key) {
    const std::lock_guard lock(mutex_);
    drop_outdated();
    const auto place = places_.find(key.hash());
    if (place == places_.end() || !key.is(place->second->words)) return nullptr;
    plans_.splice(plans_.begin(), plans_, place->second);
    return place->second->plan;
  }

  /// Unless what is chosen has changed since `version`.
  void keep(const tuning::ProblemKey& key, std::shared_ptr<const Plan<Arguments>> plan, std::uint64_t version) {
    const std::lock_guard lock(mutex_);
    drop_outdated();
    if (version != version_) return;
    if (const auto other = places_.find(key.hash()); other != places_.end()) {  // another thread's, or of the same hash
      plans_.erase(other->second);
      places_.erase(other);
    }
    plans_.push_front({key.hash(), key.words(), std::move(plan)});
    places_[key.hash()] = plans_.begin();
    if (plans_.size() <= kMostPlans) return;
    places_.erase(plans_.back().hash);
    plans_.pop_back();
  }

  mutable std::mutex mutex_;
  std::list<Kept> plans_;  ///< what was used last first
  std::unordered_map<std::uint64_t, typename std::list<Kept>::iterator> places_;
  std::uint64_t version_ = 0;
};

/// The process's.
template <class Arguments>
PlanCache<Arguments>& plan_cache() {
  static auto* const cache = new PlanCache<Arguments>;  // never destroyed: threads may still run when the program ends
  return *cache;
}

}  // namespace fusedsc::aten
