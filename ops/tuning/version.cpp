#include "fusedsc/tuning/version.h"

#include <atomic>

namespace fusedsc::tuning {
namespace {

std::atomic<std::uint64_t> version = 0;

}  // namespace

std::uint64_t choices_version() { return version; }

void choices_changed() { ++version; }

}  // namespace fusedsc::tuning
