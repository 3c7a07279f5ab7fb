/// Files of measured choices: what is written is read again, and nothing else is.
#include "fusedsc/tuning/store/store.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <thread>

#include "fusedsc/common/status.h"
#include "fusedsc/tuning/force.h"
#include "ops/stored_choices.h"

namespace fusedsc::reference {
namespace {

using tuning::Config;
using tuning::Entry;
using tuning::Knob;
using tuning::Store;
using tuning::StoreError;

class StoreTest : public testing::Test, protected StoredChoices {
 protected:
  const Store store_ = *Store::of_user();

  static Entry entry() {
    return {"some-cpu",
            "depthwise_conv2d.forward",
            "x=float32[1,2,3,4] contiguous align=64, threads=2",
            tuning::sources_of("depthwise_conv2d.forward"),
            "1.2.3",
            {"cpu", {{Knob::rows, 4}, {Knob::stages, 2}}, 12.5},
            {{"cpu_planes", {}, 13.75}, {"cpu", {{Knob::rows, 2}}, 99}}};
  }
  std::filesystem::path file() const {
    const Entry one = entry();
    return store_.file_of(one.environment, one.role, one.problem);
  }
  std::optional<Entry> read() const {
    const Entry one = entry();
    return store_.read(one.environment, one.role, one.problem);
  }
  /// Why it is not read.
  std::string refused() const {
    try {
      EXPECT_FALSE(read()) << "it was read";
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  }
};

void expect_same(const Entry& a, const Entry& b) { EXPECT_EQ(tuning::json_of(a), tuning::json_of(b)); }

TEST_F(StoreTest, ReadsWhatWasWritten) {
  EXPECT_FALSE(read());
  EXPECT_EQ(store_.root(), folder_ / "tuning");
  store_.write(entry());
  ASSERT_TRUE(read());
  expect_same(*read(), entry());
  EXPECT_EQ(read()->others.at(1).config[Knob::rows], 2);
  Entry other = entry();
  other.best.microseconds = 3;
  store_.write(other);
  expect_same(*read(), other);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(file().parent_path()), {}), 1) << "something is left";
  EXPECT_EQ(store_.names("some-cpu", "depthwise_conv2d.forward"), std::set{file().filename().string()});
}

/// Wherever it is cut off.
TEST_F(StoreTest, Truncated) {
  store_.write(entry());
  const std::string whole = contents(file());
  for (std::size_t size = 0; size + 2 < whole.size(); ++size) {  // the last brace, and a new line
    write(file(), whole.substr(0, size));
    ASSERT_NE(refused(), "") << "cut off behind " << size << " bytes";
  }
}

TEST_F(StoreTest, Hostile) {
  store_.write(entry());
  const std::string whole = contents(file());
  const auto with = [&](const std::string& before, const std::string& after) {
    std::string text = whole;
    EXPECT_NE(text.find(before), std::string::npos) << before;
    return text.replace(text.find(before), before.size(), after);
  };
  const std::string texts[] = {"null",
                               "[]",
                               "{}",
                               "\"text\"",
                               "\xff\xfe",
                               std::string(3, '\0'),
                               std::string(1 << 20, '['),
                               with("\"format\": 1", "\"format\": 2"),
                               with("\"format\": 1", "\"format\": \"1\""),
                               with("\"rows=4 stages=2\"", "\"rows=4 stages=-2\""),
                               with("\"rows=4 stages=2\"", "\"depth_of_despair=4\""),
                               with("\"rows=4 stages=2\"", "\"rows=99999999999\""),
                               with("\"rows=4 stages=2\"", "7"),
                               with("\"kernel\": \"cpu\"", "\"kernel\": [\"cpu\"]"),
                               with("12.5", "-12.5"),
                               with("12.5", "1e999"),
                               with("12.5", "\"fast\""),
                               with("\"others\": [", "\"others\": [3, "),
                               with("\"role\"", "\"part\"")};
  for (const std::string& text : texts) {
    write(file(), text);
    EXPECT_NE(refused(), "") << text.substr(0, 300);
    EXPECT_THROW(tuning::table_from(text), InvalidArgument);
  }
  write(file(), whole);
  EXPECT_TRUE(read());
}

/// Names that are there but are no files. A pipe that nobody writes to must not be waited for.
TEST_F(StoreTest, NoFiles) {
  std::filesystem::create_directories(file());
  EXPECT_NE(refused(), "");
  std::filesystem::remove(file());
  ASSERT_EQ(::mkfifo(file().c_str(), 0600), 0);
  EXPECT_NE(refused().find("no regular file"), std::string::npos);
  std::filesystem::remove(file());
  std::filesystem::create_symlink(file(), file());
  EXPECT_NE(refused(), "");
}

TEST_F(StoreTest, OtherProblemOfTheSameHash) {
  Entry other = entry();
  other.problem += ", bias=float32[2] align=64";
  write(file(), tuning::json_of(other));
  EXPECT_NE(refused().find("it is for another problem"), std::string::npos);
  store_.write(entry());
  EXPECT_TRUE(read());
}

std::string why_not_written(const Store& store, const Entry& entry) {
  try {
    store.write(entry);
  } catch (const StoreError& error) {
    return error.what();
  }
  return "";
}

TEST_F(StoreTest, Unwritable) {
  write(folder_ / "file", "in the way");
  for (const std::filesystem::path& root : {folder_ / "file" / "tuning", std::filesystem::path("/proc/tuning")}) {
    const std::string why = why_not_written(Store(root), entry());
    EXPECT_NE(why.find(root.string()), std::string::npos) << why;
    EXPECT_NE(why.find("set FUSEDSC_CACHE_DIR to"), std::string::npos) << why;
  }
  EXPECT_EQ(contents(folder_ / "file"), "in the way");
}

/// As where a disk is full half-way: what was there stays, and nothing else is left.
TEST_F(StoreTest, NoRoom) {
  store_.write(entry());
  Entry large = entry();
  large.others.assign(1000, large.best);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit little{4096, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
  const std::string why = why_not_written(store_, large);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(why.find("File too large"), std::string::npos) << why;
  expect_same(*read(), entry());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(file().parent_path()), {}), 1) << "something is left";
}

