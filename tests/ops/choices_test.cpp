/// What is chosen: the forced kernel, what was measured here, what a table has, the prior's, in this order; and
/// problems that are noted down to be measured.
#include "fusedsc/tuning/choices.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <set>

#include "fusedsc/tuning/force.h"
#include "fusedsc/tuning/nearest.h"
#include "fusedsc/tuning/recorder.h"
#include "ops/choices_fixture.h"

namespace fusedsc::reference {
namespace {

TEST_F(ChoicesTest, InTheirOrder) {
  EXPECT_EQ(ran(), "cpu_planes: prior");
  const auto table = folder_ / "table.json";
  write(table, tuning::table_of({entry("cpu", 7)}));
  set("FUSEDSC_TABLE", table.string());
  EXPECT_EQ(ran(), "cpu: table, 7 us");
  store(entry("cpu_planes", 3.25));
  EXPECT_EQ(ran(), "cpu_planes: tuned, 3.25 us");
  const std::string before = tuning::force(kRole, "cpu");
  EXPECT_EQ(ran(), "cpu: forced");
  tuning::force(kRole, before);
  EXPECT_EQ(ran(), "cpu_planes: tuned, 3.25 us");
  set("FUSEDSC_TUNE", "0");
  EXPECT_EQ(ran(), "cpu: table, 7 us");
  set("FUSEDSC_TABLE", "");
  EXPECT_EQ(ran(), "cpu_planes: prior");
}

/// A name with a byte that is zero is printed whole, and what there is behind it.
TEST(Messages, GoOnBehindZeroBytes) {
  const auto with_zero = [](std::string text) {
    std::replace(text.begin(), text.end(), '@', '\0');
    return text;
  };
  const auto said = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const std::exception& error) {
      return error.what();
    }
    return "nothing";
  };
  const auto says = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  const auto forced = [&](const std::string& role, const std::string& choice) {
    return said([&] { tuning::force(with_zero(role), with_zero(choice)); });
  };
  says(forced("depth@wise", "cpu"), "unknown role \"depth\\0wise\"; there are ");
  says(forced(kRole, "c@pu@"), "has no kernel \"c\\0pu\\0\"; there are ");
  says(forced(kRole, "cpu/r@ows=2"), "\"r\\0ows\" is no word of one; there are channels, ");
  says(forced(kRole, "cpu/rows=2@"), "\"rows=2\\0\" is not a word, an equals sign and a number");
  says(said([&] { activation_from_name(with_zero("re@lu")); }), "unknown name \"re\\0lu\"; use one of ");
  EXPECT_STREQ(Unsupported(with_zero("@a@@b")).what(), "\\0a\\0\\0b");
}

TEST_F(ChoicesTest, ExplainSaysTheSame) {
  store(entry());
  ForwardTensors<DepthwiseGeometry> tensors(problem_);
  for (const Candidate& candidate : explain_depthwise_conv2d(tensors.arguments(problem_))) {
    if (candidate.taken) EXPECT_EQ(candidate.implementation + ": " + candidate.why, "cpu: tuned, 12.5 us");
    else EXPECT_EQ(candidate.why, "");
  }
}

TEST_F(ChoicesTest, ShippedTables) {
  write(folder_ / "tables" / (tuning::environment(Device::cpu) + ".json"), tuning::table_of({entry("cpu", 7)}));
  tuning::use_tables_of(folder_ / "tables");
  EXPECT_EQ(ran(), "cpu: table, 7 us");
  write(folder_ / "other.json", tuning::table_of({}));
  set("FUSEDSC_TABLE", (folder_ / "other.json").string());
  const std::string said = said_by([&] {
    EXPECT_EQ(ran(), "cpu_planes: prior") << "what the user names counts alone";
    ran();
  });
  EXPECT_NE(said.find("other.json is ignored: it has no choice for this device, "), std::string::npos) << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  tuning::use_tables_of("");
}

