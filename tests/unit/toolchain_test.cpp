#include "runtime/toolchain.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cache/sha256.hpp"
#include "cache/strict_json.hpp"
#include "jit_support.hpp"
#include "runtime/compiler.hpp"

namespace commfuse::runtime {
namespace {

namespace fs = std::filesystem;

cache::Directories directories(const fs::path& writable, const std::vector<fs::path>& readonly = {}) {
  cache::Directories result;
  result.writable = writable;
  result.readonly = readonly;
  return result;
}

/// The one file in `cache`/toolchains.
fs::path record_in(const fs::path& cache) {
  for (const auto& entry : fs::directory_iterator(cache / "toolchains")) return entry.path();
  return {};
}

TEST(Toolchain, ANewerOneIsTakenAlthoughAnOldOneIsFoundFirst) {
  const test::TemporaryFolder folder;
  test::copy_nvrtc_shim(folder.path() / "old", 11);
  const std::string newer = test::copy_nvrtc_shim(folder.path() / "new");
  Env env;
  env.ignore_toolkit = true;
  env.ld_library_path = (folder / "old") + ":" + (folder / "new");
  Toolchains toolchains(env, ToolchainMemo({}));
  EXPECT_EQ(toolchains.for_arch("sm_90a").path(), newer);
  ASSERT_EQ(toolchains.rejected().size(), 1u);
  EXPECT_NE(toolchains.rejected()[0].find("11.1"), std::string::npos);
}

TEST(Toolchain, OneThatTheDriverCanFollowIsTakenBeforeANewerOne) {
  const test::TemporaryFolder folder;
  const std::string newer = test::copy_nvrtc_shim(folder.path());
  const std::string older = test::copy_nvrtc_shim(folder.path(), 12);
  const auto chosen = [&](int driver_version) {
    Toolchains toolchains(test::only(folder.path()), ToolchainMemo({}), driver_version);
    return toolchains.for_arch("sm_90a").path();
  };
  EXPECT_EQ(chosen(0), newer);
  EXPECT_EQ(chosen(99000), newer);
  EXPECT_EQ(chosen(12040), older);
  EXPECT_EQ(chosen(11080), newer);  // none fits: the kernels are worth a try
}

TEST(Toolchain, AnUnknownArchitectureIsAnErrorWithEveryVersionAndPlace) {
  const test::TemporaryFolder folder;
  const std::string file = test::copy_nvrtc_shim(folder.path());
  Toolchains toolchains(test::only(file), ToolchainMemo({}));
  const Error error = test::error_of([&] { (void)toolchains.for_arch("sm_120a"); });
  EXPECT_EQ(error.code(), Code::kUnsupported);
  EXPECT_NE(error.message().find("sm_120a"), std::string::npos);
  EXPECT_NE(error.cause().find(file + " (from COMMFUSE_NVRTC) is version 99.1 and supports sm_70, sm_80, sm_90"),
            std::string::npos)
      << error.cause();
}

TEST(Toolchain, NoneAtAllIsAnErrorWithEveryPlaceThatWasLookedAt) {
  const test::TemporaryFolder folder;
  Toolchains toolchains(test::only(folder.path()), ToolchainMemo({}));
  const Error error = test::error_of([&] { (void)toolchains.for_arch("sm_90a"); });
  EXPECT_EQ(error.code(), Code::kNotFound);
  EXPECT_NE(error.cause().find("looked at:\n  " + folder.path().string()), std::string::npos) << error.cause();

  Env env;
  env.ld_library_path = folder / "a";
  env.xdg_data_home = folder / "data";
  const std::vector<std::string> places = Toolchains(env, ToolchainMemo({})).looked_at();
  for (const std::string& place :
       {folder / "a", folder / "data/commfuse/cuda/lib", std::string("/usr/local/cuda/lib64")}) {
    EXPECT_NE(std::find(places.begin(), places.end(), place), places.end()) << place;
  }
}

TEST(Toolchain, TellsTheBuildAndRemembersItWithoutOpeningTheLibraryAgain) {
  const test::TemporaryFolder folder;
  const fs::path cache = folder.path() / "cache";
  const std::string first = test::copy_nvrtc_shim(folder.path() / "a");
  const std::uint64_t before = nvrtc_calls();
  Toolchains fresh(test::only(first), ToolchainMemo(directories(cache)));
  EXPECT_EQ(fresh.for_arch("sm_90a").build(), "99.1.42 CL-12345678");
  EXPECT_EQ(nvrtc_calls(), before + 1);

  // The same bytes under another path, as in another container: still known.
  const std::string second = test::copy_nvrtc_shim(folder.path() / "b");
  Toolchains again(test::only(second), ToolchainMemo(directories(cache)));
  Toolchain& known = again.for_arch("sm_90a");
  EXPECT_EQ(known.build(), "99.1.42 CL-12345678");
  EXPECT_EQ(known.version(), (NvrtcVersion{99, 1}));
  EXPECT_EQ(nvrtc_calls(), before + 1);
  EXPECT_FALSE(test::is_open(second));

  // And from a layer that is never written.
  Toolchains layered(test::only(second), ToolchainMemo(directories({}, {cache})));
  EXPECT_EQ(layered.for_arch("sm_90a").build(), "99.1.42 CL-12345678");
  EXPECT_FALSE(test::is_open(second));
}

TEST(Toolchain, AnotherBuildOfTheLibraryIsNotTakenForTheOneRemembered) {
  const test::TemporaryFolder folder;
  const std::string one = test::copy_nvrtc_shim(folder.path() / "a");
  const std::string two = test::copy_nvrtc_shim(folder.path() / "b");
  EXPECT_EQ(fingerprint(one), fingerprint(two));
  std::fstream file(two, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(64);
  file.put('\x7f');
  file.close();
  EXPECT_NE(fingerprint(one), fingerprint(two));
  EXPECT_EQ(fingerprint(folder / "missing"), "");
}

TEST(Toolchain, ADamagedRecordIsAsIfItWereNotThere) {
  const test::TemporaryFolder folder;
  const std::string file = test::copy_nvrtc_shim(folder.path());
  const ToolchainMemo memo(directories(folder.path() / "cache"));
  const NvrtcFacts facts{{99, 1}, {80, 90}, "99.1.42 CL-1"};
  const std::string key = fingerprint(file);
  memo.remember(key, facts);
  ASSERT_TRUE(memo.find(key));
  EXPECT_EQ(memo.find(key)->build, facts.build);
  EXPECT_EQ(memo.find(key)->archs, facts.archs);

  const fs::path record = record_in(folder.path() / "cache");
  std::string text;
  std::getline(std::ifstream(record), text);
  for (std::size_t at = 0; at < text.size(); ++at) {
    std::string damaged = text;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x02);
    std::ofstream(record) << damaged;
    EXPECT_FALSE(memo.find(key)) << damaged;
  }
  std::ofstream(record) << text.substr(0, text.size() / 2);
  EXPECT_FALSE(memo.find(key));
  memo.remember(key, facts);
  EXPECT_TRUE(memo.find(key));
}

TEST(Toolchain, ARecordWithOtherNumbersIsIgnoredAlthoughItsChecksumIsRight) {
  const test::TemporaryFolder folder;
  const ToolchainMemo memo(directories(folder.path() / "cache"));
  const std::string key(64, 'a');
  memo.remember(key, {{99, 1}, {90}, "99.1.42 CL-1"});
  const fs::path file = record_in(folder.path() / "cache");
  nlohmann::json record = nlohmann::json::parse(std::ifstream(file));
  record.erase("check");
  const auto write = [&](nlohmann::json changed) {
    changed["check"] = cache::sha256_hex(cache::canonical(changed));
    std::ofstream(file) << cache::canonical(changed);
  };
  write(record);
  ASSERT_TRUE(memo.find(key));
  for (const nlohmann::json& number : {nlohmann::json(1e30), nlohmann::json(1.0), nlohmann::json(-1),
                                       nlohmann::json(std::uint64_t{1} << 40), nlohmann::json("1")}) {
    for (const char* place : {"/schema", "/archs/0", "/version/0", "/version/1"}) {
      nlohmann::json changed = record;
      changed[nlohmann::json::json_pointer(place)] = number;
      write(changed);
      EXPECT_FALSE(memo.find(key)) << place << ' ' << number;
    }
  }
}

TEST(Toolchain, RecordsInADirectoryThatOthersCanWriteToAreIgnored) {
  const test::TemporaryFolder folder;
  const fs::path cache = folder.path() / "cache";
  const ToolchainMemo memo(directories(cache));
  memo.remember(std::string(64, 'a'), {{99, 1}, {90}, "99.1.42 CL-1"});
  ASSERT_TRUE(memo.find(std::string(64, 'a')));
  ASSERT_EQ(chmod(cache.c_str(), 0777), 0);
  EXPECT_FALSE(memo.find(std::string(64, 'a')));
}

TEST(Toolchain, WithoutADirectoryNothingIsRemembered) {
  const ToolchainMemo memo({});
  memo.remember(std::string(64, 'a'), {{99, 1}, {90}, "99.1.42 CL-1"});
  EXPECT_FALSE(memo.find(std::string(64, 'a')));
}

TEST(Toolchain, ReadsTheVersionInABuild) {
  EXPECT_EQ(version_of("13.0.88 CL-36424714"), (NvrtcVersion{13, 0}));
  EXPECT_EQ(version_of("12.9.86"), (NvrtcVersion{12, 9}));
  for (const char* wrong : {"", "13", "CL-1", "13.x"}) EXPECT_EQ(version_of(wrong), (NvrtcVersion{0, 0})) << wrong;
}

}  // namespace
}  // namespace commfuse::runtime
