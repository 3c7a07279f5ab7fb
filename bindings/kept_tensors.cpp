#include "kept_tensors.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StorageImpl.h>
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
#include "transforms.h"
#include "translated.h"

namespace fusedsc::aten {
namespace {

using OptionalTensor = std::optional<at::Tensor>;
using Optionals = std::vector<OptionalTensor>;
using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

/// A tensor, and what it held as far as PyTorch counts that. Weak pointers keep an address from being another's: memory
/// that is freed and given out again has another storage. Sizes and strides: `parameter.data = parameter.data[:8]`, or
/// transposed, begins where it began.
struct Seen {
  std::optional<WeakTensor> tensor;
  std::optional<WeakStorage> storage;
  const void* data = nullptr;
  std::vector<std::int64_t> sizes, strides;
  std::uint32_t version = 0;

  explicit Seen(const OptionalTensor& of) {
    if (!of) return;
    tensor.emplace(of->getIntrusivePtr());
    storage.emplace(of->storage().getWeakStorageImpl());
    data = of->const_data_ptr();
    sizes = of->sizes().vec();
    strides = of->strides().vec();
    version = of->_version();
  }
  bool is(const OptionalTensor& other) const {
    return other.has_value() == tensor.has_value() &&
           (!other || tensor->_unsafe_get_target() == other->unsafeGetTensorImpl());
  }
  bool is_among(const std::unordered_set<const c10::TensorImpl*>& tensors) const {
    return tensor && tensors.contains(tensor->_unsafe_get_target());
  }
  bool is_unchanged(const OptionalTensor& now) const {
    return is(now) && (!now || (storage->_unsafe_get_target() == now->storage().unsafeGetStorageImpl() &&
                                data == now->const_data_ptr() && now->sizes().equals(sizes) &&
                                now->strides().equals(strides) && version == now->_version()));
  }
  bool is_gone() const { return tensor && tensor->expired(); }
};

/// What something is made of, and how. It is found by one of the tensors.
struct Origin {
  Optionals tensors, counters;
  std::size_t found_by;
  std::vector<double> numbers;
  at::ScalarType dtype;  ///< of what is made

  const at::Tensor& key() const { return *tensors[found_by]; }
};

/// Of one block.
struct Kept {
  std::vector<Seen> tensors, counters;
  std::vector<double> numbers;
  std::vector<at::Tensor> made;
  bool is_valid = false;
  /// While the thread that makes it is in fold_batch_norms: its `is_keeping`. Others' streams would not wait for it.
  const void* made_by = nullptr;

