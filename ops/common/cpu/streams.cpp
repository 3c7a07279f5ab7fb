#include "fusedsc/common/cpu/streams.h"

#include <atomic>

namespace fusedsc {
namespace {

std::atomic<StreamUse> stream_use = StreamUse::where_it_pays;

/// Measured (docs/log/performance.md): on AMD's, copies are twice as fast so. Intel's see that a whole line is
/// overwritten.
bool reads_lines_to_overwrite_them() {
#if defined(__x86_64__) || defined(__i386__)
  static const bool result = __builtin_cpu_is("amd") != 0;
  return result;
#else
  return false;
#endif
}

}  // namespace

void use_streams(StreamUse use) { stream_use = use; }

bool streams_pay(std::int64_t bytes) {
  constexpr std::int64_t kLeast = 8 << 20;  // of less, a part is in the last-level cache when it is read
  const StreamUse use = stream_use;
  if (use != StreamUse::where_it_pays) return use == StreamUse::always;
  return bytes >= kLeast && reads_lines_to_overwrite_them();
}

bool has_whole_lines(const TensorView& tensor, std::int64_t vector_bytes) {
  const auto element_bytes = static_cast<std::int64_t>(size_of(tensor.dtype));
  if (vector_bytes != kCacheLine || reinterpret_cast<std::uintptr_t>(tensor.data) % kCacheLine != 0) return false;
  for (const int axis : {0, 2, 3}) {
    if (tensor.sizes[axis] > 1 && tensor.strides[axis] * element_bytes % kCacheLine != 0) return false;
  }
  return tensor.sizes[1] * element_bytes % kCacheLine == 0;
}

}  // namespace fusedsc
