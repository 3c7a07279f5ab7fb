/// A folder of measured choices that is a test's own.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): setenv

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>

#include "fusedsc/tuning/choices.h"

namespace fusedsc::reference {

/// A test has it as a base beside its own.
class StoredChoices {
 protected:
  StoredChoices() {
    std::string name = (std::filesystem::temp_directory_path() / "fusedsc_test_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("there is no folder for temporary files");
    folder_ = name;
    set("FUSEDSC_CACHE_DIR", name);
    set("FUSEDSC_TUNE", "");
    set("FUSEDSC_TABLE", "");
  }
  ~StoredChoices() {
    set("FUSEDSC_TUNE", "0");
    set("FUSEDSC_TABLE", "");
    std::filesystem::remove_all(folder_);
  }
  StoredChoices(const StoredChoices&) = delete;
  StoredChoices& operator=(const StoredChoices&) = delete;

  /// An environment variable, from now on.
  static void set(const char* variable, const std::string& value) {
    ::setenv(variable, value.c_str(), 1);
    tuning::forget_choices();
  }
  static void write(const std::filesystem::path& file, std::string_view contents) {
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << contents;
  }
  static std::string contents(const std::filesystem::path& file) {
    std::ifstream stream(file);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  /// What call() leaves on the standard error.
  template <class Call>
  static std::string said_by(const Call& call) {
    testing::internal::CaptureStderr();
    call();
    return testing::internal::GetCapturedStderr();
  }

  std::filesystem::path folder_;
};

}  // namespace fusedsc::reference
