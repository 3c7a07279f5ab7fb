/// Who may compile kernels at run time.
#pragma once

namespace fusedsc::tuning {

/// While one exists, this thread may: when it measures candidates, or was told which kernel to run. Elsewhere a first
/// call would wait for seconds.
class CompilingAllowed {
 public:
  explicit CompilingAllowed(bool is_allowed = true);
  ~CompilingAllowed();
  CompilingAllowed(const CompilingAllowed&) = delete;
  CompilingAllowed& operator=(const CompilingAllowed&) = delete;

 private:
  bool before_;
};
bool compiling_is_allowed();

/// Whether whoever lists candidates in this process compiles those that are not there yet:
/// `tune(compile_kernels=True)`.
void compile_candidates(bool on);
bool candidates_are_compiled();

}  // namespace fusedsc::tuning
