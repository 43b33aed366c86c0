// Collective calls over an all-gather that somebody else brings, which takes the same number of bytes from each rank.
//
// Every call is two rounds of it: the first gathers a fixed record (operation, state, number of bytes), the second the
// blobs, padded to the longest; it is left out if all are empty. A rank that failed says so in the state and sends the
// failure as its blob, so the others learn it in the round in which they would have missed it. It cannot deadlock by
// itself: each rank makes the same rounds in the same order, decided from what all have gathered; that a round ends is
// the bringer's part, who is given what is left of the timeout.
#include <algorithm>
#include <cstring>

#include "runtime/exchange/bytes.hpp"
#include "runtime/exchange/meeting.hpp"
#include "runtime/exchange/routes.hpp"
#include "runtime/exchange/split.hpp"

namespace commfuse {
namespace runtime {
namespace {

// record = "CFR" version:u8(1) operation:u8 state:u8 zero:u16 bytes:u32 group[20]
constexpr std::size_t kRecordBytes = 32;
constexpr std::uint32_t kRecordMagic = 0x01524643;
constexpr std::size_t kGroupBytes = 20;
constexpr std::uint8_t kGoing = 0;
constexpr std::uint8_t kFailed = 1;
constexpr std::uint32_t kMaxRoundBytes = static_cast<std::uint32_t>(kMaxBlobBytes);

/// The functions, released with their last user.
class Bringer {
 public:
  explicit Bringer(const ExchangeCallbacks& callbacks) : functions(callbacks) {}
  Bringer(const Bringer&) = delete;
  Bringer& operator=(const Bringer&) = delete;
  ~Bringer() {
    if (functions.release != nullptr) functions.release(functions.user);
  }
  const ExchangeCallbacks functions;
};

class BroughtRoutes final : public DescriptorRoutes {
 public:
  BroughtRoutes(std::shared_ptr<const Bringer> bringer, int rank) : bringer_(std::move(bringer)), rank_(rank) {}
  Descriptor pass(int from, int to, int descriptor, Deadline deadline) override {
    int received = -1;
    const auto& functions = bringer_->functions;
    const int status = functions.hand_over(functions.user, from, to, descriptor, &received,
                                           std::max<std::int64_t>(left(deadline).count(), 1));
    Descriptor result(rank_ == to ? received : -1);
    const int other = rank_ == from ? to : from;
    if (status != 0 || (rank_ == to && !result.is_open())) {
      throw ExchangeError(
          Code::kIo, {other},
          "cannot pass a descriptor from rank " + std::to_string(from) + " to rank " + std::to_string(to),
          "the callback hand_over returned " + std::to_string(status), "");
    }
    return result;
  }

 private:
  std::shared_ptr<const Bringer> bringer_;
  int rank_;
};

class CallbackExchange final : public Exchange {
 public:
  CallbackExchange(std::shared_ptr<const Bringer> bringer, Meeting meeting, std::filesystem::path directory)
      : Exchange(meeting.group, meeting.rank, meeting.size, {}),
        bringer_(std::move(bringer)),
        meeting_(std::move(meeting)),
        directory_(std::move(directory)) {}

  void set_up(Deadline deadline) {
    const auto blobs = all_gather(write_welcome(std::span(&meeting_.host, 1)), std::max(left(deadline), Timeout(1)));
    std::vector<HostIdentity> hosts;
    for (std::size_t rank = 0; rank < blobs.size(); ++rank) {
      const auto host = read_welcome(blobs[rank]);
      if (!host || host->size() != 1) throw garbled(static_cast<int>(rank));
      hosts.push_back(host->front());
    }
    set_hosts(std::move(hosts));
    if (bringer_->functions.hand_over != nullptr) {
      routes_ = std::make_unique<BroughtRoutes>(bringer_, rank());
    } else {
      routes_ = make_local_routes(*this, directory_, deadline);
    }
  }

 private:
  struct Record {
    std::uint8_t operation = 0;
    std::uint8_t state = kGoing;
    std::uint32_t bytes = 0;
  };

  std::vector<Blob> gather(Operation operation, std::span<const std::byte> blob, Deadline deadline) override {
    return two_rounds({static_cast<std::uint8_t>(operation), kGoing, static_cast<std::uint32_t>(blob.size())}, blob,
                      deadline);
  }

