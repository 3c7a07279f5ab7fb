#include "fusedsc/tuning/trace.h"

#include <atomic>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <sstream>
#include <string_view>

#include "fusedsc/common/status.h"

namespace fusedsc::tuning {
namespace {

std::mutex mutex;
std::vector<Chosen> noted;
std::atomic<bool> is_traced = false;

bool is_verbose() {
  static const bool verbose = [] {
    const char* text = std::getenv("FUSEDSC_VERBOSE");
    const std::string_view value = text ? text : "";
    return !value.empty() && value != "0";
  }();
  return verbose;
}

}  // namespace

std::string Chosen::choice() const {
  const std::string words = printed(config);
  return words.empty() ? kernel : std::string(kernel) + '/' + words;
}

std::string Chosen::reason() const {
  if (microseconds == 0) return why;
  std::ostringstream text;
  text.precision(4);
  text << why << ", " << microseconds << " us";
  return text.str();
}

Trace::Trace() {
  const std::lock_guard lock(mutex);
  check(!is_traced, "trace: there is one already");
  noted.clear();
  is_traced = true;
}

Trace::~Trace() { is_traced = false; }

std::vector<Chosen> Trace::chosen() const {
  const std::lock_guard lock(mutex);
  return noted;
}

void note(const Chosen& chosen, const ConstTensorView& x) {
  if (is_verbose()) {
    std::ostringstream line;
    line << "fusedsc: " << chosen.role << ": " << chosen.choice() << " (" << chosen.reason() << "), x "
         << name_of(x.dtype) << ' ' << fusedsc::printed(x.sizes) << " strides " << fusedsc::printed(x.strides) << '\n';
    std::cerr << line.str();
  }
  if (!is_traced) return;
  const std::lock_guard lock(mutex);
  noted.push_back(chosen);
}

}  // namespace fusedsc::tuning
