/// Wrong arguments, one mistake at a time.
#pragma once

#include <string>
#include <vector>

#include "fusedsc/common/status.h"
#include "ops/verify.h"

namespace fusedsc::reference {

/// What is made wrong, and the name that the message must begin with.
template <class Arguments>
struct Mistake {
  const char* name;
  void (*make)(Arguments&);
};

template <class Arguments>
using Mistakes = std::vector<Mistake<Arguments>>;

/// Runs with the workspace that the arguments were right with: a check must come before any use of memory.
template <class Arguments>
void expect_refused(const Operator<Arguments>& op, const Arguments& arguments, const Workspace& workspace,
                    const std::string& name) {
  try {
    op.run(arguments,
           {.parallel_for = {}, .threads = 1, .workspace = workspace.data(), .workspace_bytes = workspace.bytes()});
    ADD_FAILURE() << name << ": accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(std::string(error.what()).substr(0, name.size() + 1), name + ":") << error.what();
    EXPECT_GT(std::string(error.what()).size(), name.size() + 20) << error.what();
  }
}

template <class Arguments>
void verify_mistakes(const Operator<Arguments>& op, const Arguments& right, const Mistakes<Arguments>& mistakes) {
  const Workspace workspace(op.workspace_bytes(right, 1), 0);
  for (const auto& mistake : mistakes) {
    Arguments wrong = right;
    mistake.make(wrong);
    expect_refused(op, wrong, workspace, mistake.name);
  }
}

template <class Arguments>
void verify_execution(const Operator<Arguments>& op, const Arguments& arguments) {
  const std::size_t bytes = op.workspace_bytes(arguments, 1);
  const Workspace workspace(bytes + 64, 0);
  char* data = static_cast<char*>(workspace.data());
  const auto message_with = [&](const Execution& execution) -> std::string {
    try {
      op.run(arguments, execution);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  };
  const auto begins_with = [](const std::string& text, const std::string& begin) { return text.rfind(begin, 0) == 0; };
  EXPECT_PRED2(begins_with, message_with({{}, 0, data, bytes}), "threads:");
  EXPECT_PRED2(begins_with, message_with({{}, -1, data, bytes}), "threads:");
  EXPECT_THROW(op.workspace_bytes(arguments, 0), InvalidArgument);
  ASSERT_GT(bytes, 0u);
  EXPECT_PRED2(begins_with, message_with({{}, 1, data, bytes - 1}), "workspace:");
  EXPECT_PRED2(begins_with, message_with({{}, 1, nullptr, bytes}), "workspace:");
  EXPECT_PRED2(begins_with, message_with({{}, 1, data + 8, bytes}), "workspace:");
}

/// Memory that overlaps.
inline void* inside(const void* memory) { return static_cast<char*>(const_cast<void*>(memory)) + 16; }

}  // namespace fusedsc::reference
