/// Which kernel, and which config of it, shall run whatever would be chosen otherwise: for tests, for measurements and
/// for finding out what a choice costs. In the whole process, as a backward pass runs in threads of its own.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fusedsc/tuning/config.h"

namespace fusedsc::tuning {

/// What is forced for a role. Without a config: the one that would be chosen for the kernel.
struct Forced {
  std::string kernel;
  std::optional<Config> config;
};

/// The two halves of a choice: "kernel" or "kernel/config".
struct ChoiceWords {
  std::string_view kernel;
  std::optional<std::string_view> config;

  /// Throws InvalidArgument.
  Config parsed_config() const { return config ? parsed(*config) : Config(); }
};
ChoiceWords words_of(std::string_view choice);

/// A choice for a role, "kernel" or "kernel/config". Throws InvalidArgument, listing what there is, for a role, a
/// kernel or a word that there is not; the message begins with `argument`, which it was given as.
Forced read_choice(const char* argument, const std::string& role, const std::string& choice);

/// `role`: what a kernel is for, as "depthwise_conv2d.forward"; `choice`: "kernel" or "kernel/config", as
/// "gpu_direct/channels=2 rows=1", or "" for no force any more. Returns what was forced until now, or "". Throws
/// InvalidArgument, listing what there is. A kernel that cannot run a problem, or a config that does not fit it, makes
/// the operator that is called throw Unsupported; nothing else runs in its place.
/// FUSEDSC_FORCE in the environment does the same when a program starts: "role=choice", several of them separated by
/// semicolons.
std::string force(const std::string& role, const std::string& choice);

std::optional<Forced> forced(const char* role);

/// All roles whose kernels are in this program, and the kernels' names.
struct RoleNames {
  const char* name;
  std::vector<const char*> kernels;
};
std::vector<RoleNames> roles();

/// By each role, before main(): `kernels` gives their names.
class RoleRegistration {
 public:
  RoleRegistration(const char* name, std::vector<const char*> (*kernels)());
};

}  // namespace fusedsc::tuning
