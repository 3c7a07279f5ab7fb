// A program that has only an installed fusedsc: what find_package(fusedsc) must be enough for.
#include <fusedsc/forward/depthwise.h>

#include <cstdint>
#include <cstdlib>
#include <vector>

int main() {
  const std::vector<float> x(16, 1.0F), weight(9, 1.0F);
  std::vector<float> y(4);
  fusedsc::DepthwiseArguments arguments;
  arguments.x = {x.data(), fusedsc::DataType::float32, {1, 1, 4, 4}, {16, 16, 4, 1}};
  arguments.weight = {weight.data(), fusedsc::DataType::float32, {1, 1, 3, 3}, {9, 9, 3, 1}};
  arguments.window.kernel = {3, 3};
  arguments.y = {y.data(), fusedsc::DataType::float32, {1, 1, 2, 2}, {4, 4, 2, 1}};

  std::vector<char> workspace(fusedsc::depthwise_conv2d_workspace_bytes(arguments, 1) + 64);
  fusedsc::Execution execution;
  execution.workspace = workspace.data() + 64 - reinterpret_cast<std::uintptr_t>(workspace.data()) % 64;
  execution.workspace_bytes = workspace.size() - 64;
  fusedsc::depthwise_conv2d(arguments, execution);
  return y == std::vector<float>(4, 9.0F) ? EXIT_SUCCESS : EXIT_FAILURE;
}
