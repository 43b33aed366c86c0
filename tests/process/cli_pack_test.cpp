// pack, unpack and diff.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "process/cli_small_cache.hpp"

namespace commfuse::test {
namespace {

using std::string;

class CliPack : public CopiedCache {
 protected:
  [[nodiscard]] Outcome unpack_to(const string& folder, std::vector<string> options = {}) const {
    options.insert(options.begin(), {"unpack", at("small.pack"), "--cache-dir", at(folder), "--json"});
    return run_commfuse(options);
  }
  const SmallCache& small_ = SmallCache::get();
};

TEST_F(CliPack, PackedKernelsArriveInAnotherCacheWhole) {
  const Outcome packed = run({"pack", at("small.pack"), "--manifest", small_.manifest()});
  ASSERT_EQ(packed.exit_code, 0) << packed.err;
  EXPECT_EQ(packed.document().at("kernels"), small_.keys().size());
  EXPECT_EQ(packed.document().at("signer"), "");
  const Outcome unpacked = unpack_to("other");
  ASSERT_EQ(unpacked.exit_code, 0) << unpacked.err;
  EXPECT_EQ(unpacked.document().at("stored"), small_.keys().size());
  EXPECT_EQ(unpack_to("other").document().at("kept"), small_.keys().size());
  EXPECT_EQ(run_commfuse({"verify", "--manifest", small_.manifest(), "--cache-dir", at("other")}).exit_code, 0);
  EXPECT_EQ(run_commfuse({"diff", cache(), at("other")}).exit_code, 0);
  EXPECT_EQ(run_commfuse({"diff", at("small.pack"), at("other")}).exit_code, 0);
}

TEST_F(CliPack, PackIsALayerWithoutBeingUnpacked) {
  ASSERT_EQ(run({"pack", at("small.pack")}).exit_code, 0);
  const Outcome outcome = run_commfuse({"verify", "--manifest", small_.manifest(), "--cache-dir", at("empty")},
                                       {{"COMMFUSE_CACHE_READONLY", at("small.pack")}});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
}

TEST_F(CliPack, OnlyASignatureOfATrustedKeyCounts) {
  const Outcome packed = run({"pack", at("small.pack"), "--sign", at("release.key"), "--new-key"});
  ASSERT_EQ(packed.exit_code, 0) << packed.err;
  EXPECT_EQ(unpack_to("other", {"--trust", at("release.key.pub")}).exit_code, 0);
  ASSERT_EQ(run({"pack", at("second.pack"), "--sign", at("other.key"), "--new-key"}).exit_code, 0);
  const Outcome refused = unpack_to("third", {"--trust", at("other.key.pub")});
  EXPECT_EQ(refused.exit_code, 2) << refused.out;
  EXPECT_FALSE(std::filesystem::exists(at("third")));
  EXPECT_EQ(run({"pack", at("small.pack"), "--sign", at("release.key"), "--new-key"}).exit_code, 1)
      << "a key was overwritten";
  EXPECT_EQ(run({"pack", at("small.pack"), "--sign", at("release.key")}).document().at("signer"),
            packed.document().at("signer"));
}

TEST_F(CliPack, DamagedPackChangesNothing) {
  ASSERT_EQ(run({"pack", at("small.pack")}).exit_code, 0);
  std::fstream file(at("small.pack"), std::ios::in | std::ios::out | std::ios::binary);
  const auto middle = static_cast<std::streamoff>(std::filesystem::file_size(at("small.pack")) / 2);
  file.seekg(middle);
  const int before = file.get();
  file.seekp(middle);
  file.put(static_cast<char>(before ^ 1));
  file.close();
  const Outcome outcome = unpack_to("other");
  EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
  EXPECT_FALSE(std::filesystem::exists(at("other")));
}

TEST_F(CliPack, MissingKernelOfTheManifestIsAFailure) {
  std::filesystem::remove(entry_file(small_.keys()[0], ".json"));
  const Outcome outcome = run({"pack", at("small.pack"), "--manifest", small_.manifest()});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.err.find(small_.keys()[0]), string::npos) << outcome.err;
  EXPECT_FALSE(std::filesystem::exists(at("small.pack")));
}

TEST_F(CliPack, DiffNamesWhatOnlyOneSideHas) {
  const string& gone = small_.keys()[0];
  std::filesystem::remove(entry_file(gone, ".json"));
  const Outcome outcome = run_commfuse({"diff", small_.cache(), cache(), "--json"});
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  ASSERT_EQ(outcome.document().at("only_in_first").size(), 1U);
  EXPECT_EQ(outcome.document().at("only_in_first").at(0).at("key"), gone);
  EXPECT_EQ(outcome.document().at("only_in_second").size(), 0U);
  const Outcome text = run_commfuse({"diff", cache(), small_.cache()});
  EXPECT_NE(text.out.find("+ " + gone.substr(0, 12)), string::npos) << text.out;
  EXPECT_EQ(run_commfuse({"diff", cache(), at("nothing")}).exit_code, 2);
  EXPECT_EQ(run_commfuse({"diff", cache(), small_.deployment()}).exit_code, 2) << "a file that is no pack";
}

}  // namespace
}  // namespace commfuse::test
