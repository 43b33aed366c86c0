#include "cache/signature.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validator.hpp>

#include "cache/sha256.hpp"
#include "commfuse/error.hpp"
#include "unit/cache_testing.hpp"

namespace commfuse::cache {
namespace {

using testing::make_signature;

const std::filesystem::path kGolden = std::filesystem::path(COMMFUSE_SOURCE_DIR) / "tests/unit/golden/signature.json";

template <typename F>
Code code_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_FALSE(e.cause().empty());
    return e.code();
  }
  return Code::kOk;
}

TEST(Sha256, MatchesPublishedVectorsInOnePieceAndInMany) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 hash;
  for (const char c : std::string("abc")) hash.update({&c, 1});
  EXPECT_EQ(hash.hex(), sha256_hex("abc"));
}

TEST(Signature, TextAndKeyAreThoseOfTheGoldenFile) {
  // A difference here changes every key of every cache in the field: raise Signature::kSchema if it is intended.
  const std::string golden = testing::read_all(kGolden);
  EXPECT_EQ(make_signature().to_json() + "\n", golden);
  EXPECT_EQ(make_signature().key(), "951a0b18be8fd18921ac05887a99948b0842b6b8444c9ab1d0803a598d60e447");
}

TEST(Signature, FollowsItsPublishedSchema) {
  const auto schema_json = nlohmann::json::parse(
      testing::read_all(std::filesystem::path(COMMFUSE_SOURCE_DIR) / "schemas/signature.schema.json"));
  valijson::Schema schema;
  valijson::SchemaParser().populateSchema(valijson::adapters::NlohmannJsonAdapter(schema_json), schema);
  const auto valid = [&](const nlohmann::json& json) {
    valijson::Validator validator;
    return validator.validate(schema, valijson::adapters::NlohmannJsonAdapter(json), nullptr);
  };
  nlohmann::json json = nlohmann::json::parse(make_signature().to_json());
  EXPECT_TRUE(valid(json));
  for (const char* member : {"arch", "headers", "kernel", "nvrtc", "options", "schema", "source", "spec"}) {
    nlohmann::json without = json;
    without.erase(member);
    EXPECT_FALSE(valid(without)) << member;
  }
  json["host"] = "h";
  EXPECT_FALSE(valid(json));
}

TEST(Signature, EveryInputChangesTheKey) {
  const std::vector<std::function<void(Signature&)>> changes = {
      [](Signature& s) { s.kernel += "_"; },
      [](Signature& s) { s.spec_json = R"({"hidden_size":7169})"; },
      [](Signature& s) { s.source_sha256[63] = '2'; },
      [](Signature& s) { s.headers_sha256["device/ptx.cuh"][0] = '0'; },
      [](Signature& s) { s.headers_sha256["new.cuh"] = std::string(64, '0'); },
      [](Signature& s) { s.headers_sha256.erase("device/ptx.cuh"); },
      [](Signature& s) { std::swap(s.options[0], s.options[1]); },
      [](Signature& s) { s.options.push_back("-DX=1"); },
      [](Signature& s) { s.options = {s.options[0] + s.options[1]}; },
      [](Signature& s) { s.nvrtc_build = "13.0.88 CL-36424715"; },
      [](Signature& s) { s.arch = "sm_90"; },
  };
  std::set<std::string> keys = {make_signature().key()};
  for (const auto& change : changes) {
    Signature s = make_signature();
    change(s);
    keys.insert(s.key());
  }
  EXPECT_EQ(keys.size(), changes.size() + 1);
}

TEST(Signature, ParseReturnsWhatWasWritten) {
  const Signature s = make_signature();
  EXPECT_EQ(Signature::parse(s.to_json()), s);
}