  std::vector<Blob> two_rounds(const Record& own, std::span<const std::byte> blob, Deadline deadline) {
    const std::vector<Record> records = gather_records(own, deadline);
    std::uint32_t longest = 0;
    for (const Record& record : records) longest = std::max(longest, record.bytes);
    std::vector<Blob> blobs(records.size());
    if (longest > 0) {
      Blob padded(blob.begin(), blob.end());
      padded.resize(longest);
      const Blob gathered = round(padded, deadline);
      for (std::size_t rank = 0; rank < blobs.size(); ++rank) {
        const auto part = std::span(gathered).subspan(rank * longest, records[rank].bytes);
        blobs[rank].assign(part.begin(), part.end());
      }
    }
    for (std::size_t rank = 0; rank < blobs.size(); ++rank) {
      if (records[rank].state == kGoing) continue;
      const auto failure = read_failure(blobs[rank]);
      if (!failure) throw garbled(static_cast<int>(rank));
      throw ExchangeError(failure->code(), {static_cast<int>(rank)}, what(),
                          failure->message() + ": " + failure->cause(), failure->remedy());
    }
    for (std::size_t rank = 0; rank < blobs.size(); ++rank) {
      if (records[rank].operation == records[0].operation) continue;
      throw ExchangeError(Code::kMismatch, {static_cast<int>(rank)}, what(),
                          "rank " + std::to_string(rank) + " made another call than rank 0",
                          "Make the same calls on every rank");
    }
    return blobs;
  }

  std::vector<Record> gather_records(const Record& own, Deadline deadline) {
    ByteWriter writer;
    writer.integer(kRecordMagic);
    writer.integer(own.operation);
    writer.integer(own.state);
    writer.integer(std::uint16_t{0});
    writer.integer(own.bytes);
    writer.raw(std::span<const std::byte>(meeting_.key).first(kGroupBytes));
    const Blob gathered = round(writer.take(), deadline);
    std::vector<Record> records;
    for (int rank = 0; rank < size(); ++rank) {
      ByteReader reader(
          std::span<const std::byte>(gathered).subspan(static_cast<std::size_t>(rank) * kRecordBytes, kRecordBytes));
      const auto magic = reader.integer<std::uint32_t>();
      Record record;
      record.operation = reader.integer<std::uint8_t>();
      record.state = reader.integer<std::uint8_t>();
      const auto zero = reader.integer<std::uint16_t>();
      record.bytes = reader.integer<std::uint32_t>();
      const auto group = reader.raw(kGroupBytes);
      if (magic != kRecordMagic || zero != 0 || record.state > kFailed || record.bytes > kMaxRoundBytes)
        throw garbled(rank);
      if (!std::equal(group.begin(), group.end(), meeting_.key.begin())) {
        throw ExchangeError(Code::kMismatch, {rank}, what(),
                            "the callback gathered from rank " + std::to_string(rank) + " of another group",
                            "Bring a separate communicator for each group, with the same name on each of its ranks");
      }
      records.push_back(record);
    }
    return records;
  }

  Blob round(const Blob& send, Deadline deadline) {
    if (Clock::now() >= deadline) {
      throw ExchangeError(Code::kTimeout, {}, what(), "no time is left for another round", "Give a longer timeout");
    }
    Blob receive(send.size() * static_cast<std::size_t>(size()));
    std::vector<unsigned char> missing(static_cast<std::size_t>(size()), 0);
    const auto& functions = bringer_->functions;
    const int status = functions.all_gather(functions.user, send.data(), receive.data(), send.size(),
                                            std::max<std::int64_t>(left(deadline).count(), 1), missing.data());
    if (status == 0) return receive;
    std::vector<int> ranks;
    for (std::size_t rank = 0; rank < missing.size(); ++rank) {
      if (missing[rank] != 0) ranks.push_back(static_cast<int>(rank));
    }
    const bool is_late = Clock::now() >= deadline || !ranks.empty();
    std::string cause = "the callback all_gather returned " + std::to_string(status);
    if (!ranks.empty()) cause += "; " + rank_list(ranks) + " did not come";
    throw ExchangeError(is_late ? Code::kTimeout : Code::kIo, ranks, what(), cause, "");
  }

  Descriptor pass_descriptor(int from, int to, int descriptor, Deadline deadline) override {
    return routes_->pass(from, to, descriptor, deadline);
  }

