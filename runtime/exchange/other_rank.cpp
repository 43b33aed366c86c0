#include <algorithm>

#include "runtime/exchange/star_exchange.hpp"

namespace commfuse::runtime {
namespace {

class OtherRank final : public StarExchange {
 public:
  using StarExchange::StarExchange;

 private:
  std::vector<Blob> gather(Operation operation, std::span<const std::byte> blob, Deadline deadline) override {
    const Deadline started = Clock::now();
    Connection& first = *connection(0);
    // A failure of an earlier time may be waiting; read first, since after a reset it would be gone.
    first.pump();
    Message message;
    message.kind = MessageKind::kBlob;
    message.operation = static_cast<std::uint8_t>(operation);
    message.rank = rank();
    message.patience = static_cast<std::uint32_t>(milliseconds_left(deadline));
    message.payload.assign(blob.begin(), blob.end());
    first.send(std::move(message));

    std::vector<Blob> blobs;
    while (blobs.size() < static_cast<std::size_t>(size())) {
      auto answer = first.take();
      if (answer) {
        accept(std::move(*answer), operation, blobs);
      } else if (first.is_lost()) {
        throw ExchangeError(Code::kIo, {0}, what(), "rank 0: " + first.loss(), "");
      } else if (Clock::now() >= deadline) {
        const ExchangeError silence(Code::kTimeout, {0}, what(),
                                    "rank 0 did not come within " +
                                        std::to_string(std::chrono::ceil<Timeout>(Clock::now() - started).count()) +
                                        " ms",
                                    "See whether it still runs; give a longer timeout if it is only late");
        announce_failure(silence, deadline);
        throw ExchangeError(silence);
      } else {
        Connection* only = &first;
        pump_all(std::span(&only, 1), deadline);
      }
    }
    return blobs;
  }

  void accept(Message message, Operation operation, std::vector<Blob>& blobs) {
    if (message.kind == MessageKind::kFailure) {
      if (const auto failure = read_failure(message.payload)) throw ExchangeError(*failure);
    }
    if (message.kind != MessageKind::kBlob || message.operation != static_cast<std::uint8_t>(operation) ||
        message.rank != static_cast<int>(blobs.size())) {
      throw ExchangeError(Code::kInvalidInput, {0}, what(), "rank 0 sent a message out of turn", "");
    }
    blobs.push_back(std::move(message.payload));
  }

  void announce_failure(const ExchangeError& failure, Deadline deadline) noexcept override {
    Connection* const first = connection(0);
    send_failure(failure, std::span(&first, 1), deadline);
  }
};

}  // namespace

std::unique_ptr<StarExchange> make_other_rank(Meeting meeting, Company company) {
  return std::make_unique<OtherRank>(std::move(meeting), std::move(company));
}

}  // namespace commfuse::runtime