TEST(Signature, RefusesWhatItCannotKeySafely) {
  const auto refused = [](const std::function<void(Signature&)>& change) {
    Signature s = make_signature();
    change(s);
    return code_of([&] { (void)s.to_json(); }) == Code::kInvalidArgument;
  };
  EXPECT_FALSE(refused([](Signature&) {}));
  EXPECT_TRUE(refused([](Signature& s) { s.schema = 2; }));
  for (const char* kernel : {"", "a b", "a/b", "a\n"}) EXPECT_TRUE(refused([&](Signature& s) { s.kernel = kernel; }));
  for (const char* spec : {"", "1", "[]", "{\"a\":1,\"a\":1}", "{ }", "{\"b\":1,\"a\":1}", "{\"a\":\"\xff\"}"}) {
    EXPECT_TRUE(refused([&](Signature& s) { s.spec_json = spec; })) << spec;
  }
  EXPECT_TRUE(refused([](Signature& s) { s.source_sha256 = "12"; }));
  EXPECT_TRUE(refused([](Signature& s) { s.headers_sha256["a.cuh"] = std::string(64, 'A'); }));
  for (const char* header : {"/usr/include/a.h", "../a.h", "a b", ""}) {
    EXPECT_TRUE(refused([&](Signature& s) { s.headers_sha256[header] = std::string(64, '0'); })) << header;
  }
  for (const char* option :
       {"-I/usr/include", "-I", "--include-path=/x", "--pre-include=a.h", "--use-pch=f", "--pch", ""}) {
    EXPECT_TRUE(refused([&](Signature& s) { s.options.push_back(option); })) << option;
  }
  for (const char* build : {"", "CL-1", "13.0 /usr/lib", "13\n"}) {
    EXPECT_TRUE(refused([&](Signature& s) { s.nvrtc_build = build; }));
  }
  for (const char* arch : {"", "sm_9", "sm_1000", "sm_90b", "compute_90", "sm_90aa"}) {
    EXPECT_TRUE(refused([&](Signature& s) { s.arch = arch; })) << arch;
  }
}

TEST(Signature, ParseRefusesAllButTheCanonicalText) {
  const std::string good = make_signature().to_json();
  const auto code = [](const std::string& text) { return code_of([&] { (void)Signature::parse(text); }); };
  ASSERT_EQ(code(good), Code::kOk);
  nlohmann::json json = nlohmann::json::parse(good);
  EXPECT_EQ(code(json.dump(1)), Code::kInvalidInput);
  EXPECT_EQ(code(good + " "), Code::kInvalidInput);
  EXPECT_EQ(code("{\"arch\":\"sm_80\"," + good.substr(1)), Code::kInvalidInput);  // repeated key
  for (const char* member : {"arch", "headers", "kernel", "nvrtc", "options", "schema", "source", "spec"}) {
    nlohmann::json changed = json;
    changed[member] = nullptr;
    EXPECT_EQ(code(changed.dump()), Code::kInvalidInput) << member;
    changed.erase(member);
    EXPECT_EQ(code(changed.dump()), Code::kInvalidInput) << member;
  }
  json["schema"] = 1.0;
  EXPECT_EQ(code(json.dump()), Code::kInvalidInput);
  json["schema"] = 1;
  json["path"] = "/tmp";
  EXPECT_EQ(code(json.dump()), Code::kInvalidInput);
  for (std::size_t n = 0; n < good.size(); ++n) {
    EXPECT_EQ(code(good.substr(0, n)), Code::kInvalidInput) << "cut to " << n;
  }
}

TEST(Signature, HostileTextEndsInAnError) {
  const auto code = [](const std::string& text) { return code_of([&] { (void)Signature::parse(text); }); };
  EXPECT_EQ(code(std::string(1 << 20, '[')), Code::kInvalidInput);
  EXPECT_EQ(code(std::string((1 << 20) + 1, ' ')), Code::kInvalidInput);
  EXPECT_EQ(code("{\"schema\":1e999}"), Code::kInvalidInput);
  EXPECT_EQ(code("{\"schema\":1e30}"), Code::kInvalidInput);
  EXPECT_EQ(code("{\"schema\":99999999999999999999}"), Code::kInvalidInput);
  EXPECT_EQ(code("{\"kernel\":\"\xc3\x28\"}"), Code::kInvalidInput);
  EXPECT_EQ(code(std::string("{\0}", 3)), Code::kInvalidInput);
  EXPECT_EQ(code("null"), Code::kInvalidInput);
}

}  // namespace
}  // namespace commfuse::cache
