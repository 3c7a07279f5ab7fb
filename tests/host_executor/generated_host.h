/// Generated kernels on the host executor. Nothing is compiled at run time: tests are linked with the texts of some
/// (tests/generated/), compiled like any other source, which this finds by their text.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "host_executor/vendor_host.h"

namespace fusedsc::gpu {

/// A thread's part of a kernel.
using LinkedKernel = std::function<void(const void* parameters)>;

/// All that were linked, by their texts.
inline std::map<std::string, LinkedKernel>& linked_kernels() {
  static std::map<std::string, LinkedKernel> kernels;
  return kernels;
}

struct LinkKernel {
  template <class Parameters>
  LinkKernel(const char* text, void (*kernel)(Parameters)) {
    linked_kernels()[text] = [kernel](const void* parameters) { kernel(*static_cast<const Parameters*>(parameters)); };
  }
};

/// FUSEDSC_GENERATED_TEXT is defined by the file that includes a text: the text as a string.
#define FUSEDSC_GENERATED_KERNEL(specifiers, Parameters) FUSEDSC_LINK_KERNEL(Parameters, __LINE__)
#define FUSEDSC_LINK_KERNEL(Parameters, line) FUSEDSC_LINK_KERNEL_OF(Parameters, line)
#define FUSEDSC_LINK_KERNEL_OF(Parameters, line) \
  FUSEDSC_LINK_KERNEL_AS(Parameters, fusedsc_kernel_##line, fusedsc_link_##line)
#define FUSEDSC_LINK_KERNEL_AS(Parameters, kernel, link)                      \
  static void kernel(Parameters parameters);                                  \
  static const fusedsc::gpu::LinkKernel link(FUSEDSC_GENERATED_TEXT, kernel); \
  static void kernel([[maybe_unused]] Parameters parameters)

/// As limits are known by: the GPUs that are played, of either wave size.
inline std::string architecture() { return wave_size() == 32 ? "sm_90" : "gfx906"; }

inline std::optional<std::string> linked_kernel(const std::string& text) {
  return linked_kernels().contains(text) ? std::optional(text) : std::nullopt;
}

class Module {
 public:
  Module(const std::string& text, std::size_t shared_memory_bytes)
      : kernel_(&linked_kernels().at(text)), shared_memory_bytes_(shared_memory_bytes) {}
  int resident_blocks(int /*threads*/) const { return 2 * multiprocessors(); }
  template <class Parameters>
  void start(const char* /*name*/, unsigned blocks, unsigned threads, Stream, const Parameters& parameters) const {
    executor::run(blocks, threads, shared_memory_bytes_, [&] { (*kernel_)(&parameters); });
  }

 private:
  const LinkedKernel* kernel_;
  std::size_t shared_memory_bytes_;
};

}  // namespace fusedsc::gpu
