#include "cache/directory.hpp"

#include <gtest/gtest.h>

#include <map>

namespace commfuse::cache {
namespace {

Environment fake(std::map<std::string, std::string> variables,
                 std::optional<std::filesystem::path> home = std::nullopt) {
  return {[variables](const std::string& name) -> std::optional<std::string> {
            const auto it = variables.find(name);
            return it == variables.end() ? std::nullopt : std::optional<std::string>(it->second);
          },
          [home] { return home; }};
}

TEST(CacheDirectory, TheNamedOneComesFirstThenXdgThenHomeThenTheUserDatabase) {
  std::map<std::string, std::string> all = {
      {"COMMFUSE_CACHE_DIR", "/a/cache/"}, {"XDG_CACHE_HOME", "/xdg"}, {"HOME", "/home/u"}};
  EXPECT_EQ(find_directories(fake(all, "/pw"), "/c").writable, "/c");
  EXPECT_EQ(find_directories(fake(all, "/pw")).writable, "/a/cache/");
  all.erase("COMMFUSE_CACHE_DIR");
  EXPECT_EQ(find_directories(fake(all, "/pw")).writable, "/xdg/commfuse");
  all.erase("XDG_CACHE_HOME");
  EXPECT_EQ(find_directories(fake(all, "/pw")).writable, "/home/u/.cache/commfuse");
  all.erase("HOME");
  EXPECT_EQ(find_directories(fake(all, "/pw")).writable, "/pw/.cache/commfuse");
  EXPECT_EQ(find_directories(fake(all, "/pw")).chosen_by, "the user database");
}

TEST(CacheDirectory, WithoutAnyPlaceKernelsAreNotCachedAndTheWarningNamesTheVariable) {
  const Directories none = find_directories(fake({}));
  EXPECT_TRUE(none.writable.empty());
  ASSERT_EQ(none.warnings.size(), 1u);
  EXPECT_NE(none.warnings[0].find("COMMFUSE_CACHE_DIR"), std::string::npos);
}

TEST(CacheDirectory, IsNeverRelativeToTheCurrentDirectory) {
  const Directories named = find_directories(fake({{"COMMFUSE_CACHE_DIR", "cache"}, {"HOME", "/home/u"}}));
  EXPECT_TRUE(named.writable.empty());
  ASSERT_EQ(named.warnings.size(), 1u);
  EXPECT_EQ(find_directories(fake({{"XDG_CACHE_HOME", "."}, {"HOME", "/home/u"}})).writable, "/home/u/.cache/commfuse");
  EXPECT_EQ(find_directories(fake({{"HOME", ""}}, "/pw")).writable, "/pw/.cache/commfuse");
  EXPECT_TRUE(find_directories(fake({{"HOME", "rel"}}, "rel")).writable.empty());
  EXPECT_TRUE(find_directories(fake({}), "given").writable.is_absolute());
}

TEST(CacheDirectory, ListsAreSplitAtColonsAndRelativeItemsAreWarnedOf) {
  const Directories d = find_directories(
      fake({{"HOME", "/h"}, {"COMMFUSE_CACHE_READONLY", ":/a::b:/c/../d:"}, {"COMMFUSE_CACHE_TRUST", "/t"}}));
  EXPECT_EQ(d.readonly, (std::vector<std::filesystem::path>{"/a", "/d"}));
  EXPECT_EQ(d.trusted, (std::vector<std::filesystem::path>{"/t"}));
  ASSERT_EQ(d.warnings.size(), 1u);
  EXPECT_NE(d.warnings[0].find("'b'"), std::string::npos);
}

}  // namespace
}  // namespace commfuse::cache
