// Deployment files from people who mistyped and from people who mean harm.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <string>
#include <vector>

#include "commfuse/error.hpp"
#include "commfuse/spec.hpp"

namespace commfuse {
namespace {

using std::string;

const string kGood = R"({"name":"n","world_size":8,"hidden_size":8192,"dtype":"bf16","max_tokens":64,)"
                     R"("operations":[{"op":"all_reduce","patterns":["all_reduce"]}]})";

/// kGood with its first `from` replaced.
string with(const string& from, const string& to) {
  string text = kGood;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, string::npos) << from;
  return text.replace(at, from.size(), to);
}

string repeated(const string& part, std::size_t count) {
  string text;
  text.reserve(part.size() * count);
  for (std::size_t i = 0; i < count; ++i) text += part;
  return text;
}

/// Lists of `count` different even numbers: "[8,16,...]".
string numbers(int count) {
  string text = "[";
  for (int i = 1; i <= count; ++i) text += (i > 1 ? "," : "") + std::to_string(8 * i);
  return text + "]";
}

struct Case {
  string name;
  string text;
  std::vector<string> parts;  ///< of the message
};

const string kOperation = R"({"op":"all_reduce","patterns":["all_reduce"]})";
const string kWideOperation =  // 2 * 3 * 64 * 2 = 768 kernels
    R"({"op":"all_reduce","algorithms":["one_shot"],"patterns":["all_reduce","residual_rms_norm"],)"
    R"("dtypes":["fp16","bf16","fp32"],"fp32_accumulate":[true,false],"hidden_sizes":)" +
    numbers(64) + "}";
const string kPatterns = R"(["all_reduce"])";

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      // Not JSON.
      {"Empty", "", {"line 1, column 1", "ends too early"}},
      {"OnlySpace", " \n\n ", {"line 3", "ends too early"}},
      {"CutOff", kGood.substr(0, 40), {"line 1, column 41", "ends too early"}},
      {"TrailingText", kGood + " x", {"line 1, column 140", " x\""}},
      {"TwoDocuments", kGood + kGood, {"line 1"}},
      {"Comment", "// remark\n" + kGood, {"line 1"}},
      {"SingleQuotes", "{'name': 1}", {"line 1, column 2"}},
      {"TrailingComma", "{\"name\":\"n\",\n}", {"line 2, column 1"}},
      {"NotANumber", with("8192", "NaN"), {"no JSON near"}},
      {"NulByte", kGood.substr(0, 9) + string(1, '\0') + kGood.substr(9), {"line 1"}},
      {"Binary",
       string("\x7f"
              "ELF\x02\x01\x01\x00\x00",
              9),
       {"line 1, column 1"}},
      {"BadUtf8InText", with("\"n\"", "\"\xff\xfe\""), {"not UTF-8"}},
      {"OverlongUtf8", with("\"n\"", "\"\xc0\xaf\""), {"not UTF-8"}},
      {"Surrogate", with("\"n\"", "\"\\ud800\""), {"line 1"}},
      {"Utf16", string("\xff\xfe{\0}\0", 6), {"line 1"}},
      {"LongToken", string(1 << 19, '7') + "x", {"..."}},
      // JSON, but not for everybody the same.
      {"DuplicateKey", with("\"name\"", "\"world_size\":2,\"name\""), {"the document", "\"world_size\" twice"}},
      {"DuplicateKeyInside", with("\"op\"", "\"op\":\"all_reduce\",\"op\""), {"/operations/0: ", "\"op\" twice"}},
      {"DuplicateKeyByEscape", with("\"name\"", "\"n\\u0061me\":\"m\",\"name\""), {"\"name\" twice"}},
      {"HugeInteger", with("8192", "18446744073709551616"), {"/hidden_size", "18446744073709551616"}},
      {"LargestUnsigned", with("8192", "18446744073709551615"), {"/hidden_size", "18446744073709551615"}},
      {"MostNegative", with("8192", "-9223372036854775808"), {"/hidden_size", "-9223372036854775808"}},
      {"HugeExponent", with("8192", "1e999"), {"/hidden_size", "1e999"}},
      {"TinyFraction", with("8192", "8192.0000000000000001"), {"/hidden_size", "whole numbers"}},
      {"WholeAsFraction", with("8192", "8.192e3"), {"/hidden_size", "8.192e3"}},
      {"ThousandDigits", with("8192", string(1000, '9')), {"/hidden_size", "..."}},
      // Too much of it.
      {"DeepLists", string(500000, '['), {"64 levels"}},
      {"DeepObjects", repeated("{\"a\":", 100000), {"64 levels"}},
      {"DeepInside", with(kPatterns, string(100, '[') + string(100, ']')), {"64 levels"}},
      {"LongText", with("\"n\"", "\"" + string(900000, 'a') + "\""), {"/name", "900000 bytes"}},
      {"LongKey", with("\"name\"", "\"" + string(900000, 'k') + "\""), {"900000 bytes"}},
      {"LongRegexInput", with("\"n\"", "\"" + string(1024, 'a') + "\""), {"/name", "1 to 128"}},
      {"ManyItems", with("[{", "[" + repeated("1,", 400000) + "{"), {"/operations", "256 items"}},
      {"ManyKeys",
       [] {
         string text = "{";
         for (int i = 0; i < 60000; ++i) text += "\"k" + std::to_string(i) + "\":0,";
         return text + "\"end\":0}";
       }(),
       {"256 keys"}},
      {"ManyValues", with(kPatterns, "[" + repeated("[" + repeated("1,", 200) + "1],", 200) + "1]"), {"16384 values"}},
      {"TooManyOperations",
       with(kOperation, repeated(kOperation + ",", 64) + kOperation),
       {"/operations", "1 to 64", "65 items"}},
      {"ProductExplodes",
       with(kOperation, repeated(kWideOperation + ",", 10) + kOperation),
       {"/operations", "shapes of kernels", "at most 4096"}},
      // Another shape than the schema's.
      {"RootIsList", "[]", {"the document", "a list of 0 items", "an object"}},
      {"RootIsText", "\"name\"", {"the document", "\"name\""}},
      {"RootIsNull", "null", {"the document", "null"}},
      {"EmptyObject", "{}", {"/name: found nothing", "/world_size: found nothing", "a whole number from 1 to 16"}},
      {"UnknownKey",
       with("hidden_size", "hiden_size"),
       {"/hiden_size: unknown key", "did you mean \"hidden_size\"?", "/hidden_size: found nothing"}},
      {"UnknownKeyInside",
       with("patterns", "pattern"),
       {"/operations/0/pattern: unknown key", "did you mean \"patterns\"?"}},
      {"UnknownKeyFarAway", with("\"name\"", "\"zzzzzz\":1,\"name\""), {"/zzzzzz: unknown key", "allowed: "}},
      {"KeyNeedsEscapes", with("\"name\"", "\"a/b~c\\n\":1,\"name\""), {"/a~1b~0c\\n: unknown key"}},
      {"TextForNumber", with(":8,", ":\"8\","), {"/world_size: found \"8\"", "a whole number from 1 to 16"}},
      {"NullForNumber", with("8192", "null"), {"/hidden_size: found null"}},
      {"BooleanForNumber", with("64", "true"), {"/max_tokens: found true"}},
      {"ZeroRanks", with(":8,", ":0,"), {"/world_size: found 0", "from 1 to 16"}},
      {"ManyRanks", with(":8,", ":17,"), {"/world_size: found 17"}},
      {"NegativeHidden", with("8192", "-8192"), {"/hidden_size: found -8192"}},
      {"LargeHidden", with("8192", "65544"), {"/hidden_size: found 65544", "from 1 to 65536"}},
      {"OddHidden", with("8192", "8193"), {"/hidden_size: found 8193", "multiples of 8 for bf16"}},
      {"OddHiddenInside",
       with("\"patterns\"", "\"hidden_sizes\":[64,12],\"patterns\""),
       {"/operations/0/hidden_sizes/1: found 12"}},
      {"NoTokens", with("64", "0"), {"/max_tokens: found 0"}},
      {"LatentNormWithoutWidth", with(kPatterns, "[\"latent_norm\"]"), {"/operations/0: ", "latent_width 0"}},
      {"PatternDoesNotFitSize",
       with(kPatterns + "}", "[\"residual_rms_norm_fp8_block\"],\"hidden_sizes\":[2880]}"),
       {"/operations/0: ", "hidden_size 2880", "multiples of 128"}},
      {"UnknownType", with("bf16", "BF-16"), {"/dtype: found \"BF-16\"", "fp16, bf16, fp32", "did you mean \"bf16\"?"}},
      {"UnknownPattern",
       with(kPatterns, "[\"residual_rmsnorm\"]"),
       {"/operations/0/patterns/0", "did you mean \"residual_rms_norm\"?"}},
      {"UnknownOp",
       with("\"op\":\"all_reduce\"", "\"op\":\"barrier\""),
       {"/operations/0/op: found \"barrier\"", "allowed: all_reduce"}},
      {"RepeatedPattern",
       with(kPatterns, R"(["all_reduce","all_reduce"])"),
       {"/operations/0/patterns/1", "a second time"}},
      {"OddGroupSize",
       with("\"patterns\"", "\"group_sizes\":[128,7],\"patterns\""),
       {"/operations/0/group_sizes/1: found 7", "8, 16, 32, 64, 128, 256"}},
      {"TextAsGroupSize",
       with("\"patterns\"", "\"group_sizes\":[\"128\"],\"patterns\""),
       {"/operations/0/group_sizes/0: found \"128\""}},
      {"NoOperations", with("[" + kOperation + "]", "[]"), {"/operations: found a list of 0 items"}},
      {"OperationsAsObject", with("[" + kOperation + "]", kOperation), {"/operations: found an object"}},
      {"EmptyName", with("\"n\"", "\"\""), {"/name: found \"\""}},
      {"NameWithPath", with("\"n\"", "\"../../etc\""), {"/name: found"}},
      {"NameWithEscape", with("\"n\"", "\"a\\u001b[31m\""), {"/name: found \"a\\u001b[31m\""}},
      {"OldArch", with("\"name\"", "\"arch\":[\"sm_75\"],\"name\""), {"/arch/0: found \"sm_75\"", "sm_80 and later"}},
      {"ArchAsText", with("\"name\"", "\"arch\":\"sm_90a\",\"name\""), {"/arch: found \"sm_90a\"", "a list of"}},
      {"EmptyArch", with("\"name\"", "\"arch\":[],\"name\""), {"/arch: found a list of 0 items"}},
  };
  return all;
}

