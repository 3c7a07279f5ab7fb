/// How every operator is verified: run on poisoned memory with different numbers of threads, and its outputs compared
/// with what the reference expects of them.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "fusedsc/runtime/execution.h"
#include "reference/tensor.h"

namespace fusedsc::reference {

/// A workspace of exactly the size asked for, filled with `poison`, and what lies behind it watched.
class Workspace {
 public:
  Workspace(std::size_t bytes, unsigned char poison)
      : bytes_(bytes), memory_(static_cast<unsigned char*>(memory().allocate(bytes + kGuard))) {
    std::memset(memory_, poison, bytes_);
    std::memset(memory_ + bytes_, kGuardByte, kGuard);
  }
  ~Workspace() { memory().release(memory_, bytes_ + kGuard); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  void* data() const { return memory_; }
  std::size_t bytes() const { return bytes_; }
  bool guard_untouched() const {
    for (std::size_t i = 0; i < kGuard; ++i) {
      if (memory_[bytes_ + i] != kGuardByte) return false;
    }
    return true;
  }

 private:
  static constexpr unsigned char kGuardByte = 0x5a;
#ifdef __SANITIZE_ADDRESS__
  static constexpr std::size_t kGuard = 0;  // it watches the end of the allocation itself
#else
  static constexpr std::size_t kGuard = 256;
#endif

  std::size_t bytes_;
  unsigned char* memory_;
};

/// An operator's public functions.
template <class ArgumentsOf>
struct Operator {
  using Arguments = ArgumentsOf;

  void (*run)(const Arguments&, const Execution&);
  std::size_t (*workspace_bytes)(const Arguments&, int threads);
};

/// Default arguments of an operator.
template <class Arguments>
Arguments arguments_of(const Operator<Arguments>&) {
  return {};
}

template <class Arguments>
void run(const Operator<Arguments>& op, const Arguments& arguments, int threads = 1, unsigned char poison = 0xff) {
  const Workspace workspace(op.workspace_bytes(arguments, threads), poison);
  op.run(arguments, {.parallel_for = thread_parallel_for(threads),
                     .threads = threads,
                     .workspace = workspace.data(),
                     .workspace_bytes = workspace.bytes()});
  memory().wait();
  EXPECT_TRUE(workspace.guard_untouched()) << "written behind the workspace";
}

/// Whether every element lies within the bound of its reference, and nothing around them was touched.
inline testing::AssertionResult matches(const Tensor& actual, const Array& expected) {
  if (actual.sizes() != expected.sizes) return testing::AssertionFailure() << "its sizes are wrong";
  const Precision precision(actual.dtype());
  const Array values = actual.values();
  std::ostringstream first;
  std::int64_t wrong = 0;
  for_each_index(expected.sizes, [&](auto n, auto c, auto h, auto w) {
    const double value = values.at(n, c, h, w).value;
    const Bounded bound = stored(precision, expected.at(n, c, h, w));
    if (std::abs(value - bound.value) <= bound.error) return;
    if (wrong++ > 0) return;
    first << "at [" << n << ", " << c << ", " << h << ", " << w << "] it is " << value << ", not " << bound.value
          << " +- " << bound.error;
  });
  if (wrong > 0) {
    return testing::AssertionFailure() << wrong << " of " << values.elements.size() << " elements are wrong; "
                                       << first.str();
  }
  if (!actual.surroundings_untouched()) return testing::AssertionFailure() << "memory around it was written";
  return testing::AssertionSuccess();
}

/// A tensor that an operator writes, and what it must be then.
struct Output {
  enum class Kind {
    same_bits,     ///< with any number of threads
    partial_sums,  ///< which another number of threads may add up differently
    scratch,       ///< anything
  };

  std::string name;
  Tensor* tensor;
  Array expected;
  Kind kind = Kind::same_bits;

  Output(std::string name_, Tensor& tensor_, Array expected_, Kind kind_ = Kind::same_bits)
      : name(std::move(name_)), tensor(&tensor_), expected(std::move(expected_)), kind(kind_) {}
  /// Sums over all positions of a tensor.
  Output(std::string name_, Channels& channels, const Vector& expected_)
      : name(std::move(name_)), tensor(&channels.tensor()), expected(tensor->sizes()), kind(Kind::partial_sums) {
    expected.elements = expected_;
  }

  testing::AssertionResult matches() const {
    if (kind != Kind::scratch) return reference::matches(*tensor, expected);
    if (tensor->surroundings_untouched()) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "memory around it was written";
  }
};

/// Once, with other arguments that must come to the same.
template <class Arguments>
void verify_once(const Operator<Arguments>& op, const Arguments& arguments, const std::vector<Output>& outputs,
                 const char* how) {
  for (const Output& output : outputs) output.tensor->wipe();
  run(op, arguments);
  for (const Output& output : outputs) EXPECT_TRUE(output.matches()) << output.name << ", " << how;
}

/// Right with any number of threads; the same bits when run again, whatever the workspace held; and with any number of
/// threads where no partial sums are added. A GPU knows nothing of threads: there, nothing may depend on their number.
template <class Arguments>
void verify(const Operator<Arguments>& op, const Arguments& arguments, const std::vector<Output>& outputs) {
  const auto run_afresh = [&](int threads, unsigned char poison) {
    for (const Output& output : outputs) output.tensor->wipe();
    run(op, arguments, threads, poison);
  };
  const auto compare = [&](const std::vector<Tensor>& results, const char* when, bool partial_sums_too) {
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const Output& output = outputs[i];
      const bool same =
          output.kind == Output::Kind::same_bits || (output.kind == Output::Kind::partial_sums && partial_sums_too);
      if (same) EXPECT_TRUE(output.tensor->same_bits(results[i])) << output.name << ", " << when;
      else EXPECT_TRUE(output.matches()) << output.name << ", " << when;
    }
  };
  run_afresh(1, 0xff);
  std::vector<Tensor> results;
  for (const Output& output : outputs) {
    EXPECT_TRUE(output.matches()) << output.name;
    results.push_back(*output.tensor);
  }
  if (memory().device == Device::gpu) {
    run_afresh(3, 0x00);
    return compare(results, "run again", true);
  }
  run_afresh(1, 0x00);
  compare(results, "run again", true);
  run_afresh(2, 0xff);
  compare(results, "2 threads", false);
  run_afresh(3, 0xff);
  compare(results, "3 threads", false);
}

/// Runs `check` on every case, each described in the messages of what fails in it; stops at the first that does.
template <class Cases, class Check>
void for_each_case(const Cases& cases, const Check& check) {
  for (const auto& problem : cases) {
    std::ostringstream description;
    description << problem;
    SCOPED_TRACE(description.str());
    check(problem);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace fusedsc::reference
