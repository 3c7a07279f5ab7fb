#include "fusedsc/tuning/recorder.h"

#include <algorithm>
#include <mutex>

#include "fusedsc/tuning/store/environment.h"
#include "fusedsc/tuning/version.h"

namespace fusedsc::tuning {
namespace {

std::atomic<bool> recording = false;

struct Recorded {
  std::mutex mutex;
  Problems problems;  ///< as they were met
  std::map<std::string, std::shared_ptr<Problem>> places;
};

Recorded& all_recorded() {
  static auto* const recorded = new Recorded;  // never destroyed: threads may still run when the program ends
  return *recorded;
}

}  // namespace

void start_recording() {
  {
    Recorded& recorded = all_recorded();
    const std::lock_guard lock(recorded.mutex);
    recorded.problems.clear();
    recorded.places.clear();
    recording = true;
  }
  choices_changed();
}

void stop_recording() {
  if (recording.exchange(false)) choices_changed();
}

bool is_recording() { return recording; }

Problems recorded_problems() {
  Recorded& recorded = all_recorded();
  const std::lock_guard lock(recorded.mutex);
  return recorded.problems;
}

std::shared_ptr<Problem> record(const char* role, const std::string& text, Device device,
                                const std::function<std::shared_ptr<Problem>()>& make) {
  const std::string key = environment(device) + '\n' + role + '\n' + text;
  Recorded& recorded = all_recorded();
  const std::lock_guard lock(recorded.mutex);
  std::shared_ptr<Problem>& problem = recorded.places[key];
  if (!problem) recorded.problems.push_back(problem = make());
  problem->depth = std::max(problem->depth.load(), PlanningWithin::depth());
  return problem;
}

int& PlanningWithin::depth() {
  thread_local int depth = 0;
  return depth;
}

std::vector<std::size_t> spread_places(std::size_t n) {
  std::size_t bits = 0;
  while ((std::size_t{1} << bits) < n) ++bits;
  std::vector<std::size_t> places;
  // Numbers with their bits reversed: 0, 1/2, 1/4, 3/4, ... of a power of two.
  for (std::size_t i = 0; i < (std::size_t{1} << bits); ++i) {
    std::size_t place = 0;
    for (std::size_t bit = 0; bit < bits; ++bit) place |= (i >> bit & 1) << (bits - 1 - bit);
    if (place < n) places.push_back(place);
  }
  return places;
}

}  // namespace fusedsc::tuning
