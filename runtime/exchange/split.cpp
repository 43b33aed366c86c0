#include "runtime/exchange/split.hpp"

#include <algorithm>

#include "runtime/exchange/bytes.hpp"
#include "runtime/exchange/keys.hpp"
#include "runtime/exchange/message.hpp"

namespace commfuse {
namespace runtime {
namespace {

constexpr std::size_t kMaxMemberText = 200;

SplitProposal read_proposal(const Blob& blob) {
  ByteReader reader(blob);
  SplitProposal proposal;
  proposal.trouble = reader.text(kMaxTextBytes);
  const auto count = reader.integer<std::uint32_t>();
  for (std::uint32_t i = 0; i < count && reader.is_good(); ++i) {
    proposal.members.push_back(static_cast<int>(reader.integer<std::uint32_t>()));
  }
  const auto rest = reader.raw(reader.left());
  proposal.invitation.assign(rest.begin(), rest.end());
  if (!reader.is_good()) proposal.trouble = "it sent a malformed proposal";
  return proposal;
}

}  // namespace

std::string trouble_of(std::span<const int> members, int rank, int size) {
  if (members.empty()) return {};
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i] < 0 || members[i] >= size) {
      return "member " + std::to_string(members[i]) + " is no rank of this group of " + std::to_string(size);
    }
    if (i > 0 && members[i] <= members[i - 1]) return "its members " + member_text(members) + " are not ascending";
  }
  if (!std::binary_search(members.begin(), members.end(), rank)) {
    return "it is not among its own members " + member_text(members);
  }
  return {};
}

Blob write_proposal(const SplitProposal& proposal) {
  ByteWriter writer;
  writer.text(proposal.trouble, kMaxTextBytes);
  writer.integer(static_cast<std::uint32_t>(proposal.members.size()));
  for (int member : proposal.members) writer.integer(static_cast<std::uint32_t>(member));
  writer.raw(proposal.invitation);
  return writer.take();
}

std::vector<SplitProposal> agreed_proposals(std::span<const Blob> blobs, const std::string& group) {
  std::vector<SplitProposal> proposals;
  for (const Blob& blob : blobs) proposals.push_back(read_proposal(blob));
  const std::string what = "cannot split exchange '" + group + "'";
  for (std::size_t rank = 0; rank < proposals.size(); ++rank) {
    if (!proposals[rank].trouble.empty()) {
      throw ExchangeError(Code::kMismatch, {static_cast<int>(rank)}, what,
                          "rank " + std::to_string(rank) + ": " + proposals[rank].trouble, "");
    }
  }
  for (std::size_t rank = 0; rank < proposals.size(); ++rank) {
    const auto& members = proposals[rank].members;
    for (int member : members) {
      const auto& other = proposals[static_cast<std::size_t>(member)].members;
      if (other == members) continue;
      throw ExchangeError(Code::kMismatch,
                          {std::min(static_cast<int>(rank), member), std::max(static_cast<int>(rank), member)}, what,
                          "rank " + std::to_string(rank) + " counts itself to " + member_text(members) + ", rank " +
                              std::to_string(member) + " to " + member_text(other),
                          "Give the same list on every member");
    }
  }
  return proposals;
}

std::string member_text(std::span<const int> members) {
  std::string text = "[";
  for (std::size_t i = 0; i < members.size();) {
    std::size_t last = i;
    while (last + 1 < members.size() && members[last + 1] == members[last] + 1) ++last;
    if (i > 0) text += ',';
    text += std::to_string(members[i]);
    if (last > i) text += (last == i + 1 ? "," : "-") + std::to_string(members[last]);
    i = last + 1;
  }
  return text + "]";
}

}  // namespace runtime

std::string group_name(std::string_view job, std::span<const int> members) {
  std::vector<int> sorted(members.begin(), members.end());
  std::sort(sorted.begin(), sorted.end());
  const std::string members_text = runtime::member_text(sorted);
  if (members_text.size() <= runtime::kMaxMemberText) return std::string(job) + members_text;
  return std::string(job) + "[" + std::to_string(sorted.front()) + "..." + std::to_string(sorted.back()) + ", " +
         std::to_string(sorted.size()) + " ranks " +
         runtime::to_hex(std::span<const std::byte>(runtime::digest({}, {runtime::as_span(members_text)})).first(16)) +
         "]";
}

}  // namespace commfuse
