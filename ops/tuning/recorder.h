/// Problems that operators meet, noted down with all that it takes to measure them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fusedsc/common/tensor_view.h"
#include "fusedsc/runtime/execution.h"
#include "fusedsc/tuning/views.h"

namespace fusedsc::tuning {

/// What is or was to be taken: "kernel" or "kernel/config", as force() has it; why; and the time that was measured, or
/// 0.
struct Taken {
  std::string choice;
  const char* why = "";
  double microseconds = 0;
};

/// One way to compute a problem, planned.
struct Trial {
  std::size_t workspace_bytes = 0;
  /// With memory of its own: what remains is to run it. `buffers`: as Problem::buffers() has them.
  std::function<std::function<void(const Execution&)>(std::span<void* const> buffers)> bind;
};

/// Without the type of its arguments. `role` and `text` are what its measured choice is stored under.
class Problem {
 public:
  Problem(const char* role, std::string text, std::string result, Device device, int threads)
      : role(role), text(std::move(text)), result(std::move(result)), device(device), threads(threads) {}
  virtual ~Problem() = default;
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  const char* const role;
  const std::string text;
  /// The same of all problems with the same result, whatever else they leave behind: a convolution with its statistics
  /// in a forward pass, and the same again, without them, in a backward pass that recomputes. They are to have the same
  /// kernel and config, so that their results have the same bits.
  const std::string result;
  const Device device;
  const int threads;
  std::atomic<std::int64_t> calls = 0;  ///< how often it ran since it is recorded
  /// Problems within a kernel's plan have a larger one than its own: they are to be measured before it.
  std::atomic<int> depth = 0;

  virtual Taken taken() const = 0;
  /// Choices that can run it, `most` of them: what is taken now, what the prior takes; where there is a ranker, those
  /// that it predicts to be the fastest, and in between the kernels that it does not know; then each kernel by what it
  /// would be taken with, then configs from all over their lists.
  virtual std::vector<std::string> candidates(std::size_t most) const = 0;
  /// Every choice whose kernel can run it, without a try whether its plan fits.
  virtual std::vector<std::string> choices() const = 0;
  /// The text of a generated kernel. Throws Unsupported where the kernel has none, or the config does not fit.
  virtual std::string source(const std::string& choice) const = 0;
  virtual std::vector<Buffer> buffers() const = 0;
  /// Of one of the candidates.
  virtual Trial plan(const std::string& choice) const = 0;
};

using Problems = std::vector<std::shared_ptr<Problem>>;

/// Notes down whatever is planned from now on, and forgets what was noted before. Plans are made anew.
void start_recording();
/// What is noted remains.
void stop_recording();
bool is_recording();
Problems recorded_problems();

/// The recorded problem of that role and text on the current device, which `make` makes the first time.
std::shared_ptr<Problem> record(const char* role, const std::string& text, Device device,
                                const std::function<std::shared_ptr<Problem>()>& make);

/// While a kernel makes its plan: what is planned in it lies so much deeper.
class PlanningWithin {
 public:
  explicit PlanningWithin(int levels = 1) : levels_(levels) { depth() += levels_; }
  ~PlanningWithin() { depth() -= levels_; }
  PlanningWithin(const PlanningWithin&) = delete;
  PlanningWithin& operator=(const PlanningWithin&) = delete;

  static int& depth();

 private:
  int levels_;
};

/// Of n things in a row all places, such that the first few of them are far apart, however many these are.
std::vector<std::size_t> spread_places(std::size_t n);

}  // namespace fusedsc::tuning
