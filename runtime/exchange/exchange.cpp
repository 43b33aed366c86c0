#include "commfuse/exchange.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "runtime/exchange/bytes.hpp"
#include "runtime/exchange/socket.hpp"
#include "runtime/exchange/split.hpp"

namespace commfuse {
Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    const Descriptor old(std::exchange(number_, std::exchange(other.number_, -1)));
  }
  return *this;
}

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

/// Holds the exchange for one call, so that two threads in it are an error and not a garbled stream.
class Exchange::Call {
 public:
  explicit Call(Exchange& exchange) : exchange_(exchange) {
    if (exchange_.in_call_.exchange(true)) {
      throw Error(Code::kBusy, "cannot start a call of exchange '" + exchange_.group_ + "'",
                  "another thread is inside one", "Make one call at a time");
    }
    if (exchange_.failure_) {
      exchange_.in_call_ = false;
      throw ExchangeError(*exchange_.failure_);
    }
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() { exchange_.in_call_ = false; }

 private:
  Exchange& exchange_;
};

Exchange::Exchange(std::string group, int rank, int size, std::vector<HostIdentity> hosts)
    : group_(std::move(group)), rank_(rank), size_(size), hosts_(std::move(hosts)) {}

Exchange::~Exchange() = default;

const HostIdentity& Exchange::host(int rank) const {
  if (rank < 0 || rank >= static_cast<int>(hosts_.size())) {
    throw Error(Code::kInvalidArgument, "no host of rank " + std::to_string(rank) + " in exchange '" + group_ + "'",
                "it has " + std::to_string(size_) + " ranks");
  }
  return hosts_[static_cast<std::size_t>(rank)];
}

void Exchange::fail(ExchangeError failure, Deadline deadline) {
  failure_ = std::make_unique<ExchangeError>(failure);
  announce_failure(failure, deadline);
  throw failure;
}

std::vector<Blob> Exchange::checked_gather(Operation operation, std::span<const std::byte> blob, Deadline deadline) {
  if (blob.size() > kMaxBlobBytes) {
    fail(ExchangeError(Code::kInvalidArgument, {rank_},
                       "cannot gather the blob of rank " + std::to_string(rank_) + " in exchange '" + group_ + "'",
                       "it has " + std::to_string(blob.size()) + " bytes, allowed are " + std::to_string(kMaxBlobBytes),
                       ""),
         deadline);
  }
  try {
    return gather(operation, blob, deadline);
  } catch (const ExchangeError& error) {
    failure_ = std::make_unique<ExchangeError>(error);
    throw;
  } catch (const std::exception& error) {
    fail(ExchangeError(Code::kInternal, {rank_},
                       "rank " + std::to_string(rank_) + " failed inside exchange '" + group_ + "'", error.what(), ""),
         deadline);
  }
}

std::vector<Blob> Exchange::all_gather(std::span<const std::byte> blob, Timeout timeout) {
  const Call call(*this);
  return checked_gather(Operation::kAllGather, blob, runtime::deadline_after(timeout));
}

void Exchange::barrier(Timeout timeout) {
  const Call call(*this);
  (void)checked_gather(Operation::kBarrier, {}, runtime::deadline_after(timeout));
}

Descriptor Exchange::hand_over_descriptor(int from, int to, int descriptor, Timeout timeout) {
  const Call call(*this);
  const Deadline deadline = runtime::deadline_after(timeout);
  const auto is_rank = [&](int rank) { return rank >= 0 && rank < size_; };
  const std::string what = "cannot pass a descriptor from rank " + std::to_string(from) + " to rank " +
                           std::to_string(to) + " in exchange '" + group_ + "'";
  if (!is_rank(from) || !is_rank(to)) {
    throw Error(Code::kInvalidArgument, what, "ranks are 0 to " + std::to_string(size_ - 1));
  }
  if (rank_ != from && rank_ != to) return {};
  if (rank_ == from && ::fcntl(descriptor, F_GETFD) < 0) {
    throw Error(Code::kInvalidArgument, what, std::to_string(descriptor) + " is not an open descriptor");
  }
  if (from == to) {
    Descriptor copy(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
    if (!copy.is_open()) throw Error(Code::kIo, what, runtime::errno_text(errno));
    return copy;
  }
  try {
    return pass_descriptor(from, to, descriptor, deadline);
  } catch (const ExchangeError& error) {
    fail(error, deadline);
  }
}

void Exchange::abandon(Code code, std::string_view reason, Timeout timeout) noexcept {
  try {
    const Call call(*this);
    fail(ExchangeError(code, {rank_}, "rank " + std::to_string(rank_) + " gave up in exchange '" + group_ + "'",
                       std::string(reason.substr(0, 4000)), ""),
         runtime::deadline_after(timeout));
  } catch (const std::exception&) {
    // Finished before, or now: either way nobody can use this exchange any more, which is all that was asked for.
  }
}

std::unique_ptr<Exchange> Exchange::split(std::span<const int> members, Timeout timeout) {
  const Call call(*this);
  const Deadline deadline = runtime::deadline_after(timeout);
  Invitation invitation;
  runtime::SplitProposal proposal;
  proposal.members.assign(members.begin(), members.end());
  // What is wrong with this rank's list, and what fails here, goes to everybody, so that all throw the same.
  proposal.trouble = runtime::trouble_of(proposal.members, rank_, size_);
  if (proposal.trouble.empty() && !members.empty() && members.front() == rank_) {
    try {
      invitation = prepare_split(members, deadline);
      proposal.invitation = invitation.blob;
    } catch (const std::exception& error) {
      proposal.trouble = error.what();
    }
  }
  const auto blobs = checked_gather(Operation::kSplit, runtime::write_proposal(proposal), deadline);
  const auto proposals = runtime::agreed_proposals(blobs, group_);
  if (members.empty()) return nullptr;
  invitation.blob = proposals[static_cast<std::size_t>(members.front())].invitation;
  return join_split(members, std::move(invitation), deadline);
}

}  // namespace commfuse
