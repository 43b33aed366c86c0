#include "cache/manifest.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "commfuse/error.hpp"
#include "unit/cache_testing.hpp"

namespace commfuse::cache {
namespace {

using testing::options_for;
using testing::Sample;

Manifest manifest_of(const std::vector<Sample>& samples) {
  Manifest manifest;
  manifest.name = "example";
  for (const Sample& sample : samples) manifest.kernels.push_back({sample.key, sample.json});
  return manifest;
}

bool refused(const std::string& text) {
  try {
    (void)Manifest::parse(text);
  } catch (const Error& e) {
    return e.code() == Code::kInvalidInput && !e.cause().empty();
  }
  return false;
}

TEST(Manifest, SurvivesItsFile) {
  const testing::TemporaryDirectory dir;
  const Manifest manifest = manifest_of({Sample("a"), Sample("b")});
  manifest.save(dir / "m.json");
  const Manifest loaded = Manifest::load(dir / "m.json");
  EXPECT_EQ(loaded.name, "example");
  ASSERT_EQ(loaded.kernels.size(), 2u);
  EXPECT_EQ(loaded.kernels[1].key, Sample("b").key);
  EXPECT_EQ(loaded.kernels[1].signature_json, Sample("b").json);
  EXPECT_EQ(Manifest::parse(nlohmann::json::parse(manifest.to_json()).dump()).kernels.size(), 2u);
  EXPECT_THROW((void)Manifest::load(dir / "none.json"), Error);
  EXPECT_THROW(manifest.save(dir / "none/m.json"), Error);
}

TEST(Manifest, RefusesWhatIsNotOne) {
  const std::string good = manifest_of({Sample("a")}).to_json();
  ASSERT_FALSE(refused(good));
  const nlohmann::json json = nlohmann::json::parse(good);
  const auto changed = [&](const std::function<void(nlohmann::json&)>& change) {
    nlohmann::json copy = json;
    change(copy);
    return refused(copy.dump());
  };
  EXPECT_TRUE(refused(""));
  EXPECT_TRUE(refused("[]"));
  EXPECT_TRUE(refused("null"));
  EXPECT_TRUE(changed([](auto& j) { j["schema"] = 2; }));
  EXPECT_TRUE(changed([](auto& j) { j["extra"] = 2; }));
  EXPECT_TRUE(changed([](auto& j) { j.erase("name"); }));
  EXPECT_TRUE(changed([](auto& j) { j["kernels"] = "all"; }));
  EXPECT_TRUE(changed([](auto& j) { j["kernels"] = nlohmann::json::object(); }));
  EXPECT_TRUE(changed([](auto& j) { j["kernels"].push_back(j["kernels"][0]); }));
  EXPECT_TRUE(changed([](auto& j) { j["kernels"][0]["key"] = std::string(64, '0'); }));
  EXPECT_TRUE(changed([](auto& j) { j["kernels"][0]["signature"]["arch"] = "sm_80"; }));
  EXPECT_TRUE(changed([](auto& j) { j["kernels"][0]["note"] = "x"; }));
  EXPECT_TRUE(changed([](auto& j) { j["kernels"][0] = 1; }));
}

TEST(Verify, IsCompleteOnlyIfEveryKernelIsThereAndIntact) {
  const testing::TemporaryDirectory dir;
  const Store store(options_for(dir.path()));
  const std::vector<Sample> all = {Sample("a"), Sample("b"), Sample("c")};
  const Manifest manifest = manifest_of(all);
  Verification result = verify(store, manifest);
  EXPECT_EQ(result.total, 3u);
  EXPECT_EQ(result.missing.size(), 3u);
  for (const Sample& sample : all) ASSERT_TRUE(sample.publish(store).stored());
  EXPECT_TRUE(verify(store, manifest).complete());

  testing::write_all(all[1].cubin_in(dir.path()), "broken");
  result = verify(store, manifest);
  ASSERT_EQ(result.missing.size(), 1u);
  EXPECT_EQ(result.missing[0].name, "b");
  EXPECT_EQ(result.missing[0].reason, Miss::kCubinSize);
  EXPECT_NE(result.missing[0].detail, "");
  EXPECT_EQ(store.counters().hits, 0u) << "verifying is not a use";
}

TEST(Verify, SaysWhatChangedSinceTheNearestEntry) {
  const testing::TemporaryDirectory dir;
  const Store store(options_for(dir.path()));
  const Sample built("a");
  ASSERT_TRUE(built.publish(store).stored());
  Signature now = built.signature;
  now.headers_sha256["device/ptx.cuh"] = std::string(64, 'f');
  Manifest manifest;
  manifest.kernels = {{now.key(), now.to_json()}};
  const Verification result = verify(store, manifest);
  ASSERT_EQ(result.missing.size(), 1u);
  EXPECT_EQ(result.missing[0].reason, Miss::kAbsent);
  EXPECT_NE(result.missing[0].explanation.find("header device/ptx.cuh changed"), std::string::npos);
}

}  // namespace
}  // namespace commfuse::cache
