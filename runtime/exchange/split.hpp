// What the ranks of a group tell each other before some of them form a smaller one.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "commfuse/exchange.hpp"

namespace commfuse::runtime {

// proposal = trouble:text count:u32 member:u32{count} invitation (the rest)
struct SplitProposal {
  std::string trouble;  ///< why this rank cannot take part; empty if it can
  std::vector<int> members;
  Blob invitation;  ///< from the first member
};

/// What is wrong with a list of members, or nothing.
[[nodiscard]] std::string trouble_of(std::span<const int> members, int rank, int size);
[[nodiscard]] Blob write_proposal(const SplitProposal& proposal);
/// Every rank's proposal, or the ExchangeError that all ranks make of the same blobs: a rank in trouble, or lists of
/// members that differ.
[[nodiscard]] std::vector<SplitProposal> agreed_proposals(std::span<const Blob> blobs, const std::string& group);

/// "job[0-3,8]" for members 0, 1, 2, 3 and 8.
[[nodiscard]] std::string member_text(std::span<const int> members);

}  // namespace commfuse::runtime