/// What comes with a release holds for it; what the user has measured or named holds for the sources that were
/// measured.
TEST_F(ChoicesTest, ShippedTablesHoldForTheRelease) {
  const auto shipped = folder_ / "tables" / (tuning::environment(Device::cpu) + ".json");
  const auto ship = [&](const Entry& entry) {
    write(shipped, tuning::table_of({entry}, {"b6def20", "2026-11-27", ""}));
    tuning::use_tables_of(folder_ / "tables");
  };
  Entry old = entry("cpu", 7);
  for (const char* sources : {"0123456789abcdef", ""}) {
    old.sources = sources;
    ship(old);
    EXPECT_EQ(said_by([&] { EXPECT_EQ(ran(), "cpu: table, 7 us"); }), "");
    EXPECT_EQ(tuning::table_for(Device::cpu), shipped);
  }
  set("FUSEDSC_TABLE", shipped.string());
  const std::string said = said_by([&] { EXPECT_EQ(ran(), "cpu_planes: prior"); });
  EXPECT_NE(said.find("tune again"), std::string::npos) << said;
  set("FUSEDSC_TABLE", "none");
  EXPECT_EQ(said_by([&] { EXPECT_EQ(ran(), "cpu_planes: prior"); }), "");
  EXPECT_EQ(tuning::table_for(Device::cpu), "");
  set("FUSEDSC_TABLE", "");
  store(old);
  EXPECT_NE(said_by([&] { EXPECT_EQ(ran(), "cpu: table, 7 us"); }).find("tune again"), std::string::npos);
  Store::of_user()->clear();

  // As near as others; and nobody here can help it where there is no such kernel any more.
  const Entry near = with_batch(4, old);
  Entry gone = old, misfit = old;
  gone.best.kernel = "cpu_magic";
  misfit.best.config = {{tuning::Knob::rows, 3}};
  for (const auto& [one, choice] : {std::pair(near, "cpu: nearest"), std::pair(gone, "cpu_planes: prior"),
                                    std::pair(misfit, "cpu_planes: prior")}) {
    ship(one);
    EXPECT_EQ(said_by([&, choice = choice] { EXPECT_EQ(ran(), choice); }), "");
  }
  write(shipped, "{");
  tuning::use_tables_of(folder_ / "tables");
  EXPECT_NE(said_by([&] { EXPECT_EQ(ran(), "cpu_planes: prior"); }).find("it is not whole"), std::string::npos);
  tuning::use_tables_of("");
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder_ / "tables");  // where a file has the name of a table, which nobody has named
  EXPECT_EQ(tuning::table_for(Device::cpu), "");
  std::filesystem::current_path(before);
}

TEST_F(ChoicesTest, Adopted) {
  const auto version = [&] {
    tuning::adopt(entry("cpu", 5));
    return ran();
  };
  EXPECT_EQ(version(), "cpu: tuned, 5 us");
  tuning::forget_choices();
  EXPECT_EQ(ran(), "cpu: tuned, 5 us") << "it is not in the store";
  tuning::adopt(entry("cpu_planes", 4), false);
  EXPECT_EQ(ran(), "cpu_planes: tuned, 4 us");
  tuning::forget_choices();
  EXPECT_EQ(ran(), "cpu: tuned, 5 us") << "it was not to be stored";
}

/// The same layer with another number of images.
TEST_F(ChoicesTest, Nearest) {
  const auto with_batch = [this](std::int64_t batch, const char* kernel) {
    return ChoicesTest::with_batch(batch, entry(kernel));
  };
  EXPECT_EQ(with_batch(2, "cpu").problem, problem_met_->text);
  store(with_batch(5, "cpu"));
  EXPECT_EQ(ran(), "cpu_planes: prior") << "more than twice as many";
  store(with_batch(4, "cpu"));
  EXPECT_EQ(ran(), "cpu: nearest");
  store(with_batch(3, "cpu_planes"));
  EXPECT_EQ(ran(), "cpu_planes: nearest") << "3 is nearer than 4";
  tuning::adopt(with_batch(3, "cpu"), false);
  EXPECT_EQ(ran(), "cpu: nearest") << "of the same batch, what was measured here";
  tuning::adopt(entry("cpu_planes", 3), false);
  EXPECT_EQ(ran(), "cpu_planes: tuned, 3 us");
  tuning::forget_choices();
  Entry stale = with_batch(3, "cpu"), unknown = with_batch(1, "cpu_magic");
  stale.sources = "0123456789abcdef";
  store(stale);
  store(unknown);
  const std::string said = said_by([&] { EXPECT_EQ(ran(), "cpu: nearest") << "4, as 3 is stale"; });
  EXPECT_EQ(said, "") << "nobody asked for these";
  const auto table = folder_ / "table.json";
  write(table, tuning::table_of({with_batch(4, "cpu")}));
  set("FUSEDSC_TABLE", table.string());
  set("FUSEDSC_TUNE", "0");
  EXPECT_EQ(ran(), "cpu: nearest") << "of the table";
}

