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

TEST(CacheDirectory, ReadsTheBound) {
  const auto bound = [](const std::string& text) {
    return find_directories(fake({{"HOME", "/home/u"}, {"COMMFUSE_CACHE_MAX_BYTES", text}}));
  };
  constexpr std::uint64_t kKi = 1024;
  const std::map<std::string, std::uint64_t> good = {{"", 2 * kKi * kKi * kKi},
                                                     {"0", 0},
                                                     {"123", 123},
                                                     {"7B", 7},
                                                     {"8K", 8 * kKi},
                                                     {"500MiB", 500 * kKi * kKi},
                                                     {"500 MB", 500 * kKi * kKi},
                                                     {"3GiB", 3 * kKi * kKi * kKi},
                                                     {"1T", kKi * kKi * kKi * kKi}};
  for (const auto& [text, bytes] : good) {
    EXPECT_EQ(bound(text).max_bytes, bytes) << text;
    EXPECT_TRUE(bound(text).warnings.empty()) << text;
  }
  for (const char* text : {"plenty", "-1", "1.5GiB", "12X", "12MiBs", "99999999999999999999", "99999999999TiB"}) {
    const Directories found = bound(text);
    EXPECT_EQ(found.max_bytes, 2 * kKi * kKi * kKi) << text;
    ASSERT_EQ(found.warnings.size(), 1u) << text;
    EXPECT_NE(found.warnings[0].find("COMMFUSE_CACHE_MAX_BYTES"), std::string::npos);
  }
}

}  // namespace
}  // namespace commfuse::cache
