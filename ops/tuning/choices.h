/// Measured choices as this process knows them: its own, the user's store's (store.h), a table's. Each is looked up
/// once.
///
/// The environment decides where: FUSEDSC_CACHE_DIR (store.h); FUSEDSC_TABLE names a table that counts in place of the
/// one for this device that comes with fusedsc; FUSEDSC_TUNE=0 freezes: then the table alone counts, and nothing is
/// measured.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "fusedsc/common/tensor_view.h"
#include "fusedsc/tuning/config.h"
#include "fusedsc/tuning/store/entry.h"

namespace fusedsc::tuning {

/// What is to be taken, because it was measured to be the fastest.
struct Known {
  std::string kernel;
  Config config;
  double microseconds = 0;
  const char* why = "";  ///< "tuned", here or in the user's store; "table"; "nearest" (nearest.h)
};

/// Whether anything at all was measured for a role on the current device of that kind: only then it is worth while to
/// put a problem into words. Throws InvalidArgument where a variable of the environment is wrong.
bool knows_choices(const char* role, Device device);

/// Of those for this problem, or else for the nearest batch, the first that still fits. `fits`: whether there is such a
/// kernel that can run it with such a config. What is stored but cannot be used is said once on the standard error,
/// with its file.
using Fits = std::function<bool(const std::string& kernel, const Config& config)>;
std::optional<Known> known_choice(const char* role, Device device, const std::string& problem, const Fits& fits);

/// Takes it from now on, in this process; and stores it for others unless that is not wanted. Throws StoreError where
/// it cannot be stored: in this process it is taken all the same. Throws InvalidArgument where choices are frozen.
void adopt(const Entry& entry, bool stores = true);

/// Throws InvalidArgument, with the remedy, where choices are frozen.
void check_not_frozen();

/// Forgets what was read and measured: everything, and the environment's variables, is looked at again.
void forget_choices();

/// Where tables are that come with fusedsc: <environment>.json. They count from now on.
void use_tables_of(const std::filesystem::path& folder);

}  // namespace fusedsc::tuning
