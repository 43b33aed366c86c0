#include "cache/store.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "cache/cubin.hpp"
#include "cache/sha256.hpp"
#include "unit/cache_testing.hpp"

namespace commfuse::cache {
namespace {

using testing::make_cubin;
using testing::options_for;
using testing::read_all;
using testing::Sample;
using testing::TemporaryDirectory;
using testing::write_all;
namespace fs = std::filesystem;

unsigned mode_of(const fs::path& path) {
  struct stat status {};
  EXPECT_EQ(::lstat(path.c_str(), &status), 0) << path;
  return status.st_mode & 07777u;
}

std::size_t files_below(const fs::path& directory) {
  std::size_t count = 0;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) count += entry.is_regular_file() ? 1 : 0;
  return count;
}

TEST(CubinCheck, AcceptsWhatNvrtcWroteAndRefusesEachTruncationOfIt) {
  const std::string cubin = read_all(fs::path(COMMFUSE_SOURCE_DIR) / "tests/unit/golden/trivial_sm_90a.cubin");
  EXPECT_EQ(check_cubin(cubin, "sm_90a").result, CubinCheck::Result::kGood);
  EXPECT_EQ(check_cubin(cubin, "sm_100a").result, CubinCheck::Result::kWrongArch);
  for (std::size_t n = 0; n < cubin.size(); ++n) {
    ASSERT_EQ(check_cubin(cubin.substr(0, n), "sm_90a").result, CubinCheck::Result::kNotCubin) << n;
  }
}

TEST(CubinCheck, TablesWithHugeOffsetsAreRefused) {
  std::string cubin = make_cubin();
  Elf64_Ehdr header;
  std::memcpy(&header, cubin.data(), sizeof header);
  header.e_shoff = ~std::uint64_t{0} - 8;
  std::memcpy(cubin.data(), &header, sizeof header);
  EXPECT_EQ(check_cubin(cubin, "sm_90a").result, CubinCheck::Result::kNotCubin);
}

TEST(Store, ReturnsWhatWasPublishedAlsoToAnotherStoreAndAfterTheFolderMoved) {
  const TemporaryDirectory dir;
  const Sample sample;
  {
    const Store store(options_for(dir / "cache"));
    EXPECT_EQ(sample.find(store).reason, Miss::kAbsent);
    EXPECT_EQ(sample.publish(store).result, Publication::Result::kStored);
    const Lookup found = sample.find(store);
    ASSERT_TRUE(found);
    EXPECT_EQ(found.hit->cubin, sample.cubin);
    EXPECT_EQ(store.counters().hits, 1u);
    EXPECT_EQ(store.counters().misses[static_cast<int>(Miss::kAbsent)], 1u);
    EXPECT_EQ(store.counters().stored, 1u);
  }
  fs::rename(dir / "cache", dir / "moved");
  const Lookup found = sample.find(Store(options_for(dir / "moved")));
  ASSERT_TRUE(found);
  EXPECT_EQ(found.hit->cubin, sample.cubin);
  const Metadata metadata = Metadata::parse(found.hit->metadata_json);
  EXPECT_EQ(metadata.signature_json, sample.json);
  EXPECT_EQ(nlohmann::json::parse(metadata.facts_json), nlohmann::json::parse(testing::kFacts));
}

TEST(Store, LookingUpCreatesNothing) {
  const TemporaryDirectory dir;
  const Store store(options_for(dir / "a/b/cache"));
  EXPECT_FALSE(Sample().find(store));
  EXPECT_TRUE(store.list().empty());
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST(Store, CreatesItsDirectoryPrivateWhateverTheUmask) {
  const TemporaryDirectory dir;
  const mode_t before = ::umask(0);
  const Sample sample;
  EXPECT_TRUE(sample.publish(Store(options_for(dir / "cache"))).stored());
  ::umask(before);
  EXPECT_EQ(mode_of(dir / "cache"), 0700u);
  EXPECT_EQ(mode_of((sample.json_in(dir / "cache")).parent_path()), 0700u);
  EXPECT_EQ(mode_of(sample.cubin_in(dir / "cache")), 0600u);
}

TEST(Store, KeepsWhatAGroupSharedDirectoryGrants) {
  const TemporaryDirectory dir;
  const fs::path shared = dir / "shared";
  ASSERT_EQ(::mkdir(shared.c_str(), 0700), 0);
  ASSERT_EQ(::chmod(shared.c_str(), 02770), 0);
  const mode_t before = ::umask(022);
  const Sample sample;
  EXPECT_TRUE(sample.publish(Store(options_for(shared))).stored());
  ::umask(before);
  EXPECT_EQ(mode_of(shared), 02770u);
  EXPECT_EQ(mode_of(sample.json_in(shared).parent_path()), 02770u);
  EXPECT_EQ(mode_of(sample.json_in(shared)), 0660u);
}

TEST(Store, AnImageLayerStaysReadableByOthers) {
  const TemporaryDirectory dir;
  const fs::path baked = dir / "baked";
  ASSERT_EQ(::mkdir(baked.c_str(), 0755), 0);
  ASSERT_EQ(::chmod(baked.c_str(), 0755), 0);
  const Sample sample;
  EXPECT_TRUE(sample.publish(Store(options_for(baked))).stored());
  EXPECT_EQ(mode_of(sample.json_in(baked).parent_path()), 0755u);
  EXPECT_EQ(mode_of(sample.json_in(baked)), 0644u);
}

// Every way in which an entry can be damaged is a miss with a reason and heals at the next publish.
struct Damage {
  const char* name;
  std::vector<Miss> reasons;
  std::function<void(const Sample&, const fs::path& directory)> inflict;
};

void flip(const fs::path& file, std::size_t at) {
  std::string bytes = read_all(file);
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  write_all(file, bytes);
}

const std::vector<Damage>& damages() {
  static const std::vector<Damage> kDamages = {
      {"cubin empty", {Miss::kCubinSize}, [](auto& s, auto& d) { write_all(s.cubin_in(d), ""); }},
      {"cubin of one byte",
       {Miss::kCubinSize},
       [](auto& s, auto& d) { write_all(s.cubin_in(d), s.cubin.substr(0, 1)); }},
      {"half a cubin",
       {Miss::kCubinSize},
       [](auto& s, auto& d) { write_all(s.cubin_in(d), s.cubin.substr(0, s.cubin.size() / 2)); }},
      {"longer cubin", {Miss::kCubinSize}, [](auto& s, auto& d) { write_all(s.cubin_in(d), s.cubin + "x"); }},
      {"flipped cubin", {Miss::kCubinHash}, [](auto& s, auto& d) { flip(s.cubin_in(d), 500); }},
      {"no cubin", {Miss::kCubinMissing}, [](auto& s, auto& d) { fs::remove(s.cubin_in(d)); }},
      {"cubin is a directory",
       {Miss::kUnreadable},
       [](auto& s, auto& d) {
         fs::remove(s.cubin_in(d));
         fs::create_directory(s.cubin_in(d));
       }},
      {"no metadata", {Miss::kAbsent}, [](auto& s, auto& d) { fs::remove(s.json_in(d)); }},
      {"metadata empty", {Miss::kMalformed}, [](auto& s, auto& d) { write_all(s.json_in(d), ""); }},
      {"metadata of one byte", {Miss::kMalformed}, [](auto& s, auto& d) { write_all(s.json_in(d), "{"); }},
      {"half the metadata",
       {Miss::kMalformed},
       [](auto& s, auto& d) {
         const auto t = read_all(s.json_in(d));
         write_all(s.json_in(d), t.substr(0, t.size() / 2));
       }},
      {"foreign JSON", {Miss::kMalformed}, [](auto& s, auto& d) { write_all(s.json_in(d), R"({"hello":"world"})"); }},
      {"a list", {Miss::kMalformed}, [](auto& s, auto& d) { write_all(s.json_in(d), "[1,2]"); }},
      {"deep nesting",
       {Miss::kMalformed},
       [](auto& s, auto& d) { write_all(s.json_in(d), std::string(1 << 20, '[')); }},
      {"no JSON", {Miss::kMalformed}, [](auto& s, auto& d) { write_all(s.json_in(d), std::string("\0\xff\xfe", 3)); }},
      {"metadata far too large",
       {Miss::kMalformed},
       [](auto& s, auto& d) { fs::resize_file(s.json_in(d), 200u << 20); }},
      {"metadata is a FIFO",
       {Miss::kUnreadable},
       [](auto& s, auto& d) {
         fs::remove(s.json_in(d));
         ASSERT_EQ(::mkfifo(s.json_in(d).c_str(), 0600), 0);
       }},
      {"planted entry of another kernel",
       {Miss::kForeign},
       [](auto& s, auto& d) {
         const Sample other("another_kernel");
         const TemporaryDirectory elsewhere;
         ASSERT_TRUE(other.publish(Store(options_for(elsewhere.path()))).stored());
         fs::copy_file(other.json_in(elsewhere.path()), s.json_in(d), fs::copy_options::overwrite_existing);
         fs::copy_file(other.cubin_in(elsewhere.path()), s.cubin_in(d), fs::copy_options::overwrite_existing);
       }},
      {"consistent entry with a cubin for another architecture",
       {Miss::kWrongArch},
       [](auto& s, auto& d) {
         Metadata m = Metadata::parse(read_all(s.json_in(d)));
         const std::string cubin = make_cubin(100);
         m.cubin_sha256 = sha256_hex(cubin);
         write_all(s.cubin_in(d), cubin);
         write_all(s.json_in(d), m.to_json());
       }},
      {"consistent entry whose cubin is a shell script",
       {Miss::kNotCubin},
       [](auto& s, auto& d) {
         Metadata m = Metadata::parse(read_all(s.json_in(d)));
         const std::string script = "#!/bin/sh\n";
         m.cubin_sha256 = sha256_hex(script);
         m.cubin_bytes = script.size();
         write_all(s.cubin_in(d), script);
         write_all(s.json_in(d), m.to_json());
       }},
  };
  return kDamages;
}

TEST(Store, EveryDamageIsAMissWithItsReasonAndHeals) {
  for (const Damage& damage : damages()) {
    SCOPED_TRACE(damage.name);
    const TemporaryDirectory dir;
    const Sample sample;
    const Store store(options_for(dir.path()));
    ASSERT_TRUE(sample.publish(store).stored());
    damage.inflict(sample, dir.path());
    const Lookup broken = sample.find(store);
    ASSERT_FALSE(broken);
    EXPECT_EQ(broken.reason, damage.reasons[0]) << to_string(broken.reason) << " " << broken.detail;
    EXPECT_EQ(broken.detail.empty(), broken.reason == Miss::kAbsent);
    EXPECT_EQ(store.counters().misses[static_cast<int>(damage.reasons[0])], 1u);
    const Publication again = sample.publish(store);
    EXPECT_EQ(again.stored(), std::string(damage.name) != "cubin is a directory") << again.detail;
    if (!again.stored()) continue;
    const Lookup healed = sample.find(store);
    ASSERT_TRUE(healed) << healed.detail;
    EXPECT_EQ(healed.hit->cubin, sample.cubin);
  }
}

TEST(Store, NoFlippedBitAnywhereGoesUnnoticed) {
  const TemporaryDirectory dir;
  const Sample sample("all_reduce_example", 64);
  const Store store(options_for(dir.path()));
  ASSERT_TRUE(sample.publish(store).stored());
  for (const fs::path& file : {sample.json_in(dir.path()), sample.cubin_in(dir.path())}) {
    const std::string intact = read_all(file);
    for (std::size_t i = 0; i < intact.size(); ++i) {
      flip(file, i);
      ASSERT_FALSE(sample.find(store)) << file << " at " << i;
      write_all(file, intact);
    }
    ASSERT_TRUE(sample.find(store));
  }
}

TEST(Store, AnIntactEntryIsKeptAndADifferentCubinIsTold) {
  const TemporaryDirectory dir;
  const Sample sample;
  const Store store(options_for(dir.path()));
  ASSERT_EQ(sample.publish(store).result, Publication::Result::kStored);
  Publication second = sample.publish(store);
  EXPECT_EQ(second.result, Publication::Result::kKept);
  EXPECT_EQ(second.detail, "");
  second = store.publish(sample.key, sample.json, make_cubin(90, 1000, 'z'), testing::kFacts);
  EXPECT_EQ(second.result, Publication::Result::kKept);
  EXPECT_NE(second.detail, "");
  EXPECT_EQ(sample.find(store).hit->cubin, sample.cubin);
}

TEST(Store, RefusesToPublishWhatFindWouldNotReturn) {
  const TemporaryDirectory dir;
  const Sample sample;
  const Store store(options_for(dir / "cache"));
  const auto result = [&](const std::string& key, const std::string& json, const std::string& cubin,
                          const std::string& facts) { return store.publish(key, json, cubin, facts).result; };
  using Result = Publication::Result;
  EXPECT_EQ(result(std::string(64, '0'), sample.json, sample.cubin, "{}"), Result::kInvalid);
  EXPECT_EQ(result("../../etc/passwd", sample.json, sample.cubin, "{}"), Result::kInvalid);
  EXPECT_EQ(result(sha256_hex("{}"), "{}", sample.cubin, "{}"), Result::kInvalid);
  EXPECT_EQ(result(sample.key, sample.json, "", "{}"), Result::kInvalid);
  EXPECT_EQ(result(sample.key, sample.json, make_cubin(80), "{}"), Result::kInvalid);
  EXPECT_EQ(result(sample.key, sample.json, sample.cubin, ""), Result::kInvalid);
  EXPECT_EQ(result(sample.key, sample.json, sample.cubin, "[]"), Result::kInvalid);
  EXPECT_FALSE(fs::exists(dir / "cache"));
  EXPECT_FALSE(store.find("../../etc/passwd", sample.json));
}

TEST(Store, ALogThatIsNotUtf8IsTheCallersFaultAndNoException) {
  const TemporaryDirectory dir;
  const Sample sample;
  const Store store(options_for(dir.path()));
  EXPECT_EQ(store.publish(sample.key, sample.json, sample.cubin, "{\"log\":\"\xff\"}").result,
            Publication::Result::kInvalid);
}

TEST(Store, AFileInTheWayOfTheDirectoryIsOneWarningNotAnError) {
  const TemporaryDirectory dir;
  write_all(dir / "file", "x");
  std::vector<std::string> warnings;
  const Store store(options_for(dir / "file/cache", &warnings));
  for (const char* kernel : {"a", "b"}) {
    const Sample sample(kernel);
    EXPECT_FALSE(sample.find(store));
    EXPECT_EQ(sample.publish(store).result, Publication::Result::kFailed);
  }
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("COMMFUSE_CACHE_DIR"), std::string::npos) << warnings[0];
  EXPECT_EQ(store.counters().store_failed, 2u);
}

TEST(Store, WithoutAnyLayerEverythingIsAMissAndNothingIsStored) {
  const Store store{StoreOptions{}};
  const Sample sample;
  EXPECT_EQ(sample.find(store).reason, Miss::kUncached);
  EXPECT_EQ(sample.publish(store).result, Publication::Result::kUncached);
}

TEST(Store, ReadOnlyLayersAreSearchedInOrderBelowTheWritableOne) {
  const TemporaryDirectory dir;
  const Sample in_a("kernel_a"), in_b("kernel_b");
  ASSERT_TRUE(in_a.publish(Store(options_for(dir / "a"))).stored());
  for (const Sample* s : {&in_a, &in_b}) ASSERT_TRUE(s->publish(Store(options_for(dir / "b"))).stored());
  StoreOptions options = options_for(dir / "w");
  options.directories.readonly = {dir / "missing", dir / "a", dir / "b"};
  const Store store(options);
  EXPECT_EQ(in_a.find(store).hit->origin, dir / "a");
  EXPECT_EQ(in_b.find(store).hit->origin, dir / "b");
  EXPECT_FALSE(fs::exists(dir / "w")) << "a hit must copy nothing";
  EXPECT_FALSE(fs::exists(dir / "missing"));

  // A damaged entry of one layer is passed over for an intact one below.
  flip(in_a.cubin_in(dir / "a"), 300);
  EXPECT_EQ(in_a.find(store).hit->origin, dir / "b");
  // If no layer has it intact, the reason is that of the damage, and a publish goes to the writable layer alone.
  flip(in_a.cubin_in(dir / "b"), 300);
  EXPECT_EQ(in_a.find(store).reason, Miss::kCubinHash);
  EXPECT_TRUE(in_a.publish(store).stored());
  EXPECT_EQ(in_a.find(store).hit->origin, dir / "w");
  EXPECT_EQ(files_below(dir / "a"), 2u);
}

TEST(Store, AHitInAReadOnlyLayerLeavesItsTimesAlone) {
  const TemporaryDirectory dir;
  const Sample sample;
  ASSERT_TRUE(sample.publish(Store(options_for(dir / "ro"))).stored());
  const fs::file_time_type old = fs::file_time_type::clock::now() - std::chrono::hours(50);
  fs::last_write_time(sample.json_in(dir / "ro"), old);
  StoreOptions options;
  options.directories.readonly = {dir / "ro"};
  ASSERT_TRUE(sample.find(Store(options)));
  EXPECT_EQ(fs::last_write_time(sample.json_in(dir / "ro")), old);
  ASSERT_TRUE(sample.find(Store(options_for(dir / "ro"))));
  EXPECT_GT(fs::last_write_time(sample.json_in(dir / "ro")), old + std::chrono::hours(49));
}

TEST(Store, SkewedTimesDoNotMatterForALookUp) {
  const TemporaryDirectory dir;
  const Sample sample;
  const Store store(options_for(dir.path()));
  ASSERT_TRUE(sample.publish(store).stored());
  for (const int hours : {-200000, 200000}) {
    for (const fs::path& file : {sample.json_in(dir.path()), sample.cubin_in(dir.path())}) {
      fs::last_write_time(file, fs::file_time_type::clock::now() + std::chrono::hours(hours));
    }
    EXPECT_TRUE(sample.find(store));
  }
}

TEST(Store, FollowsADirectoryThatIsRemovedAndMadeAgain) {
  const TemporaryDirectory dir;
  const Sample sample;
  const Store store(options_for(dir / "cache"));
  ASSERT_TRUE(sample.publish(store).stored());
  fs::remove_all(dir / "cache");
  EXPECT_EQ(sample.find(store).reason, Miss::kAbsent);
  EXPECT_EQ(sample.publish(store).result, Publication::Result::kStored);
  EXPECT_TRUE(sample.find(store));
}

TEST(Store, ListsWhatIsThereWhateverItsState) {
  const TemporaryDirectory dir;
  const Sample good("good"), cut("cut"), bare("bare");
  const Store store(options_for(dir.path()));
  for (const Sample* s : {&good, &cut, &bare}) ASSERT_TRUE(s->publish(store).stored());
  write_all(cut.json_in(dir.path()), "{");
  fs::remove(bare.json_in(dir.path()));
  write_all(dir / "README", "not an entry");
  write_all(dir / "zz/file.json", "not an entry");
  const std::vector<EntryInfo> entries = store.list();
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_TRUE(std::is_sorted(entries.begin(), entries.end(), [](auto& a, auto& b) { return a.key < b.key; }));
  for (const EntryInfo& entry : entries) {
    EXPECT_EQ(entry.problem.empty(), entry.key == good.key) << entry.problem;
    EXPECT_TRUE(entry.writable);
    if (entry.key != good.key) continue;
    EXPECT_EQ(entry.kernel, "good");
    EXPECT_EQ(entry.arch, "sm_90a");
    EXPECT_EQ(entry.cubin_bytes, good.cubin.size());
    EXPECT_GT(entry.disk_bytes, entry.cubin_bytes);
    EXPECT_GT(entry.created_unix, 1'600'000'000);
  }
}

}  // namespace
}  // namespace commfuse::cache
