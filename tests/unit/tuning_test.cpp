// The planner's table of measured choices: reading, refusing, looking up.
#include "runtime/tuning.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validator.hpp>

#include "commfuse/error.hpp"
#include "runtime/spec_names.hpp"

namespace commfuse::runtime {
namespace {

using nlohmann::json;

json good_document() {
  return json::parse(R"({
    "schema": 1, "device": "NVIDIA H200", "sm_count": 132, "ranks_on_device": 8,
    "entries": [
      {"class": "norm", "dtype": "bf16", "hidden_size": 8192, "world_size": 8, "choices": [
        {"up_to_tokens": 16, "algorithm": "one_shot", "threads": 128, "cluster": 8, "blocks": 0},
        {"up_to_tokens": 8192, "algorithm": "two_shot", "threads": 512, "cluster": 1, "blocks": 16}]},
      {"class": "sum", "dtype": "bf16", "hidden_size": 8192, "world_size": 8, "choices": [
        {"up_to_tokens": 64, "algorithm": "one_shot", "threads": 128, "cluster": 1, "blocks": 0}]}
    ]})");
}

KernelSpec shape(Pattern pattern) {
  KernelSpec spec;
  spec.pattern = pattern;
  spec.world_size = 8;
  spec.hidden_size = 8192;
  return spec;
}

bool schema_accepts(const json& document) {
  std::ifstream file(COMMFUSE_SOURCE_DIR "/schemas/tuning.schema.json");
  const json text = json::parse(file);
  valijson::Schema schema;
  valijson::SchemaParser(valijson::SchemaParser::kDraft7)
      .populateSchema(valijson::adapters::NlohmannJsonAdapter(text), schema);
  valijson::Validator validator(valijson::Validator::kStrongTypes);
  return validator.validate(schema, valijson::adapters::NlohmannJsonAdapter(document), nullptr);
}

std::string refusal_of(const json& document) {
  try {
    (void)TuningTable::parse(document.dump());
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidInput);
    return error.cause();
  }
  return "";
}

TEST(Tuning, ReadsWhatItWrites) {
  const TuningTable table = TuningTable::parse(good_document().dump());
  EXPECT_EQ(table.device, "NVIDIA H200");
  ASSERT_EQ(table.entries.size(), 2u);
  EXPECT_EQ(table.entries[0].choices[1], (TuningChoice{8192, Algorithm::kTwoShot, {.threads = 512, .cluster = 1}, 16}));
  EXPECT_EQ(json::parse(table.to_json()), good_document());
  EXPECT_EQ(TuningTable::parse(table.to_json()), table);
  EXPECT_TRUE(schema_accepts(good_document()));
}

TEST(Tuning, FindsTheRangeThatReachesTheTokens) {
  const TuningTable table = TuningTable::parse(good_document().dump());
  const TuningEntry* entry = table.find(shape(Pattern::kResidualRmsNorm));
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(entry->at(1).up_to_tokens, 16);
  EXPECT_EQ(entry->at(16).up_to_tokens, 16);
  EXPECT_EQ(entry->at(17).up_to_tokens, 8192);
  EXPECT_EQ(entry->at(8193).up_to_tokens, 8192);
}

TEST(Tuning, FindsNothingForAnotherShape) {
  const TuningTable table = TuningTable::parse(good_document().dump());
  EXPECT_EQ(table.find(shape(Pattern::kAllReduce)), &table.entries[1]);
  EXPECT_EQ(table.find(shape(Pattern::kResidualRmsNormFp8)), nullptr);
  for (int field = 0; field < 3; ++field) {
    KernelSpec other = shape(Pattern::kAllReduce);
    if (field == 0) other.dtype = DataType::kFp16;
    if (field == 1) other.hidden_size = 4096;
    if (field == 2) other.world_size = 4;
    EXPECT_EQ(table.find(other), nullptr);
  }
}

