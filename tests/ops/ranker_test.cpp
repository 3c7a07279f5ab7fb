/// Rankers as files: the head is read at once, a role's trees when they are asked for.
#include "fusedsc/tuning/model/ranker.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "fusedsc/common/status.h"

namespace fusedsc::tuning {
namespace {

constexpr const char *kFirst = "depthwise_conv2d.forward", *kSecond = "pointwise_conv2d.forward";
constexpr const char* kProblem =
    "x=float32[1,8,9,10] contiguous align=64, weight=float32[8,1,3,3] contiguous align=64, window{kernel=[3,3], "
    "stride=[1,1], dilation=[1,1]}, y=float32[1,8,7,8] contiguous align=64";

/// With one leaf for the kernel.
std::string line_of(const char* role, const char* kernel, const char* value) {
  return std::string(R"({"role":")") + role + R"(","kernels":{")" + kernel +
         R"(":{"roots":[0],"feature":[-1],"right":[0],"value":[)" + value + "]}}}";
}

std::string quoted(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "\"" : ",\"") + name + '"';
  return '[' + list + ']';
}

std::string file_of(const std::vector<std::string>& lines, int version = 2,
                    const std::vector<std::string>& features = feature_names()) {
  const std::pair<const char*, const char*> roles[] = {{kFirst, "1.0"}, {kSecond, "0.25"}};
  std::string list, rest;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    list += std::string(i == 0 ? "" : ",") + R"({"role":")" + roles[i].first + R"(","margin":)" + roles[i].second +
            R"(,"bytes":)" + std::to_string(lines[i].size()) + '}';
    rest += lines[i] + '\n';
  }
  return R"({"version":)" + std::to_string(version) + R"(,"features":)" + quoted(features) + R"(,"roles":[)" + list +
         "]}\n" + rest;
}

std::string refused(const std::string& text) {
  try {
    Ranker::parsed(text);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(Ranker, ReadsItsHeadAndThenTheTreesThatAreAskedFor) {
  const std::string first = line_of(kFirst, "cpu", "0.5"), second = line_of(kSecond, "cpu", "1.5");
  const Ranker ranker = Ranker::parsed(file_of({first, second}));
  EXPECT_EQ(ranker.of(kFirst)->margin, 1);
  EXPECT_EQ(ranker.of(kSecond)->margin, 0.25);
  EXPECT_EQ(ranker.of("depthwise_conv2d.backward"), nullptr);
  EXPECT_TRUE(ranker.of(kFirst)->kernels.contains("cpu"));
  EXPECT_FALSE(ranker.of(kFirst)->kernels.contains("cpu_planes"));
  Predictions of_first(*ranker.of(kFirst), kProblem, {}), of_second(*ranker.of(kSecond), kProblem, {});
  EXPECT_NEAR(*of_second.microseconds("cpu", {}) / *of_first.microseconds("cpu", {}), std::exp(1.0), 1e-9);
  EXPECT_FALSE(of_first.microseconds("cpu_planes", {}));
}

/// The margin, which is all that a program needs that measures nothing, does not need the trees.
TEST(Ranker, DamagedTreesAreFoundWhenTheyAreAskedFor) {
  const std::string whole = line_of(kSecond, "cpu", "1.5");
  for (const std::string& line : {std::string(whole.size(), '['), line_of(kFirst, "cpu", "1"), std::string("{}")}) {
    int told = 0;
    const Ranker ranker = Ranker::parsed(file_of({line_of(kFirst, "cpu", "0.5"), line}), [&](const auto&) { ++told; });
    const auto damaged = ranker.of(kSecond);
    EXPECT_EQ(damaged->margin, 0.25);
    EXPECT_EQ(told, 0);
    EXPECT_FALSE(damaged->kernels.contains("cpu"));
    EXPECT_FALSE(damaged->kernels.contains("cpu"));
    EXPECT_EQ(told, 1);
    EXPECT_TRUE(ranker.of(kFirst)->kernels.contains("cpu"));
    EXPECT_EQ(told, 1);
    // Where nobody is told, whoever asks is: each time.
    const auto strict = Ranker::parsed(file_of({line_of(kFirst, "cpu", "0.5"), line})).of(kSecond);
    EXPECT_THROW(strict->kernels.contains("cpu"), InvalidArgument);
    EXPECT_THROW(strict->kernels.contains("cpu"), InvalidArgument);
  }
}

TEST(Ranker, CutOffWhereverItIs) {
  const std::string whole = file_of({line_of(kFirst, "cpu", "0.5"), line_of(kSecond, "cpu", "1.5")});
  for (std::size_t size = 0; size + 1 < whole.size(); ++size) {  // the last new line
    ASSERT_NE(refused(whole.substr(0, size)), "") << "cut off behind " << size << " bytes";
  }
  EXPECT_EQ(refused(whole), "");
}

TEST(Ranker, OfAnotherKind) {
  EXPECT_NE(refused(file_of({}, 1)).find("another version"), std::string::npos);
  EXPECT_NE(refused(file_of({}, 2, {"channels"})).find("other features"), std::string::npos);
  EXPECT_NE(refused("[]"), "");
}

}  // namespace
}  // namespace fusedsc::tuning
