/// Tensors side by side in one allocation. A block has a dozen small ones in a training step: allocated and cast by
/// themselves, they take the host longer than the block's kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "fusedsc/common/tensor_view.h"

namespace fusedsc::aten {

/// Where each begins, in elements: at a multiple of 64 bytes, which is the most that a kernel asks for.
class JoinedPlaces {
 public:
  explicit JoinedPlaces(at::ScalarType dtype) : unit_(64 / static_cast<std::int64_t>(c10::elementSize(dtype))) {}

  std::int64_t add(std::int64_t elements) {
    const std::int64_t first = (end_ + unit_ - 1) / unit_ * unit_;
    end_ = first + elements;
    used_ += elements;
    return first;
  }
  /// Whether one of so many elements leaves no gap in front of the next.
  bool is_even(std::int64_t elements) const { return elements % unit_ == 0; }
  std::int64_t elements() const { return end_; }
  bool has_gaps() const { return used_ != end_; }

 private:
  std::int64_t unit_, end_ = 0, used_ = 0;
};

/// Of a tensor without gaps, its elements in the order in which they lie, and where they are in a joined one.
struct JoinedPiece {
  at::Tensor tensor;
  std::int64_t first;
};

/// While one lives, what joined_like() makes in this thread shares allocations. Else nothing does: results of an
/// operator must share no memory with each other where a compiler plans it, and only a node of autograd knows that none
/// does.
class SharedAllocations {
 public:
  SharedAllocations();
  ~SharedAllocations();
  SharedAllocations(const SharedAllocations&) = delete;
  SharedAllocations& operator=(const SharedAllocations&) = delete;

 private:
  bool before_;
};

/// Uninitialised tensors with the dtypes and strides of others, on one device; dense, where those are not. With
/// SharedAllocations there is one allocation for each dtype.
std::vector<at::Tensor> joined_like(at::TensorList tensors);

/// The piece as a tensor of its own, sharing the joined one's memory: autograd knows nothing of that.
at::Tensor joined_tensor(const at::Tensor& joined, std::int64_t first, const at::Tensor& like);
/// The piece's memory, of something that lies in it as `like` lies where that is.
TensorView joined_view(const at::Tensor& joined, std::int64_t first, const ConstTensorView& like);

/// Copies between joined tensor and tensors of another dtype, all in one launch on a GPU.
void cast_into(const at::Tensor& joined, const std::vector<JoinedPiece>& pieces);
void cast_out_of(const at::Tensor& joined, const std::vector<JoinedPiece>& pieces);

}  // namespace fusedsc::aten
