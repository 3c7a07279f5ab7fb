/// Frozen choices: what was taken is written, and taken again whatever was measured since.
#include "fusedsc/tuning/store/tables.h"

#include "ops/choices_fixture.h"

namespace fusedsc::reference {
namespace {

class PinnedTest : public ChoicesTest {
 protected:
  ~PinnedTest() override { tuning::pin(""); }

  void freeze(const std::vector<Entry>& entries, const std::string& version = tuning::library_version()) const {
    write(frozen_, tuning::table_of(entries, {"", "", version}));
  }
  /// Why it is not pinned.
  std::string refused() const {
    try {
      tuning::pin(frozen_);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  }

  const std::filesystem::path frozen_ = folder_ / "frozen.json";
};

/// Whatever was measured, and with whatever sources.
TEST_F(PinnedTest, CountAlone) {
  store(entry("cpu_planes", 3));
  write(folder_ / "tables" / (tuning::environment(Device::cpu) + ".json"), tuning::table_of({entry("cpu_planes", 7)}));
  tuning::use_tables_of(folder_ / "tables");
  Entry pinned = entry("cpu", 0);
  pinned.sources = "0123456789abcdef";
  freeze({pinned});
  EXPECT_EQ(tuning::pin(frozen_), 1u);
  EXPECT_EQ(ran(), "cpu: pinned");
  EXPECT_EQ(tuning::table_for(Device::cpu), frozen_);
  tuning::forget_choices();
  EXPECT_EQ(ran(), "cpu: pinned") << "until it is unpinned";
  EXPECT_THROW(tuning::adopt(entry("cpu_planes", 1)), InvalidArgument);
  EXPECT_THROW(tuning::check_not_frozen(), InvalidArgument);
  EXPECT_EQ(ran(), "cpu: pinned");

  // Another problem has no choice: what is near does not stand in, nor does what the user or the table has.
  const Entry near = with_batch(4, pinned);
  freeze({near});
  EXPECT_EQ(tuning::pin(frozen_), 1u);
  EXPECT_EQ(ran(), "cpu_planes: prior");
  EXPECT_EQ(tuning::pin(""), 0u);
  EXPECT_EQ(ran(), "cpu_planes: tuned, 3 us");
  tuning::use_tables_of("");
}

TEST_F(PinnedTest, ByTheEnvironment) {
  store(entry("cpu_planes", 3));
  freeze({entry("cpu", 12.5)});
  set("FUSEDSC_TABLE", frozen_.string());
  EXPECT_EQ(ran(), "cpu: pinned, 12.5 us");
  EXPECT_THROW(tuning::check_not_frozen(), InvalidArgument);
  freeze({entry("cpu_planes", 0)});
  tuning::pin(frozen_);
  EXPECT_EQ(ran(), "cpu_planes: pinned") << "the program counts more than its environment";
  tuning::pin("");
  freeze({entry()}, "0.0.1");
  tuning::forget_choices();
  EXPECT_THROW(ran(), InvalidArgument);
}

TEST_F(PinnedTest, WhatIsTakenIsFrozen) {
  store(entry("cpu", 5));
  tuning::start_recording();
  EXPECT_EQ(ran(), "cpu: tuned, 5 us");
  tuning::stop_recording();
  EXPECT_EQ(tuning::freeze(frozen_), 1u);
  Store::of_user()->clear();
  tuning::forget_choices();
  EXPECT_EQ(tuning::pin(frozen_), 1u);
  EXPECT_EQ(ran(), "cpu: pinned, 5 us");
  tuning::pin("");
  EXPECT_EQ(tuning::freeze(frozen_), 1u);
  store(entry("cpu", 5));
  tuning::pin(frozen_);
  EXPECT_EQ(ran(), "cpu_planes: pinned") << "what the prior took";
  write(folder_ / "file", "in the way");
  EXPECT_THROW(tuning::freeze(folder_ / "file" / "frozen.json"), tuning::StoreError);
}

/// A sentence each, and what was pinned before still is.
TEST_F(PinnedTest, Refused) {
  freeze({entry("cpu", 0)});
  tuning::pin(frozen_);
  const std::string whole = contents(frozen_);
  const auto says = [&](const std::string& sentence) {
    const std::string why = refused();
    EXPECT_NE(why.find(sentence), std::string::npos) << why;
    EXPECT_NE(why.find(frozen_.string()), std::string::npos) << why;
    EXPECT_EQ(ran(), "cpu: pinned");
  };
  write(frozen_, whole.substr(0, whole.size() / 2));
  says("it is not whole");
  freeze({entry("cpu", 0)}, "0.0.1");
  says("it was frozen by fusedsc 0.0.1, and this is " + tuning::library_version());
  freeze({entry("cpu_magic", 0)});
  says("depthwise_conv2d.forward has no kernel cpu_magic in this build");
  Entry other = entry();
  other.role = "depthwise_conv2d.magic";
  freeze({other});
  says("depthwise_conv2d.magic has no kernel cpu");
  write(frozen_, tuning::table_of({entry()}));
  says("which were not frozen");
  std::filesystem::remove(frozen_);
  says("there is no such file");
}

/// Nothing else runs in its place.
TEST_F(PinnedTest, DoesNotFit) {
  Entry misfit = entry("cpu", 0);
  misfit.best.config = {{tuning::Knob::rows, 3}};
  freeze({misfit});
  tuning::pin(frozen_);
  try {
    ran();
    ADD_FAILURE() << "it ran";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("\"rows=3\"; freeze it again: depthwise_conv2d.forward of x="),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace fusedsc::reference
