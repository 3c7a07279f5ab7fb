/// Plans: made once, run with any memory that is like the one they were made for.
#include "ops/dsc_block_verify.h"
#include "ops/mistakes.h"

namespace fusedsc::reference {
namespace {

DscBlockCase block_case(bool stores_d) {
  DscBlockCase block;
  block.depthwise = {{2, 19, 8, 13}, centered(3)};
  block.outputs = 12;
  block.stores_d = stores_d;
  return block;
}

Execution execution_in(const Workspace& workspace, int threads) {
  return {.parallel_for = thread_parallel_for(threads),
          .threads = threads,
          .workspace = workspace.data(),
          .workspace_bytes = workspace.bytes()};
}

TEST(Plan, RunsWithOtherMemory) {
  for (const bool stores_d : {true, false}) {
    const DscBlockCase block = block_case(stores_d);
    DscBlockForward planned(block), other(block), expected(block);
    const Plan<DscBlockArguments> plan = plan_dsc_block(planned.arguments(block), 2);
    EXPECT_EQ(plan.workspace_bytes, dsc_block_workspace_bytes(planned.arguments(block), 2));
    const Workspace workspace(plan.workspace_bytes, 0xff);
    run(kDscBlock, expected.arguments(block), 2);
    for (DscBlockForward* tensors : {&planned, &other}) {
      plan.run(tensors->arguments(block), execution_in(workspace, 2));
      EXPECT_TRUE(tensors->y.same_bits(expected.y));
      EXPECT_TRUE(tensors->variance.tensor().same_bits(expected.variance.tensor()));
    }
  }
}

TEST(Plan, ChecksMemoryAndThreads) {
  const DscBlockCase block = block_case(true);
  DscBlockForward tensors(block);
  const DscBlockArguments right = tensors.arguments(block);
  const Plan<DscBlockArguments> plan = plan_dsc_block(right, 2);
  const Workspace workspace(plan.workspace_bytes, 0);
  const auto message_with = [&](const DscBlockArguments& arguments, const Execution& execution) -> std::string {
    try {
      plan.run(arguments, execution);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  };
  DscBlockArguments overlapping = right;
  overlapping.y.data = inside(right.x.data);
  EXPECT_EQ(message_with(overlapping, execution_in(workspace, 2)).substr(0, 2), "y:");
  EXPECT_EQ(message_with(right, execution_in(workspace, 1)).substr(0, 8), "threads:");
  Execution short_of_memory = execution_in(workspace, 2);
  short_of_memory.workspace_bytes -= 1;
  EXPECT_EQ(message_with(right, short_of_memory).substr(0, 10), "workspace:");
}

}  // namespace
}  // namespace fusedsc::reference
