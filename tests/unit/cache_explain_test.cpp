#include "cache/explain.hpp"

#include <gtest/gtest.h>

#include "unit/cache_testing.hpp"

namespace commfuse::cache {
namespace {

using testing::make_signature;
using Lines = std::vector<std::string>;

TEST(Explain, NamesEachKindOfDifference) {
  const Signature old = make_signature();
  const auto diff = [&](const std::function<void(Signature&)>& change) {
    Signature s = old;
    change(s);
    return differences(old.to_json(), s.to_json());
  };
  EXPECT_EQ(diff([](Signature&) {}), Lines{});
  EXPECT_EQ(diff([](Signature& s) { s.nvrtc_build = "13.1.12 CL-7"; }),
            Lines{"nvrtc 13.0.88 CL-36424714 -> 13.1.12 CL-7"});
  EXPECT_EQ(diff([](Signature& s) { s.headers_sha256["device/ptx.cuh"] = std::string(64, '9'); }),
            Lines{"header device/ptx.cuh changed"});
  EXPECT_EQ(diff([](Signature& s) {
              s.headers_sha256.erase("device/ptx.cuh");
              s.headers_sha256["new.cuh"] = std::string(64, '9');
            }),
            (Lines{"header new.cuh added", "header device/ptx.cuh removed"}));
  EXPECT_EQ(diff([](Signature& s) { s.options[1] = "--maximal"; }),
            (Lines{"option --maximal added", "option --minimal removed"}));
  EXPECT_EQ(diff([](Signature& s) { std::swap(s.options[0], s.options[1]); }),
            Lines{"options in another order or number"});
  EXPECT_EQ(diff([](Signature& s) { s.source_sha256 = std::string(64, '9'); }), Lines{"generated source changed"});
  EXPECT_EQ(
      diff([](Signature& s) { s.spec_json = R"({"arch":"sm_90a","hidden_size":7168,"new":true,"world_size":4})"; }),
      (Lines{"spec /new added: true", "spec /world_size 8 -> 4", "spec /op removed: \"all_reduce\""}));
  EXPECT_EQ(differences("{", old.to_json()).size(), 1u);
}

TEST(Explain, PicksTheNearestEntryOfTheSameKernel) {
  const testing::TemporaryDirectory dir;
  const Store store(testing::options_for(dir.path()));
  const auto publish = [&](const Signature& s) {
    ASSERT_TRUE(store.publish(s.key(), s.to_json(), testing::make_cubin(), testing::kFacts).stored());
  };
  Signature far = make_signature("k"), near = make_signature("k"), other = make_signature("other");
  far.nvrtc_build = "12.4.1 CL-1";
  far.headers_sha256["all_reduce.cuh"] = std::string(64, '8');
  near.nvrtc_build = "12.9.1 CL-2";
  for (const Signature& s : {far, near, other}) publish(s);

  const Explanation why = explain(store.list(), make_signature("k").to_json());
  EXPECT_EQ(why.nearest_key, near.key());
  EXPECT_EQ(why.changes, Lines{"nvrtc 12.9.1 CL-2 -> 13.0.88 CL-36424714"});
  EXPECT_NE(why.summary.find("nvrtc 12.9.1 CL-2 -> 13.0.88"), std::string::npos);
  EXPECT_EQ(explain(store.list(), make_signature("unknown").to_json()).summary, "no entry of unknown");
  EXPECT_NE(explain(store.list(), "[").summary.find("cannot be read"), std::string::npos);
}

}  // namespace
}  // namespace commfuse::cache
