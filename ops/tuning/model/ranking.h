/// The ranker that counts in this process, and what it says of problems that operators meet.
///
/// It comes with fusedsc, in the folder "rankers" of the tables: one whose file's name a device's begins with
/// ("nvidia-h.jsonl" for "nvidia-h100-80gb-hbm3-132"). FUSEDSC_RANKER names a file that counts for every device in its
/// place, or is "none".
#pragma once

#include <filesystem>
#include <memory>

#include "fusedsc/common/tensor_view.h"
#include "fusedsc/tuning/model/ranker.h"

namespace fusedsc::tuning {

/// Of a role on the current device of that kind; null: nothing is known. A file that is damaged is as none, which is
/// said once on the standard error; one that the user has named must be right: throws InvalidArgument.
std::shared_ptr<const RoleTrees> ranking_of(const char* role, Device device);

/// The current device of that kind.
Machine machine_of(Device device);

/// The file that counts on the current device of that kind; empty where there is none.
std::filesystem::path ranker_for(Device device);

/// Where rankers are that come with fusedsc.
void use_rankers_of(const std::filesystem::path& folder);
/// The environment is looked at again.
void forget_rankers();

}  // namespace fusedsc::tuning
