/// What a model of speed wants to know of a problem, read from its text (problem_text.h): one reading for problems that
/// are met and for rows that were measured long ago.
#pragma once

#include <cstdint>
#include <string_view>

namespace fusedsc::tuning {

struct ProblemFacts {
  double images = 1, channels = 1, height = 1, width = 1;  ///< of x
  double outputs = 1, out_height = 1, out_width = 1;       ///< of y, or its gradient
  double kernel_height = 1, kernel_width = 1, stride = 1, dilation = 1, groups = 1;
  double window_channels = 0;  ///< of a sliding-channel convolution's filter
  double element_bytes = 4;
  double weight_elements = 0;
  double bytes = 0;  ///< of all tensors, each once
  double threads = 0;
  bool channels_last = false, is_tf32 = false;
  bool prologue = false, gradient_prologue = false, epilogue = false, residual = false, statistics = false,
       sums = false, bias = false, added = false;
  bool grad_x = false, grad_weight = false;  ///< that are wanted

  double positions() const { return images * out_height * out_width; }
  /// Multiplications, of all that is wanted.
  double products() const;
};

/// What it does not know it leaves as it is. Throws nothing.
ProblemFacts facts_of(std::string_view problem);

}  // namespace fusedsc::tuning
