/// What runs, as it runs: FUSEDSC_VERBOSE=1 in the environment prints it, and a Trace notes it down for tests.
#pragma once

#include <string>
#include <vector>

#include "fusedsc/common/tensor_view.h"
#include "fusedsc/tuning/config.h"

namespace fusedsc::tuning {

/// A kernel of the registry that was chosen. The names live as long as the program.
struct Chosen {
  const char* role = "";
  const char* kernel = "";
  Config config;
  /// "forced"; "given", with the call; "pinned", by a file of choices; "tuned", measured here; "table", measured
  /// elsewhere; "nearest", measured with another number of images; "predicted"; or "prior": by the rules that were
  /// fitted to measurements before any of these were kept.
  const char* why = "";
  double microseconds = 0;  ///< that it took when it was measured; 0: it was not

  /// "kernel" or "kernel/config", as force() takes it.
  std::string choice() const;
  /// "prior"; "tuned, 12.3 us".
  std::string reason() const;
};

/// The kernels that the process runs while this exists, one after the other. There may be one at a time.
class Trace {
 public:
  Trace();
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  std::vector<Chosen> chosen() const;
};

/// By each plan of a chosen kernel, before it runs; x: for a person who reads along.
void note(const Chosen& chosen, const ConstTensorView& x);

}  // namespace fusedsc::tuning