/// On a GPU a type of 16 bits takes what was measured for the other one; its own counts before, and nearer batches.
TEST(NearestOfTypes, BothOf16Bits) {
  const auto problem = [](int batch, const char* type, const char* device) {
    const auto tensor = [&](const char* name, int images) {
      return std::string(name) + "=" + type + "[" + std::to_string(images) + ",32,7,7] channels_last " + device;
    };
    return tensor("x", batch) + ", " + tensor("weight", 32) + ", " + tensor("y", batch);
  };
  tuning::Nearest nearest;
  const auto add = [&](std::string text, const char* kernel) {
    Entry entry;
    entry.problem = std::move(text);
    entry.best.kernel = kernel;
    nearest.add(std::move(entry));
  };
  const auto found = [&](const std::string& text) {
    std::string kernels;
    for (const Entry* entry : nearest.of(text)) kernels += entry->best.kernel + " ";
    return kernels;
  };
  add(problem(8, "float16", "gpu"), "half8");
  add(problem(16, "float16", "gpu"), "half16");
  add(problem(16, "bfloat16", "gpu"), "brain16");
  add(problem(8, "float32", "gpu"), "float8");
  add(problem(8, "float16", "cpu"), "cpu8");
  EXPECT_EQ(found(problem(8, "bfloat16", "gpu")), "half8 brain16 half16 ");
  EXPECT_EQ(found(problem(16, "bfloat16", "gpu")), "half16 half8 ") << "not what was found unfit for it";
  EXPECT_EQ(found(problem(16, "float16", "gpu")), "brain16 half8 ");
  EXPECT_EQ(found(problem(8, "bfloat16", "cpu")), "") << "a CPU's types differ in time";
  EXPECT_EQ(found(problem(16, "float32", "gpu")), "float8 ");
  EXPECT_EQ(tuning::for_any_16_bits(problem(8, "bfloat16", "gpu")), problem(8, "float16", "gpu"));
}

TEST(ForAnyBatch, OnlyImagesDiffer) {
  const auto any = [](const char* problem) {
    const auto found = tuning::for_any_batch(problem);
    return found ? std::to_string(found->batch) + ": " + found->text : "";
  };
  EXPECT_EQ(
      any("x=float16[8,32,7,7] channels_last align=64 gpu, weight=float16[8,1,3,3] contiguous align=64 gpu, "
          "bias=float16[8] align=16 gpu, window{kernel=[8,3], stride=[1,1]}, epilogue{residual=float16[8,8,7,7]}, "
          "y=float16[8,32,7,7] strides=[8,1,2,3]"),
      "8: x=float16[N,32,7,7] channels_last align=64 gpu, weight=float16[8,1,3,3] contiguous align=64 gpu, "
      "bias=float16[8] align=16 gpu, window{kernel=[8,3], stride=[1,1]}, epilogue{residual=float16[N,8,7,7]}, "
      "y=float16[N,32,7,7] strides=[8,1,2,3]");
  EXPECT_EQ(any("x=float32[2,3,4,5], grad_weight=float32[2,1,3,3], grad_y=float32[2,3,4,5]"),
            "2: x=float32[N,3,4,5], grad_weight=float32[2,1,3,3], grad_y=float32[N,3,4,5]");
  EXPECT_EQ(any("x=float32[0,3,4,5]"), "");
  EXPECT_EQ(any("weight=float32[2,3,4,5]"), "");
  EXPECT_EQ(any("x=float32[2,3"), "");
  EXPECT_EQ(any(""), "");
}

TEST_F(ChoicesTest, UnwritableHoldsInMemory) {
  write(folder_ / "file", "in the way");
  set("FUSEDSC_CACHE_DIR", (folder_ / "file").string());
  EXPECT_THROW(tuning::adopt(entry("cpu", 5)), tuning::StoreError);
  EXPECT_EQ(ran(), "cpu: tuned, 5 us");
}

/// What cannot be used is said once, with its file, and the next one is taken.
TEST_F(ChoicesTest, UnusableOnes) {
  const auto table = folder_ / "table.json";
  write(table, tuning::table_of({entry("cpu", 7)}));
  set("FUSEDSC_TABLE", table.string());
  Entry stale = entry(), unknown = entry("cpu_magic"), misfit = entry(), other = entry();
  stale.sources = "0123456789abcdef";
  misfit.best.config = {{tuning::Knob::rows, 3}};
  other.problem += ", ";
  const std::string whole = tuning::json_of(entry());
  const std::pair<std::string, std::string> cases[] = {
      {tuning::json_of(stale), "tune again"},       {tuning::json_of(unknown), "there is no kernel cpu_magic"},
      {tuning::json_of(misfit), "\"rows=3\""},      {tuning::json_of(other), "it is for another problem"},
      {whole.substr(0, whole.size() / 2), "whole"}, {"", "whole"}};
  for (const auto& [contents, why] : cases) {
    write(file(), contents);
    tuning::forget_choices();
    const std::string said = said_by([&] {
      EXPECT_EQ(ran(), "cpu: table, 7 us");
      EXPECT_EQ(ran(), "cpu: table, 7 us");
    });
    EXPECT_NE(said.find(why), std::string::npos) << said;
    EXPECT_NE(said.find(file().parent_path().string()), std::string::npos) << said;
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  }
}

