/// A block's shared memory for the host executor, with a margin on either side that nobody may touch.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace fusedsc::gpu::executor {

/// So many bytes, which start as NaN of every type. So do the margins, with another pattern: who reads there computes
/// NaN, and overrun() finds who has written there. AddressSanitizer, where it is, stops either at once.
class GuardedMemory {
 public:
  GuardedMemory() = default;
  explicit GuardedMemory(std::size_t bytes);
  GuardedMemory(GuardedMemory&& other) noexcept;
  GuardedMemory& operator=(GuardedMemory&& other) noexcept;
  ~GuardedMemory();

  unsigned char* data() const { return memory_.get() + kMargin; }

  /// Empty, or what was written outside: "wrote outside of its 64 bytes of shared memory, first at byte 64, ...".
  std::string overrun() const;

  /// An overrun mostly begins at the end; one further away than the margin is memory of nobody, or the heap's.
  static constexpr std::size_t kMargin = 32 * 1024;

 private:
  void close_margins() const;
  void open_margins() const;

  std::unique_ptr<unsigned char[]> memory_;  ///< [margin][bytes][margin]
  std::size_t bytes_ = 0;
};

}  // namespace fusedsc::gpu::executor
