// docs/seed-map.md against the list of names beside this file: every name has a row, and what is missing gets less.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>
#include <string>

namespace {

/// Rows that say "not yet". Lower it with every counterpart that is added; it never grows.
constexpr int kNotYet = 331;

/// "000 name" to what the row says.
std::map<std::string, std::string> rows_of(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::map<std::string, std::string> rows;
  std::string document;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("## [")) document = line.substr(4, line.find(']') - 4);
    if (!line.starts_with("| `")) continue;
    const std::size_t end = line.find("` | ");
    EXPECT_NE(end, std::string::npos) << line;
    EXPECT_TRUE(line.ends_with(" |")) << line;
    if (end == std::string::npos) continue;
    const std::string name = document + ' ' + line.substr(3, end - 3);
    const std::size_t begin = end + 4;
    const std::string ours = line.size() < begin + 2 ? "" : line.substr(begin, line.size() - 2 - begin);
    EXPECT_TRUE(rows.emplace(name, ours).second) << name << " has two rows";
  }
  return rows;
}

TEST(SeedMap, HasARowForEveryNameAndNoOther) {
  const auto rows = rows_of(COMMFUSE_SOURCE_DIR "/docs/seed-map.md");
  std::ifstream file(COMMFUSE_SOURCE_DIR "/tests/unit/seed_names.txt");
  ASSERT_TRUE(file);
  std::set<std::string> names;
  for (std::string name; std::getline(file, name);) {
    names.insert(name);
    const auto row = rows.find(name);
    if (row == rows.end()) {
      ADD_FAILURE() << name << " has no row";
      continue;
    }
    EXPECT_NE(row->second.find_first_not_of(' '), std::string::npos) << name << " has an empty row";
  }
  EXPECT_GT(names.size(), 300u);
  for (const auto& [name, ours] : rows) EXPECT_TRUE(names.contains(name)) << name << " is in none of the documents";
}

TEST(SeedMap, LacksNoMoreThanItDid) {
  int missing = 0;
  for (const auto& [name, ours] : rows_of(COMMFUSE_SOURCE_DIR "/docs/seed-map.md"))
    missing += ours == "not yet" ? 1 : 0;
  EXPECT_EQ(missing, kNotYet) << "lower kNotYet, which may not be raised";
}

}  // namespace