TEST_F(ChoicesTest, WrongEnvironment) {
  const auto message = [&] {
    try {
      ran();
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  set("FUSEDSC_TUNE", "off");
  EXPECT_NE(message().find("FUSEDSC_TUNE: it is \"off\"; it must be 0"), std::string::npos) << message();
  set("FUSEDSC_TUNE", "");
  set("FUSEDSC_TABLE", (folder_ / "none.json").string());
  EXPECT_NE(message().find("none.json is no table: there is no such file"), std::string::npos) << message();
  write(folder_ / "none.json", "{");
  tuning::forget_choices();
  EXPECT_NE(message().find("none.json is no table: it is not whole"), std::string::npos) << message();
  set("FUSEDSC_TABLE", "");
  EXPECT_EQ(ran(), "cpu_planes: prior");
  set("FUSEDSC_TUNE", "0");
  EXPECT_THROW(tuning::adopt(entry()), InvalidArgument);
}

TEST_F(ChoicesTest, RecordedProblem) {
  EXPECT_STREQ(problem_met_->role, kRole);
  EXPECT_EQ(problem_met_->calls, 1);
  EXPECT_EQ(problem_met_->depth, 0);
  const auto choice_of = [&](const char* kernel) {
    return std::string(kernel) + '/' + tuning::printed(entry(kernel).best.config);
  };
  const std::string planes = choice_of("cpu_planes"), tiles = choice_of("cpu");
  EXPECT_EQ(problem_met_->taken().choice, planes);
  EXPECT_EQ(problem_met_->candidates(2), (std::vector{planes, tiles}));
  EXPECT_EQ(problem_met_->candidates(1), std::vector{planes});
  const std::vector<std::string> some = problem_met_->candidates(6);
  ASSERT_EQ(some.size(), 6u) << "each kernel with others of its configs";
  EXPECT_EQ(std::set<std::string>(some.begin(), some.end()).size(), 6u);
  EXPECT_TRUE(some[2].starts_with("cpu_planes/") && some[3].starts_with("cpu/")) << some[2] << ", " << some[3];
  tuning::adopt(entry("cpu"));
  EXPECT_EQ(problem_met_->candidates(2), (std::vector{tiles, planes}));
}

/// Each candidate computes the problem in the memory that it is given.
TEST_F(ChoicesTest, Trials) {
  ForwardTensors<DepthwiseGeometry> tensors(problem_);
  const DepthwiseArguments arguments = tensors.arguments(problem_);
  const void* const given[] = {arguments.x.data, arguments.weight.data, arguments.bias.data};
  const std::vector<tuning::Buffer> buffers = problem_met_->buffers();
  ASSERT_EQ(buffers.size(), 4u);
  for (const std::string& choice : problem_met_->candidates(16)) {
    std::deque<Workspace> memory;
    std::vector<void*> addresses;
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      const auto bytes = static_cast<std::size_t>(buffers[i].bytes);
      memory.emplace_back(bytes, 0xff);
      addresses.push_back(memory.back().data());
      if (i < 3) std::memcpy(addresses.back(), given[i], bytes);
    }
    const tuning::Trial trial = problem_met_->plan(choice);
    const Workspace workspace(trial.workspace_bytes, 0xff);
    trial.bind(addresses)({.parallel_for = {}, .workspace = workspace.data(), .workspace_bytes = workspace.bytes()});
    std::memcpy(arguments.y.data, addresses[3], static_cast<std::size_t>(buffers[3].bytes));
    EXPECT_TRUE(matches(tensors.y, tensors.output(problem_, tensors.raw_output(problem_)))) << choice;
  }
}

TEST(SpreadPlaces, FarApart) {
  using Places = std::vector<std::size_t>;
  EXPECT_EQ(tuning::spread_places(0), Places());
  EXPECT_EQ(tuning::spread_places(1), Places{0});
  EXPECT_EQ(tuning::spread_places(8), (Places{0, 4, 2, 6, 1, 5, 3, 7}));
  EXPECT_EQ(tuning::spread_places(5), (Places{0, 4, 2, 1, 3}));
}

TEST(Environment, FolderNames) {
  EXPECT_EQ(tuning::folder_name(" NVIDIA H100 80GB HBM3 sm90 132"), "nvidia-h100-80gb-hbm3-sm90-132");
  EXPECT_EQ(tuning::folder_name("../a/ (R) CPU @ 2.5GHz "), "a-r-cpu-2-5ghz");
  EXPECT_EQ(tuning::folder_name("//"), "unknown");
  EXPECT_EQ(tuning::environment_of_gpu("NVIDIA H200 sm90", 132), "nvidia-h200-sm90-132")
      << "the name of a table that ships";
  EXPECT_EQ(tuning::environment(Device::cpu), tuning::folder_name(tuning::environment(Device::cpu)));
}

}  // namespace
}  // namespace fusedsc::reference
