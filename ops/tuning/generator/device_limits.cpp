#include "fusedsc/tuning/generator/device_limits.h"

#include "fusedsc/common/status.h"

namespace fusedsc::tuning {
namespace {

constexpr int kKiB = 1024;

// gfx906: Liu et al., "Optimizing depthwise separable convolution on DCU", section 5.1. Others: AMD's ISA documents and
// the CDNA and RDNA white papers; NVIDIA's CUDA C++ Programming Guide, "Technical Specifications per Compute
// Capability".
constexpr DeviceLimits kLimits[] = {
    // architecture, wave; shared bytes of a unit, of a block, reserved; registers of a unit, of a thread; waves,
    // blocks;
    // threads of a block; AGPRs
    {"gfx906", 64, 64 * kKiB, 64 * kKiB, 0, 65536, 256, 40, 40, 1024, 0},
    {"gfx908", 64, 64 * kKiB, 64 * kKiB, 0, 131072, 512, 40, 40, 1024, 256},
    {"gfx90a", 64, 64 * kKiB, 64 * kKiB, 0, 131072, 512, 32, 32, 1024, 256},
    {"gfx942", 64, 64 * kKiB, 64 * kKiB, 0, 131072, 512, 32, 32, 1024, 256},
    {"gfx950", 64, 160 * kKiB, 160 * kKiB, 0, 131072, 512, 32, 32, 1024, 256},
    {"gfx1030", 32, 64 * kKiB, 64 * kKiB, 0, 65536, 256, 32, 16, 1024, 0},
    {"gfx1100", 32, 64 * kKiB, 64 * kKiB, 0, 98304, 256, 32, 16, 1024, 0},
    {"gfx1201", 32, 64 * kKiB, 64 * kKiB, 0, 98304, 256, 32, 16, 1024, 0},
    {"sm_80", 32, 164 * kKiB, 163 * kKiB, kKiB, 65536, 255, 64, 32, 1024, 0},
    {"sm_86", 32, 100 * kKiB, 99 * kKiB, kKiB, 65536, 255, 48, 16, 1024, 0},
    {"sm_87", 32, 164 * kKiB, 163 * kKiB, kKiB, 65536, 255, 48, 16, 1024, 0},
    {"sm_89", 32, 100 * kKiB, 99 * kKiB, kKiB, 65536, 255, 48, 24, 1024, 0},
    {"sm_90", 32, 228 * kKiB, 227 * kKiB, kKiB, 65536, 255, 64, 32, 1024, 0},
    {"sm_100", 32, 228 * kKiB, 227 * kKiB, kKiB, 65536, 255, 64, 32, 1024, 0},
    {"sm_120", 32, 100 * kKiB, 99 * kKiB, kKiB, 65536, 255, 48, 24, 1024, 0},
};

/// Without what says how it is used, not which it is.
std::string_view bare(std::string_view architecture) {
  architecture = architecture.substr(0, architecture.find(':'));
  if (architecture.starts_with("sm_") && (architecture.ends_with('a') || architecture.ends_with('f'))) {
    architecture.remove_suffix(1);
  }
  return architecture;
}

}  // namespace

std::span<const DeviceLimits> known_limits() { return kLimits; }

const DeviceLimits& limits_of(std::string_view architecture) {
  std::string names;
  for (const DeviceLimits& limits : kLimits) {
    if (limits.architecture == bare(architecture)) return limits;
    names += names.empty() ? "" : ", ";
    names += limits.architecture;
  }
  throw InvalidArgument("architecture: the limits of \"" + std::string(architecture) +
                        "\" are not known; there are those of " + names +
                        ". Add a line to ops/tuning/generator/device_limits.cpp");
}

}  // namespace fusedsc::tuning
