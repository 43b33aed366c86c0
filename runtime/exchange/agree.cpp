#include <algorithm>
#include <map>

#include "commfuse/exchange.hpp"
#include "runtime/exchange/bytes.hpp"
#include "runtime/exchange/keys.hpp"
#include "runtime/exchange/socket.hpp"

namespace commfuse {
namespace {

constexpr std::size_t kMaxShownBytes = 4096;
constexpr std::size_t kExcerptBytes = 40;

/// Around the first byte that differs, as text where it is text.
std::string excerpt(std::span<const std::byte> value, std::size_t difference) {
  const std::size_t start = difference > kExcerptBytes / 2 ? difference - kExcerptBytes / 2 : 0;
  if (start >= value.size()) return "nothing";
  const auto part = value.subspan(start, std::min(kExcerptBytes, value.size() - start));
  const bool is_text = std::all_of(part.begin(), part.end(), [](std::byte byte) {
    return std::to_integer<int>(byte) >= 0x20 && std::to_integer<int>(byte) < 0x7f;
  });
  const std::string dots = start + part.size() < value.size() ? "..." : "";
  if (is_text) return (start > 0 ? "'..." : "'") + std::string(runtime::as_text(part)) + dots + "'";
  return (start > 0 ? "...0x" : "0x") + runtime::to_hex(part) + dots;
}

struct Statement {
  std::string what;
  std::uint64_t bytes = 0;
  std::span<const std::byte> value;  ///< empty if it was too long to send
};

Statement read_statement(std::span<const std::byte> blob) {
  runtime::ByteReader reader(blob);
  Statement statement;
  statement.what = reader.text(0xffff);
  statement.bytes = reader.integer<std::uint64_t>();
  (void)reader.raw(sizeof(runtime::Key));
  statement.value = reader.raw(reader.left());
  return statement;
}

std::string difference_text(const Blob& reference, const Blob& other) {
  const Statement expected = read_statement(reference);
  const Statement found = read_statement(other);
  if (expected.what != found.what) return "it compares " + found.what + ", the others compare " + expected.what;
  if (expected.bytes > kMaxShownBytes || found.bytes > kMaxShownBytes) {
    return "the digest of its " + std::to_string(found.bytes) + " bytes differs from that of the others' " +
           std::to_string(expected.bytes);
  }
  const auto at = static_cast<std::size_t>(
      std::mismatch(expected.value.begin(), expected.value.end(), found.value.begin(), found.value.end()).first -
      expected.value.begin());
  return "at byte " + std::to_string(at) + " it has " + excerpt(found.value, at) + ", the others have " +
         excerpt(expected.value, at);
}

}  // namespace

void agree(Exchange& exchange, std::string_view what, std::span<const std::byte> value, Timeout timeout) {
  runtime::ByteWriter writer;
  writer.text(what, 0xffff);
  writer.integer(static_cast<std::uint64_t>(value.size()));
  writer.raw(runtime::digest({}, {value}));
  if (value.size() <= kMaxShownBytes) writer.raw(value);
  const auto blobs = exchange.all_gather(writer.take(), timeout);

  std::map<Blob, int> votes;
  for (const Blob& blob : blobs) ++votes[blob];
  if (votes.size() == 1) return;
  const int most = std::max_element(votes.begin(), votes.end(), [](const auto& a, const auto& b) {
                     return a.second < b.second;
                   })->second;
  // Of several that many ranks hold, the one of the lowest rank: the same choice everywhere.
  const Blob& reference =
      *std::find_if(blobs.begin(), blobs.end(), [&](const Blob& blob) { return votes[blob] == most; });
  std::vector<int> differing;
  for (std::size_t rank = 0; rank < blobs.size(); ++rank) {
    if (blobs[rank] != reference) differing.push_back(static_cast<int>(rank));
  }
  const std::string names = runtime::rank_list(differing);
  const int first = differing.front();
  throw ExchangeError(
      Code::kMismatch, differing,
      "the ranks of exchange '" + exchange.group() + "' do not agree on " + read_statement(reference).what + ": " +
          names + (differing.size() == 1 ? " differs" : " differ"),
      "rank " + std::to_string(first) + ": " + difference_text(reference, blobs[static_cast<std::size_t>(first)]),
      "Start every rank with the same build, deployment and cache");
}

}  // namespace commfuse
