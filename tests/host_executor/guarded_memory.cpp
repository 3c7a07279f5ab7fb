#include "host_executor/guarded_memory.h"

#include <array>
#include <cstring>
#include <utility>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace fusedsc::gpu::executor {
namespace {

constexpr unsigned char kPoison = 0xff;           // NaN in every type
constexpr unsigned char kGuard[] = {0xee, 0xff};  // likewise, in pairs of bytes

constexpr std::size_t kMargin = GuardedMemory::kMargin;

/// What an untouched margin holds. Copied and compared as a whole: every block of every launch has two.
const std::array<unsigned char, kMargin> kUntouched = [] {
  std::array<unsigned char, kMargin> margin;
  for (std::size_t i = 0; i < kMargin; ++i) margin[i] = kGuard[i % sizeof kGuard];
  return margin;
}();

}  // namespace

GuardedMemory::GuardedMemory(std::size_t bytes)
    : memory_(std::make_unique_for_overwrite<unsigned char[]>(bytes + 2 * kMargin)), bytes_(bytes) {
  std::memcpy(memory_.get(), kUntouched.data(), kMargin);
  std::memset(data(), kPoison, bytes);
  std::memcpy(data() + bytes, kUntouched.data(), kMargin);
  close_margins();
}

GuardedMemory::GuardedMemory(GuardedMemory&& other) noexcept
    : memory_(std::move(other.memory_)), bytes_(std::exchange(other.bytes_, 0)) {}

GuardedMemory& GuardedMemory::operator=(GuardedMemory&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

GuardedMemory::~GuardedMemory() { open_margins(); }

std::string GuardedMemory::overrun() const {
  open_margins();
  std::ptrdiff_t first = 0, last = 0;
  std::size_t written = 0;
  const auto look = [&](std::ptrdiff_t begin) {
    const unsigned char* const margin = data() + begin;
    if (std::memcmp(margin, kUntouched.data(), kMargin) == 0) return;
    for (std::size_t i = 0; i < kMargin; ++i) {
      if (margin[i] == kUntouched[i]) continue;
      last = begin + static_cast<std::ptrdiff_t>(i);
      if (written++ == 0) first = last;
    }
  };
  look(-static_cast<std::ptrdiff_t>(kMargin));
  look(static_cast<std::ptrdiff_t>(bytes_));
  close_margins();
  if (written == 0) return {};
  return "wrote outside of its " + std::to_string(bytes_) + " bytes of shared memory: " + std::to_string(written) +
         " bytes, the first at " + std::to_string(first) + ", the last at " + std::to_string(last);
}

void GuardedMemory::close_margins() const {
#ifdef __SANITIZE_ADDRESS__
  ASAN_POISON_MEMORY_REGION(memory_.get(), kMargin);
  ASAN_POISON_MEMORY_REGION(data() + bytes_, kMargin);
#endif
}

void GuardedMemory::open_margins() const {
#ifdef __SANITIZE_ADDRESS__
  if (memory_) ASAN_UNPOISON_MEMORY_REGION(memory_.get(), bytes_ + 2 * kMargin);
#endif
}

}  // namespace fusedsc::gpu::executor