TEST_F(StoreTest, ManyWritersAndReaders) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 8; ++thread) {
    threads.emplace_back([this, thread] {
      for (int i = 0; i < 20; ++i) {
        Entry mine = entry();
        mine.best.microseconds = thread + 1;
        store_.write(mine);
        const std::optional<Entry> found = read();
        ASSERT_TRUE(found);
        EXPECT_GE(found->best.microseconds, 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(StoreTest, ListsAndClears) {
  Entry other = entry();
  other.environment = "another-cpu";
  store_.write(entry());
  store_.write(other);
  const auto damaged = folder_ / "tuning" / "some-cpu" / "depthwise_conv2d.forward" / "0.json";
  write(damaged, "{");
  write(folder_ / "tuning" / "some-cpu" / "a person's notes.txt", "mine");
  std::vector<std::filesystem::path> broken;
  EXPECT_EQ(store_.entries([&](const auto& file, const auto&) { broken.push_back(file); }).size(), 2u);
  EXPECT_EQ(broken, std::vector{damaged});
  EXPECT_EQ(store_.clear(), 3u);
  EXPECT_FALSE(read());
  EXPECT_EQ(contents(folder_ / "tuning" / "some-cpu" / "a person's notes.txt"), "mine");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "tuning" / "another-cpu"));
}

TEST_F(StoreTest, TablesAreSorted) {
  Entry second = entry(), third = entry();
  second.environment = "z";
  third.best.microseconds = 1;  // of the same problem as the first: that one stays
  const std::string table = tuning::table_of({second, entry(), third});
  const std::vector<Entry> entries = tuning::table_from(table).entries;
  ASSERT_EQ(entries.size(), 2u);
  expect_same(entries[0], entry());
  expect_same(entries[1], second);
  EXPECT_EQ(tuning::table_of({entry(), second}), table);
}

TEST_F(StoreTest, TablesSayWhereTheyAreFrom) {
  const tuning::Table rows = tuning::table_from(tuning::table_of({entry()}, {"b6def20", "2026-11-27", ""}));
  EXPECT_EQ(rows.head.commit + ' ' + rows.head.date, "b6def20 2026-11-27");
  EXPECT_EQ(rows.head.frozen_by, "");
  EXPECT_EQ(rows.entries.size(), 1u);
  EXPECT_EQ(tuning::table_from(tuning::table_of({}, {"", "", "1.2.3"})).head.frozen_by, "1.2.3");
  EXPECT_EQ(tuning::table_of({}).find("frozen_by"), std::string::npos);
  EXPECT_THROW(tuning::table_from(R"({"format": 1, "frozen_by": 3, "entries": []})"), InvalidArgument);
}

TEST(KernelSources, EveryRoleHasSome) {
  for (const tuning::RoleNames& role : tuning::roles())
    EXPECT_EQ(tuning::sources_of(role.name).size(), 16u) << role.name;
  EXPECT_EQ(tuning::sources_of("nothing.forward"), "");
}

}  // namespace
}  // namespace fusedsc::reference