void PrintTo(const Case& each, std::ostream* stream) { *stream << each.name; }

class HostileDeployment : public testing::TestWithParam<Case> {};

TEST_P(HostileDeployment, EndsInAClearError) {
  const auto start = std::chrono::steady_clock::now();
  try {
    (void)Deployment::parse(GetParam().text, "deployment 'x.json'");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidInput);
    const string text = error.what();
    EXPECT_NE(text.find("deployment 'x.json'"), string::npos) << text;
    for (const string& part : GetParam().parts) EXPECT_NE(text.find(part), string::npos) << part << "\nin: " << text;
    EXPECT_LT(text.size(), 4096U) << "nobody reads that";
    for (const char c : text) EXPECT_TRUE(c >= ' ' && c <= '~') << "unprintable character in: " << text;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

INSTANTIATE_TEST_SUITE_P(Table, HostileDeployment, testing::ValuesIn(cases()),
                         [](const auto& parameter) { return parameter.param.name; });

TEST(HostileDeploymentTable, StartsFromAGoodExample) { EXPECT_EQ(Deployment::parse(kGood).world_size, 8); }

class DeploymentFile : public testing::Test {
 protected:
  DeploymentFile() {
    string pattern = (std::filesystem::temp_directory_path() / "commfuse-deployment-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~DeploymentFile() override { std::filesystem::remove_all(folder_); }

  static Code code_of(const std::filesystem::path& file) {
    try {
      (void)Deployment::load(file);
      return Code::kOk;
    } catch (const Error& error) {
      EXPECT_NE(string(error.what()).find(file.filename().string()), string::npos) << error.what();
      return error.code();
    }
  }

  std::filesystem::path folder_;
};

TEST_F(DeploymentFile, IsReadFromDisk) {
  std::ofstream(folder_ / "good.json") << kGood;
  EXPECT_EQ(Deployment::load(folder_ / "good.json").hidden_size, 8192);
}

TEST_F(DeploymentFile, ThatIsMissingIsNotFound) { EXPECT_EQ(code_of(folder_ / "missing.json"), Code::kNotFound); }

TEST_F(DeploymentFile, ThatIsADirectoryIsRefused) { EXPECT_EQ(code_of(folder_), Code::kInvalidInput); }

TEST_F(DeploymentFile, ThatIsAPipeIsRefusedWithoutWaiting) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(code_of(folder_ / "pipe"), Code::kInvalidInput);
}

TEST_F(DeploymentFile, ThatNeverEndsIsRefused) { EXPECT_EQ(code_of("/dev/zero"), Code::kInvalidInput); }

TEST_F(DeploymentFile, Of200MegabytesIsRefusedUnread) {
  std::ofstream(folder_ / "large.json") << kGood;
  std::filesystem::resize_file(folder_ / "large.json", 200 << 20);  // sparse
  EXPECT_EQ(code_of(folder_ / "large.json"), Code::kInvalidInput);
}

}  // namespace
}  // namespace commfuse
