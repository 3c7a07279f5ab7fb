#include "kept_statistics.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

#include "new_tensor.h"
#include "translated.h"

namespace fusedsc::aten {
namespace {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

/// A tensor, and what it held as far as PyTorch counts that. A weak pointer keeps the address from being another's.
struct Seen {
  std::optional<WeakTensor> tensor;
  const void* data = nullptr;
  std::uint32_t version = 0;

  explicit Seen(const std::optional<at::Tensor>& of) {
    if (!of) return;
    tensor.emplace(of->getIntrusivePtr());
    data = of->const_data_ptr();
    version = of->_version();
  }
  bool is(const std::optional<at::Tensor>& other) const {
    return other.has_value() == tensor.has_value() &&
           (!other || tensor->_unsafe_get_target() == other->unsafeGetTensorImpl());
  }
  bool is_among(const std::unordered_set<const c10::TensorImpl*>& tensors) const {
    return tensor && tensors.contains(tensor->_unsafe_get_target());
  }
  bool is_unchanged(const Seen& now) const { return data == now.data && version == now.version; }
};

/// The BatchNorms of one block.
struct Kept {
  std::vector<Seen> vectors, counters;
  std::vector<double> eps;
  at::Tensor statistics;
  bool is_valid = false;
};

/// All blocks whose first BatchNorm has one running variance: a block, as a rule, in one type.
struct Blocks {
  WeakTensor running_var;
  std::vector<Kept> kept;
};

std::mutex mutex;
std::map<const c10::TensorImpl*, Blocks> all;
/// Most processes keep nothing, and ask for no lock.
std::atomic<bool> is_any_kept = false;
/// Whether this thread is in fusedsc.fold_batch_norms, and how many blocks it has met there.
thread_local bool is_keeping = false;
thread_local std::int64_t met = 0;
/// Running variances of BatchNorms that trained or ran with gradients, while this thread records them: for a graph,
/// whose replays nobody else notices.
thread_local std::optional<std::vector<at::Tensor>> trained;

std::vector<Seen> seen(const BatchNormVectors& batch_norms) {
  std::vector<Seen> result;
  result.reserve(batch_norms.size());
  for (std::size_t i = 0; i < batch_norms.size(); ++i) result.emplace_back(batch_norms.get(i));
  return result;
}

bool are_unchanged(const std::vector<Seen>& kept, const BatchNormVectors& now) {
  for (std::size_t i = 0; i < now.size(); ++i) {
    if (!kept[i].is(now.get(i)) || !kept[i].is_unchanged(Seen(now.get(i)))) return false;
  }
  return true;
}

Kept* find(Blocks& blocks, const BatchNormVectors& batch_norms, at::ArrayRef<double> eps, at::ScalarType type) {
  const auto found = std::ranges::find_if(blocks.kept, [&](const Kept& kept) {
    if (kept.vectors.size() != batch_norms.size() || kept.statistics.scalar_type() != type || eps != kept.eps)
      return false;
    for (std::size_t i = 0; i < batch_norms.size(); ++i) {
      if (!kept.vectors[i].is(batch_norms.get(i))) return false;
    }
    return true;
  });
  return found == blocks.kept.end() ? nullptr : &*found;
}

/// Whether PyTorch counts what is written into them, too: it does not for tensors that inference_mode made.
bool are_plain(const BatchNormVectors& batch_norms) {
  for (std::size_t i = 0; i < batch_norms.size(); ++i) {
    if (const auto vector = batch_norms.get(i); vector && (!is_plain(*vector) || vector->is_inference())) return false;
  }
  return true;
}

void drop_what_is_gone() {
  std::erase_if(all, [](const auto& one) { return one.second.running_var.expired(); });
}

/// Memory that was kept stays where it is, as a graph may read it.
at::Tensor keep(const at::Tensor& variance, const BatchNormVectors& batch_norms, const BatchNormVectors& counters,
                at::ArrayRef<double> eps, const at::Tensor& statistics) {
  drop_what_is_gone();
  Blocks& blocks =
      all.try_emplace(variance.unsafeGetTensorImpl(), Blocks{WeakTensor(variance.getIntrusivePtr()), {}}).first->second;
  Kept* kept = find(blocks, batch_norms, eps, statistics.scalar_type());
  if (kept && kept->statistics.device() == statistics.device()) {
    kept->statistics.copy_(statistics);
    kept->vectors = seen(batch_norms);
    kept->counters = seen(counters);
  } else {
    kept = &blocks.kept.emplace_back(Kept{seen(batch_norms), seen(counters), eps.vec(), statistics});
  }
  kept->is_valid = true;
  is_any_kept = true;
  ++met;
  return kept->statistics;
}

/// All that is kept of BatchNorms that have one of these is read no more.
void forget_folded(at::TensorList tensors) {
  if (!is_any_kept) return;
  std::unordered_set<const c10::TensorImpl*> changed;
  for (const at::Tensor& tensor : tensors) changed.insert(tensor.unsafeGetTensorImpl());
  const std::lock_guard lock(mutex);
  for (auto& [key, blocks] : all) {
    for (Kept& kept : blocks.kept) {
      if (std::ranges::any_of(kept.vectors, [&](const Seen& one) { return one.is_among(changed); }))
        kept.is_valid = false;
    }
  }
}

std::int64_t set_keeping(bool on) {
  is_keeping = on;
  return std::exchange(met, 0);
}

std::vector<at::Tensor> record_trained(bool on) {
  std::vector<at::Tensor> found;
  if (trained) found = *std::move(trained);
  trained.reset();
  if (on) trained.emplace();
  return found;
}

}  // namespace

at::Tensor kept_or_folded(const BatchNormVectors& batch_norms, const BatchNormVectors& counters,
                          at::ArrayRef<double> eps, at::ScalarType accumulation,
                          const std::function<at::Tensor()>& fold) {
  if (!is_any_kept && !is_keeping && !trained) return fold();
  const std::optional<at::Tensor> variance = batch_norms.get(3);
  if (trained && variance && at::GradMode::is_enabled()) trained->push_back(*variance);
  if (!variance || !are_plain(batch_norms) || !are_plain(counters)) return fold();
  const std::lock_guard lock(mutex);
  if (is_keeping) {
    // What is kept is written again when it is folded again, which is not allowed of a tensor that inference_mode made.
    const c10::InferenceMode normal(false);
    const at::NoGradGuard no_grad;
    return keep(*variance, batch_norms, counters, eps, fold());
  }
  const auto blocks = all.find(variance->unsafeGetTensorImpl());
  if (blocks == all.end()) return fold();
  Kept* kept = find(blocks->second, batch_norms, eps, accumulation);
  if (!kept || !kept->is_valid) return fold();
  if (at::GradMode::is_enabled() || !are_unchanged(kept->vectors, batch_norms) ||
      !are_unchanged(kept->counters, counters))
    kept->is_valid = false;
  return kept->is_valid ? kept->statistics : fold();
}

void forget_kept(const std::optional<at::Tensor>& running_var) {
  if (!running_var) return;
  if (trained) trained->push_back(*running_var);
  forget_folded(*running_var);
}

TORCH_LIBRARY_FRAGMENT(fusedsc, m) {
  m.def("_keep_folded(bool on) -> int", translated<set_keeping>);
  m.def("_forget_folded(Tensor[] tensors) -> ()", translated<forget_folded>);
  m.def("_record_trained(bool on) -> Tensor[]", translated<record_trained>);
}

}  // namespace fusedsc::aten