  void announce_failure(const ExchangeError& failure, Deadline deadline) noexcept override {
    try {
      const Blob text = write_failure(failure);
      (void)two_rounds({0, kFailed, static_cast<std::uint32_t>(text.size())}, text, deadline);
    } catch (const std::exception&) {
      // It ends with an exception in any case: at least its own failure.
    }
  }

  Invitation prepare_split(std::span<const int>, Deadline) override {
    ByteWriter writer;
    writer.text(to_hex(random_key()), 64);
    writer.text((directory_.empty() ? default_exchange_directory() : directory_).string(), kMaxTextBytes);
    return {writer.take(), nullptr};
  }

  std::unique_ptr<Exchange> join_split(std::span<const int> members, Invitation invitation, Deadline deadline) override;

  [[nodiscard]] std::string what() const { return "exchange '" + group() + "' failed"; }
  [[nodiscard]] ExchangeError garbled(int rank) const {
    return {Code::kInvalidInput,
            {rank},
            what(),
            "what the callback gathered from rank " + std::to_string(rank) + " is malformed",
            "See whether the callback gathers bytes in the order of ranks"};
  }

  std::shared_ptr<const Bringer> bringer_;
  Meeting meeting_;
  std::filesystem::path directory_;
  std::unique_ptr<DescriptorRoutes> routes_;
};

std::unique_ptr<Exchange> make(std::shared_ptr<const Bringer> bringer, const CallbackExchangeOptions& options,
                               const Key& key, Deadline deadline) {
  Meeting meeting;
  meeting.group = options.group;
  meeting.key = key;
  meeting.rank = options.rank;
  meeting.size = options.size;
  meeting.host = options.host ? *options.host : this_host();
  check_meeting(meeting);
  if (bringer->functions.all_gather == nullptr) {
    throw Error(Code::kInvalidArgument, "cannot set up exchange '" + options.group + "'",
                "its callback all_gather is null");
  }
  auto exchange = std::make_unique<CallbackExchange>(std::move(bringer), std::move(meeting), options.directory);
  exchange->set_up(deadline);
  return exchange;
}

std::unique_ptr<Exchange> CallbackExchange::join_split(std::span<const int> members, Invitation invitation,
                                                       Deadline deadline) {
  ByteReader reader(invitation.blob);
  CallbackExchangeOptions options;
  options.group = group_name(group(), members);
  const std::string nonce = reader.text(64);
  options.directory = reader.text(kMaxTextBytes);
  options.rank = static_cast<int>(std::find(members.begin(), members.end(), rank()) - members.begin());
  options.size = static_cast<int>(members.size());
  options.host = meeting_.host;
  const auto& functions = bringer_->functions;
  if (functions.split != nullptr) {
    ExchangeCallbacks child;
    const int status = functions.split(functions.user, members.data(), static_cast<int>(members.size()),
                                       std::max<std::int64_t>(left(deadline).count(), 1), &child);
    if (status != 0) {
      throw Error(Code::kIo, "cannot split exchange '" + group() + "'",
                  "the callback split returned " + std::to_string(status));
    }
    options.directory = directory_;
    return make(std::make_shared<const Bringer>(child), options, key_of_group(options.group, nonce), deadline);
  }
  for (int member : members) {
    if (host(member).host == host(members.front()).host) continue;
    throw Error(Code::kUnsupported, "cannot split exchange '" + group() + "'",
                rank_list(std::vector<int>{members.front(), member}) +
                    " are on different hosts, and the callbacks bring no split",
                "Bring the callback split, or an exchange for each group");
  }
  UnixExchangeOptions local;
  local.group = options.group + " " + nonce;
  local.rank = options.rank;
  local.size = options.size;
  local.directory = options.directory;
  local.host = options.host;
  return make_unix_exchange(local, std::max(left(deadline), Timeout(1)));
}

}  // namespace
}  // namespace runtime

std::unique_ptr<Exchange> make_callback_exchange(const ExchangeCallbacks& callbacks,
                                                 const CallbackExchangeOptions& options, Timeout timeout) {
  auto bringer = std::make_shared<const runtime::Bringer>(callbacks);
  return runtime::make(std::move(bringer), options, runtime::key_of_group(options.group),
                       runtime::deadline_after(timeout));
}

}  // namespace commfuse
