/// What the operators' tests vary: types, layouts, fusion, and geometries at the edges of the kernels' blocks.
#pragma once

#include <ostream>
#include <span>
#include <vector>

#include "fusedsc/common/problem.h"
#include "reference/tensor.h"

namespace fusedsc {

/// Names test parameters in GoogleTest's messages.
inline void PrintTo(DataType dtype, std::ostream* out) { *out << name_of(dtype); }

}  // namespace fusedsc

namespace fusedsc::reference {

inline constexpr DataType kDataTypes[] = {DataType::float32, DataType::float64, DataType::float16, DataType::bfloat16};
inline constexpr Activation kActivations[] = {Activation::identity, Activation::relu,      Activation::relu6,
                                              Activation::silu,     Activation::hardswish, Activation::gelu};
inline constexpr Memory kOutputMemories[] = {Memory::contiguous,           Memory::channels_last, Memory::sliced,
                                             Memory::sliced_channels_last, Memory::transposed,    Memory::spread};
inline constexpr Memory kInputMemories[] = {
    Memory::contiguous, Memory::channels_last, Memory::sliced,   Memory::sliced_channels_last,
    Memory::transposed, Memory::spread,        Memory::expanded, Memory::expanded_positions};

inline bool coin(Random& random) { return random() % 2 == 0; }

inline std::int64_t between(Random& random, std::int64_t low, std::int64_t high) {
  return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
}

template <class Range>
auto one_of(Random& random, const Range& range) {
  return std::begin(range)[random() % std::size(range)];
}

/// How the tensors of a problem lie in memory.
struct Memories {
  Memory x = Memory::contiguous, weight = Memory::contiguous, y = Memory::contiguous, other = Memory::contiguous;

  static Memories all(Memory memory) { return {memory, Memory::contiguous, memory, memory}; }
  static Memories random(Random& random) {
    return {one_of(random, kInputMemories), one_of(random, kOutputMemories), one_of(random, kOutputMemories),
            one_of(random, kInputMemories)};
  }
};

inline std::ostream& operator<<(std::ostream& out, const Memories& memories) {
  return out << "x " << name_of(memories.x) << ", weight " << name_of(memories.weight) << ", y " << name_of(memories.y)
             << ", other " << name_of(memories.other);
}

/// What is fused into a convolution's forward pass.
struct ForwardFusion {
  bool bias = false;
  bool prologue = false;
  Activation activation = Activation::identity;  ///< the prologue's
  enum class Output { plain, epilogue, statistics } output = Output::plain;
  Activation epilogue_activation = Activation::identity;
  bool residual = false;     ///< in the epilogue
  bool cancels = false;      ///< x is far from 0, and the prologue, which there is, takes most of it away
  bool nearly_tf32 = false;  ///< factors are as nearly_tf32() has them (tf32_factors.h); a prologue changes nothing

  static ForwardFusion random(Random& random) {
    constexpr Output kOutputs[] = {Output::plain, Output::epilogue, Output::statistics};
    return {coin(random),
            coin(random),
            one_of(random, kActivations),
            one_of(random, kOutputs),
            one_of(random, kActivations),
            coin(random)};
  }
};

inline std::ostream& operator<<(std::ostream& out, const ForwardFusion& fusion) {
  constexpr const char* kOutputs[] = {"plain", "epilogue", "statistics"};
  out << (fusion.bias ? "bias, " : "");
  out << (fusion.prologue ? "affine " : "") << name_of(fusion.activation) << " prologue, ";
  out << (fusion.cancels ? "x far from 0, " : "") << (fusion.nearly_tf32 ? "nearly TF32, " : "");
  out << kOutputs[static_cast<int>(fusion.output)];
  if (fusion.output != ForwardFusion::Output::epilogue) return out;
  return out << ' ' << name_of(fusion.epilogue_activation) << (fusion.residual ? " + residual" : "");
}

/// What is fused into a convolution's backward pass, and what it is asked for.
struct BackwardFusion {
  bool prologue = false;
  Activation activation = Activation::identity;
  bool gradient_prologue = false;
  bool sums = false;      ///< needs the prologue
  bool grad_add = false;  ///< not with sums
  bool grad_x = true, grad_weight = true, grad_bias = true;
  bool output_is_of_x = false;  ///< the gradient prologue's
  bool cancels = false;         ///< x and the output are far from 0, and the prologues take most of them away
  bool nearly_tf32 = false;     ///< as ForwardFusion's

  static BackwardFusion random(Random& random) {
    BackwardFusion fusion{coin(random), one_of(random, kActivations), coin(random)};
    fusion.grad_x = random() % 4 != 0;
    fusion.grad_weight = random() % 4 != 0;
    fusion.grad_bias = coin(random);
    const bool has_prologue = fusion.prologue || fusion.activation != Activation::identity;
    fusion.sums = fusion.grad_x && has_prologue && coin(random);
    fusion.grad_add = fusion.grad_x && !fusion.sums && coin(random);
    return fusion;
  }
};

inline std::ostream& operator<<(std::ostream& out, const BackwardFusion& fusion) {
  out << (fusion.prologue ? "affine " : "") << name_of(fusion.activation) << " prologue, ";
  return out << (fusion.gradient_prologue ? "gradient prologue, " : "")
             << (fusion.output_is_of_x ? "its output is of x, " : "") << (fusion.cancels ? "x far from 0, " : "")
             << (fusion.nearly_tf32 ? "nearly TF32, " : "") << (fusion.sums ? "sums, " : "")
             << (fusion.grad_add ? "grad_add, " : "") << "wanted:" << (fusion.grad_x ? " grad_x" : "")
             << (fusion.grad_weight ? " grad_weight" : "") << (fusion.grad_bias ? " grad_bias" : "");
}

}  // namespace fusedsc::reference
