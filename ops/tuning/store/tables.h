/// Tables of choices as files: those of measurements, which a sweep or the fit to rows writes, and those of frozen
/// choices, which have what was taken for some problems, measured or not.
#pragma once

#include <cstddef>
#include <filesystem>

#include "fusedsc/tuning/store/entry.h"

namespace fusedsc::tuning {

/// Throws InvalidArgument, with the file and why, where there is none or it is none; of frozen choices, too, where they
/// are of another version of fusedsc, or have a kernel that this build does not have.
Table read_table(const std::filesystem::path& file);

/// Writes what is taken now for each recorded problem (recorder.h), to be pinned (choices.h). Returns how many these
/// are. Throws StoreError.
std::size_t freeze(const std::filesystem::path& file);

}  // namespace fusedsc::tuning