  void forget() {
    is_valid = false;
    made_by = nullptr;
  }
};

/// All that is found by one tensor: a block's, as a rule, in one type. What was made last is first.
struct Blocks {
  WeakTensor key;
  std::vector<Kept> kept;
};

std::mutex mutex;
std::map<const c10::TensorImpl*, Blocks> all;
/// Most processes keep nothing, or nothing any more, and ask for no lock.
std::atomic<bool> is_any_valid = false;
/// Whether this thread is in fusedsc.fold_batch_norms, and how many blocks it has met there.
thread_local bool is_keeping = false;
thread_local std::int64_t met = 0;
/// Running variances of BatchNorms that trained or ran with gradients, and parameters that did, while this thread
/// records them: for a graph, whose replays nobody else notices.
thread_local std::optional<std::vector<at::Tensor>> trained;

std::vector<Seen> seen(const Optionals& tensors) { return {tensors.begin(), tensors.end()}; }

bool are_unchanged(const std::vector<Seen>& kept, const Optionals& now) {
  return std::ranges::equal(kept, now,
                            [](const Seen& one, const OptionalTensor& other) { return one.is_unchanged(other); });
}

Kept* find(Blocks& blocks, const Origin& origin) {
  const auto found = std::ranges::find_if(blocks.kept, [&](const Kept& kept) {
    return kept.made[0].scalar_type() == origin.dtype && kept.numbers == origin.numbers &&
           std::ranges::equal(kept.tensors, origin.tensors,
                              [](const Seen& one, const OptionalTensor& other) { return one.is(other); });
  });
  return found == blocks.kept.end() ? nullptr : &*found;
}

/// Whether PyTorch counts what is written into them, too: it does not for tensors that inference_mode made.
bool are_plain(const Optionals& tensors) {
  return std::ranges::all_of(
      tensors, [](const OptionalTensor& one) { return !one || (is_plain(*one) && !one->is_inference()); });
}

bool are_alike(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::ranges::equal(a, b, [](const at::Tensor& one, const at::Tensor& other) {
    return one.device() == other.device() && one.sizes() == other.sizes() && one.strides() == other.strides();
  });
}

/// What is made of a tensor that there is no more: of a model that is gone, or of weights that were computed for one
/// call, as parametrizations do, beside parameters that stay.
void drop_what_is_gone() {
  for (auto& [key, blocks] : all) {
    std::erase_if(blocks.kept, [](const Kept& kept) { return std::ranges::any_of(kept.tensors, &Seen::is_gone); });
  }
  std::erase_if(all, [](const auto& one) { return one.second.kept.empty(); });
}

/// Memory that was kept stays where it is, as a graph may read it. It counts once set_keeping(false) says so.
std::vector<at::Tensor> keep(const Origin& origin, std::vector<at::Tensor> made) {
  drop_what_is_gone();
  Blocks& blocks =
      all.try_emplace(origin.key().unsafeGetTensorImpl(), Blocks{WeakTensor(origin.key().getIntrusivePtr()), {}})
          .first->second;
  Kept* kept = find(blocks, origin);
  if (kept && are_alike(kept->made, made)) {
    for (std::size_t i = 0; i < made.size(); ++i) kept->made[i].copy_(made[i]);
    kept->tensors = seen(origin.tensors);
    kept->counters = seen(origin.counters);
  } else {
    Kept another{seen(origin.tensors), seen(origin.counters), origin.numbers, std::move(made), false, nullptr};
    kept = &*blocks.kept.insert(blocks.kept.begin(), std::move(another));
  }
  kept->is_valid = false;
  kept->made_by = &is_keeping;
  is_any_valid = true;
  ++met;
  return kept->made;
}

/// What is kept of it; within fold_batch_norms what is made, which is kept then.
std::optional<std::vector<at::Tensor>> kept_or_none(const Origin& origin,
                                                    const std::function<std::vector<at::Tensor>()>& make) {
  if (!are_plain(origin.tensors) || !are_plain(origin.counters)) return std::nullopt;
  if (is_keeping && is_transformed()) return std::nullopt;  // what is made there may be of the transform
  const std::lock_guard lock(mutex);
  if (is_keeping) {
    // What is kept is written again when it is folded again, which is not allowed of a tensor that inference_mode made.
    const c10::InferenceMode normal(false);
    const at::NoGradGuard no_grad;
    return keep(origin, make());
  }
  const auto blocks = all.find(origin.key().unsafeGetTensorImpl());
  if (blocks == all.end()) return std::nullopt;
  Kept* kept = find(blocks->second, origin);
  if (!kept || !kept->is_valid) return std::nullopt;
  kept->is_valid = !at::GradMode::is_enabled() && are_unchanged(kept->tensors, origin.tensors) &&
                   are_unchanged(kept->counters, origin.counters);
  return kept->is_valid ? std::optional(kept->made) : std::nullopt;
}

/// All that is kept of one of these is read no more.
void forget_folded(at::TensorList tensors) {
  if (!is_any_valid) return;
  std::unordered_set<const c10::TensorImpl*> changed;
  for (const at::Tensor& tensor : tensors) changed.insert(tensor.unsafeGetTensorImpl());
  const std::lock_guard lock(mutex);
  drop_what_is_gone();
  bool is_left = false;
  for (auto& [key, blocks] : all) {
    for (Kept& kept : blocks.kept) {
      if (!kept.is_valid && !kept.made_by) continue;
      if (std::ranges::any_of(kept.tensors, [&](const Seen& one) { return one.is_among(changed); })) kept.forget();
      else is_left = true;
    }
  }
  is_any_valid = is_left;
}

std::int64_t set_keeping(bool on) {
  is_keeping = on;
  const std::lock_guard lock(mutex);
  drop_what_is_gone();
  for (auto& [key, blocks] : all) {
    for (Kept& kept : blocks.kept) {
      if (on || kept.made_by != &is_keeping) continue;
      kept.made_by = nullptr;
      kept.is_valid = true;
    }
  }
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
  if (!is_any_valid && !is_keeping && !trained) return fold();
  constexpr std::size_t kVariance = 3;
  Origin origin{batch_norms.vec(), counters.vec(), kVariance, eps.vec(), accumulation};
  if (!origin.tensors[kVariance]) return fold();
  if (trained && at::GradMode::is_enabled()) trained->push_back(origin.key());
  const auto kept = kept_or_none(origin, [&] { return std::vector<at::Tensor>{fold()}; });
  return kept ? kept->front() : fold();
}

std::optional<std::vector<at::Tensor>> kept_casts(at::TensorList parameters, at::ArrayRef<double> numbers,
                                                  at::ScalarType dtype,
                                                  const std::function<std::vector<at::Tensor>()>& cast) {
  if (parameters.empty() || (!is_any_valid && !is_keeping && !trained)) return std::nullopt;
  if (at::GradMode::is_enabled()) {
    note_gradients(parameters.vec());
    return std::nullopt;
  }
  return kept_or_none({{parameters.begin(), parameters.end()}, {}, 0, numbers.vec(), dtype}, cast);
}

bool notes_gradients() { return is_any_valid || trained; }

void note_gradients(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters) {
    // Not what was computed of them, whose memory it would hold.
    if (trained && parameter.is_leaf() && parameter.requires_grad()) trained->push_back(parameter);
  }
  forget_folded(parameters);
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
