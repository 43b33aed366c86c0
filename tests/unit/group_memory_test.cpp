// What launches look up of registered buffers, and what ranks read of each other's memory.
#include <gtest/gtest.h>

#include <random>

#include "commfuse/error.hpp"
#include "runtime/exchange/bytes.hpp"
#include "runtime/memory_sharing.hpp"
#include "runtime/peer_memory.hpp"
#include "runtime/registered_ranges.hpp"

namespace commfuse::runtime {
namespace {

RegisteredRange range(std::uintptr_t base, std::size_t bytes, std::uint64_t id) {
  RegisteredRange result;
  result.base = base;
  result.bytes = bytes;
  result.id = id;
  return result;
}
std::uint64_t id_of(const RegisteredRange* found) { return found == nullptr ? 0 : found->id; }
const void* at(std::uintptr_t address) { return reinterpret_cast<const void*>(address); }

TEST(RegisteredRanges, HoldsOnlyWhatLiesInOneOfThemAsAWhole) {
  RegisteredRanges ranges;
  EXPECT_EQ(ranges.holding(at(1000), 1), nullptr);
  ranges.add(range(3000, 100, 3), {});
  ranges.add(range(1000, 100, 1), {});
  ranges.add(range(1100, 50, 2), {});
  EXPECT_EQ(id_of(ranges.holding(at(1000), 100)), 1U);
  EXPECT_EQ(id_of(ranges.holding(at(1099), 1)), 1U);
  EXPECT_EQ(id_of(ranges.holding(at(1100), 50)), 2U);
  EXPECT_EQ(id_of(ranges.holding(at(3050), 50)), 3U);
  EXPECT_EQ(ranges.holding(at(1050), 100), nullptr);  // in two, which are two on the peers as well
  EXPECT_EQ(ranges.holding(at(999), 10), nullptr);
  EXPECT_EQ(ranges.holding(at(3050), 51), nullptr);
  EXPECT_EQ(ranges.holding(at(3050), SIZE_MAX), nullptr);
  ranges.remove(1);
  EXPECT_EQ(ranges.holding(at(1000), 100), nullptr);
  EXPECT_EQ(id_of(ranges.holding(at(1100), 50)), 2U);
}

TEST(RegisteredRanges, FindsOverlapsAsASearchOfAllWould) {
  std::mt19937 random(1);
  const auto below = [&](std::uintptr_t limit) { return random() % limit; };
  RegisteredRanges ranges;
  std::vector<RegisteredRange> all;
  for (std::uint64_t id = 1; id < 4000; ++id) {
    const std::uintptr_t base = 1 + below(20000);
    const std::size_t bytes = 1 + below(40);
    const auto overlaps = [&](const RegisteredRange& other) {
      return other.base < base + bytes && base < other.base + other.bytes;
    };
    const bool is_free = std::none_of(all.begin(), all.end(), overlaps);
    ASSERT_EQ(ranges.overlapping(base, bytes) == nullptr, is_free) << base << " " << bytes;
    if (is_free) {
      ranges.add(range(base, bytes, id), {});
      all.push_back(range(base, bytes, id));
    } else if (below(2) == 0) {
      const auto gone = all.begin() + static_cast<std::ptrdiff_t>(below(all.size()));
      ranges.remove(gone->id);
      all.erase(gone);
    }
  }
  EXPECT_GT(all.size(), 100U);
}

TEST(RegisteredRanges, WhatNoCallCouldUseIsRefused) {
  EXPECT_NO_THROW(require_registrable(4096, 1));
  EXPECT_THROW(require_registrable(0, 16), Error);
  EXPECT_THROW(require_registrable(4096, 0), Error);
  EXPECT_THROW(require_registrable(4104, 16), Error);
  EXPECT_THROW(require_registrable(4096, UINT64_MAX - 100), Error);
}

TEST(MemoryParts, SurviveTheirWayOverTheExchange) {
  std::vector<MemoryPart> sent(3);
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i].bytes = (i + 1) << 21;
  sent[1].handle.assign(64, std::byte{7});
  ByteWriter writer;
  write_parts(writer, sent);
  const Blob blob = writer.take();
  ByteReader reader(blob);
  const std::vector<MemoryPart> got = read_parts(reader);
  ASSERT_EQ(got.size(), 3U);
  EXPECT_EQ(total_bytes(got), total_bytes(sent));
  EXPECT_EQ(got[1].handle, sent[1].handle);
  EXPECT_TRUE(got[0].handle.empty() && reader.is_finished());
  for (std::size_t length = 0; length < blob.size(); ++length) {
    ByteReader shorter{std::span(blob).first(length)};
    EXPECT_THROW((void)read_parts(shorter), Error) << length;
  }
}

TEST(MemoryParts, MoreThanARankMayHaveAreRefused) {
  ByteWriter writer;
  write_parts(writer, std::vector<MemoryPart>(kMaxParts + 1));
  const Blob blob = writer.take();
  ByteReader reader(blob);
  EXPECT_THROW((void)read_parts(reader), Error);
}

TEST(MappingErrors, NameTheRankAndWhatStandsBetweenTheTwo) {
  const auto ranks = make_thread_exchanges(2);
  const Error error = mapping_error(*ranks[0], 1, Error(Code::kDriver, "cuIpcOpenMemHandle failed", "201"));
  EXPECT_EQ(error.code(), Code::kDriver);
  const std::string text = error.what();
  EXPECT_NE(text.find("cannot map the memory of rank 1: cuIpcOpenMemHandle failed: 201"), std::string::npos) << text;
  EXPECT_NE(error.remedy().find("one process"), std::string::npos) << text;
  EXPECT_NE(error.remedy().find("ProcessGroup::allocate"), std::string::npos) << text;
}

}  // namespace
}  // namespace commfuse::runtime