TEST(Tuning, AppliesToTheDeviceThatWasMeasured) {
  const TuningTable table = TuningTable::parse(good_document().dump());
  EXPECT_TRUE(table.applies_to("NVIDIA H200", {.sm_count = 132, .ranks_on_device = 8}));
  EXPECT_FALSE(table.applies_to("NVIDIA H100", {.sm_count = 132, .ranks_on_device = 8}));
  EXPECT_FALSE(table.applies_to("NVIDIA H200", {.sm_count = 114, .ranks_on_device = 8}));
  EXPECT_FALSE(table.applies_to("NVIDIA H200", {.sm_count = 132, .ranks_on_device = 1}));
}

TEST(Tuning, EveryPatternHasAClassThatTheFormatCanSay) {
  for (const auto& pattern : kNames<Pattern>) EXPECT_NE(to_string(pattern_class(pattern.value)), "") << pattern.name;
  EXPECT_EQ(pattern_class(Pattern::kAllReduce), PatternClass::kSum);
  EXPECT_EQ(pattern_class(Pattern::kRmsNorm), PatternClass::kNorm);
  EXPECT_EQ(pattern_class(Pattern::kResidualRmsNormFp4), PatternClass::kQuantised);
}

/// A change to the good document after which neither the reader nor the schema may accept it.
struct BadChange {
  const char* pointer;
  json value;
};

TEST(Tuning, RefusesWhatTheSchemaRefusesAndNamesThePlace) {
  const std::vector<BadChange> changes = {
      {"/schema", 2},
      {"/device", ""},
      {"/device", 7},
      {"/sm_count", 0},
      {"/ranks_on_device", 17},
      {"/entries", json::object()},
      {"/entries/0", 3},
      {"/entries/0/class", "magic"},
      {"/entries/0/dtype", "fp8"},
      {"/entries/0/hidden_size", 0},
      {"/entries/0/hidden_size", "8192"},
      {"/entries/0/world_size", 17},
      {"/entries/0/choices", json::array()},
      {"/entries/0/choices/0/up_to_tokens", 0},
      {"/entries/0/choices/0/algorithm", "three_shot"},
      {"/entries/0/choices/0/threads", 33},
      {"/entries/0/choices/0/threads", 2048},
      {"/entries/0/choices/0/cluster", 3},
      {"/entries/0/choices/0/blocks", -1},
      {"/entries/0/choices/0/surprise", 1},
      {"/surprise", 1},
  };
  for (const BadChange& change : changes) {
    json document = good_document();
    document[json::json_pointer(change.pointer)] = change.value;
    EXPECT_FALSE(schema_accepts(document)) << change.pointer << ' ' << change.value;
    EXPECT_NE(refusal_of(document).find(change.pointer), std::string::npos) << change.pointer << ' ' << change.value;
  }
  for (const char* key : {"device", "entries", "ranks_on_device", "schema", "sm_count"}) {
    json document = good_document();
    document.erase(key);
    EXPECT_FALSE(schema_accepts(document)) << key;
    EXPECT_NE(refusal_of(document).find(key), std::string::npos) << key;
  }
}

TEST(Tuning, RefusesRangesOutOfOrderAndEntriesTwice) {
  json document = good_document();
  document["entries"][0]["choices"][1]["up_to_tokens"] = 16;
  EXPECT_NE(refusal_of(document).find("/entries/0/choices/1/up_to_tokens"), std::string::npos);
  document = good_document();
  document["entries"][1]["class"] = "norm";
  EXPECT_NE(refusal_of(document).find("/entries/1/class"), std::string::npos);
}

TEST(Tuning, RefusesTextThatIsNoTable) {
  EXPECT_THROW((void)TuningTable::parse("{"), Error);
  EXPECT_THROW((void)TuningTable::parse("[]"), Error);
  EXPECT_THROW((void)TuningTable::load("/nowhere/table.json"), Error);
}

}  // namespace
}  // namespace commfuse::runtime
