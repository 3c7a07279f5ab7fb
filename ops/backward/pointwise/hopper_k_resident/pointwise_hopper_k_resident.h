/// Pointwise convolution on Hopper GPUs, the gradients of x and of the weight from one pass: from the arguments to
/// launches.
#pragma once

#include <string>

#include "fusedsc/backward/pointwise.h"
#include "fusedsc/backward/pointwise/hopper_k_resident/pointwise_hopper_k_resident_kernel.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc::gpu::hopper {

struct PointwiseGradientsInstance {
  using Kernel = void (*)(PointwiseGradientsParameters);
  using Memory = int (*)(int stages);

  DataType dtype;
  bool has_output;  ///< a gradient prologue
  bool plain;       ///< no prologue, either
  int windows;      ///< as PointwiseGradientsBlock has them
  int depth, sharing, slices, threads;
  int wide;  ///< columns of grad_y that are copied at once
  Kernel kernel;
  Memory memory;
};

class PointwiseGradientsPass {
 public:
  /// Why one pass cannot make all that is wanted; empty: it can.
  static std::string why_not(const PointwiseBackwardArguments& arguments);

  explicit PointwiseGradientsPass(const PointwiseBackwardArguments& arguments);
  PointwiseGradientsPass(const PointwiseBackwardArguments& arguments, const PointwiseGradientsInstance& instance);

  std::size_t workspace_bytes() const;
  void run(const PointwiseBackwardArguments& arguments, const Execution& execution) const;

 private:
  struct Memory {
    void* gradient;  ///< what the gradient prologue makes of grad_y, if the kernel does not
    float* partials;
  };
  Memory take_memory(Arena& arena) const;
  /// Of the partial results of a block where filters have windows: both halves of them, their filters; channels.
  int window_rows() const { return 2 * p_.outputs / instance_->windows; }
  int window_columns() const { return p_.fold == 1 ? 64 : p_.channels; }
  void sum(const PointwiseBackwardArguments& arguments, const float* partials, void* stream) const;
  void sum_windows(const PointwiseBackwardArguments& arguments, const float* partials, void* stream) const;

  const PointwiseGradientsInstance* instance_;
  bool forms_gradient_;             ///< by a kernel of its own
  PointwiseGradientsParameters p_;  ///< but for addresses
};

/// The same of float32, by TF32.
std::string why_not_tf32_k_resident(const PointwiseBackwardArguments& arguments);
Plan<PointwiseBackwardArguments> plan_tf32_k_resident(const PointwiseBackwardArguments& arguments);

}  // namespace fusedsc::gpu::hopper
