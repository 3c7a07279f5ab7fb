/// Checks of arguments that operators share. Each failure is an InvalidArgument whose sentence begins with the
/// argument's name, says what it was and what is allowed.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "fusedsc/common/problem.h"
#include "fusedsc/common/status.h"

namespace fusedsc {

/// An argument as error messages call it.
struct NamedTensor {
  const char* name;
  ConstTensorView view;

  NamedTensor(const char* name_, const ConstTensorView& view_) : name(name_), view(view_) {}
  NamedTensor(const char* name_, const ConstChannelVector& vector);
};

// What can be judged without memory: shapes, strides, types. Null data passes.

/// Sizes and strides that make sense for something that is read.
void check_readable(const NamedTensor& tensor);

/// Sizes and strides that give each element its own place, so that it may be written.
void check_writable(const NamedTensor& tensor);

/// `why` completes "weight: its sizes are [..], but must be [..], <why>".
void check_sizes(const NamedTensor& tensor, const Sizes& expected, const char* why);

void check_dtype(const NamedTensor& tensor, DataType expected, const char* why);

/// If it is given, it must be where x is.
void check_device(const NamedTensor& tensor, Device expected);

/// A vector of `size` values of `dtype`, or none.
void check_channels(const char* name, const ConstChannelVector& vector, std::int64_t size, DataType dtype);

/// As check_channels, but it must be there.
void check_channels_given(const char* name, const ConstChannelVector& vector, std::int64_t size, DataType dtype);

void check_prologue(const Prologue& prologue, const ConstTensorView& x);
void check_epilogue(const Epilogue& epilogue, const ConstTensorView& y);
void check_statistics(const Statistics& statistics, const ConstTensorView& y);
void check_gradient_prologue(const GradientPrologue& prologue, const ConstTensorView& grad_y);
void check_gradient_sums(const GradientSums& sums, const ConstTensorView& x);

// What needs the memory itself.

/// A tensor with elements has memory.
void check_given(const NamedTensor& tensor);

/// No output shares memory with an input or with another output.
void check_no_overlap(std::initializer_list<NamedTensor> outputs, std::initializer_list<NamedTensor> inputs);

}  // namespace fusedsc
