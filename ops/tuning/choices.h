/// Measured choices as this process knows them: its own, the user's store's (store.h), a table's. Each is looked up
/// once.
///
/// The environment decides where: FUSEDSC_CACHE_DIR (store.h); FUSEDSC_TABLE names a table that counts in place of the
/// one for this device that comes with fusedsc, or is "none"; FUSEDSC_TUNE=0 freezes: then the table alone counts, and
/// nothing is measured.
///
/// What is stored, or in a table that the user has named, holds for the sources that it was measured with (entry.h).
/// The table that comes with fusedsc holds for this release: as long as there is such a kernel that fits.
///
/// A file of frozen choices (store/tables.h) has what was taken for some problems, measured or not. Pinned, by pin() or
/// FUSEDSC_TABLE, it counts alone, for exactly these problems.
#pragma once

#include <cstddef>
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
  const char* why = "";  ///< "pinned"; "tuned", here or in the user's store; "table"; "nearest" (nearest.h)
};

/// Whether anything at all was measured for a role on the current device of that kind: only then it is worth while to
/// put a problem into words. Throws InvalidArgument where a variable of the environment is wrong.
bool knows_choices(const char* role, Device device);

/// Of those for this problem, or else for the nearest batch, the first that still fits. `fits`: whether there is such a
/// kernel that can run it with such a config. What is stored but cannot be used is said once on the standard error,
/// with its file; but for what came with fusedsc, which is passed over. Throws InvalidArgument where a pinned choice
/// does not fit.
using Fits = std::function<bool(const std::string& kernel, const Config& config)>;
std::optional<Known> known_choice(const char* role, Device device, const std::string& problem, const Fits& fits);

/// Takes it from now on, in this process; and stores it for others unless that is not wanted. Throws StoreError where
/// it cannot be stored: in this process it is taken all the same. Throws InvalidArgument where choices are frozen or
/// pinned.
void adopt(const Entry& entry, bool stores = true);

/// Throws InvalidArgument, with the remedy, where choices are frozen or pinned.
void check_not_frozen();

/// From now on the frozen choices of that file count, and nothing else that was measured; in the whole process, until
/// another file is pinned, or "", which ends it. Returns how many there are. Throws InvalidArgument, and leaves
/// everything as it was, for what is no such file, is of another version of fusedsc, or has a kernel that there is not.
std::size_t pin(const std::filesystem::path& file);

/// Forgets what was read and measured: everything, and the environment's variables, is looked at again.
void forget_choices();

/// Where tables are that come with fusedsc: <environment>.json. They count from now on.
void use_tables_of(const std::filesystem::path& folder);

/// The table that counts on the current device of that kind: pinned, named by the user, or what came with fusedsc;
/// empty where there is none.
std::filesystem::path table_for(Device device);

}  // namespace fusedsc::tuning
