#include <algorithm>

#include "runtime/exchange/star_exchange.hpp"

namespace commfuse::runtime {
namespace {

std::string name_of(int rank) { return "rank " + std::to_string(rank); }

class FirstRank final : public StarExchange {
 public:
  FirstRank(Meeting meeting, Company company) : StarExchange(std::move(meeting), std::move(company)) {
    for (int rank = 1; rank < size(); ++rank) others_.push_back(connection(rank));
  }

  ~FirstRank() override {
    // What the others sent and nobody read would make the kernel reset a TCP connection, and with it what they were
    // told.
    try {
      for (Connection* other : others_) other->pump();
    } catch (const std::exception&) {
      // Out of memory: a reset, then.
    }
  }

 private:
  std::vector<Blob> gather(Operation operation, std::span<const std::byte> blob, Deadline deadline) override {
    Collecting state(size(), Clock::now(), deadline);
    state.blobs[0].assign(blob.begin(), blob.end());
    while (state.missing > 0) {
      for (int rank = 1; rank < size(); ++rank) hear(rank, operation, state);
      if (state.missing == 0) break;
      if (Clock::now() >= state.telling) throw_to_all(absence(state, 0), deadline);
      pump_all(others_, state.telling);
    }
    answer(operation, state.blobs, deadline);
    return std::move(state.blobs);
  }

  struct Collecting {
    Collecting(int size, Deadline now, Deadline deadline)
        : blobs(static_cast<std::size_t>(size)),
          has_come(static_cast<std::size_t>(size), false),
          missing(size - 1),
          started(now),
          telling(deadline - telling_time(left(deadline))) {}
    std::vector<Blob> blobs;
    std::vector<bool> has_come;
    int missing;
    Deadline started;
    Deadline telling;
  };

  void hear(int rank, Operation operation, Collecting& state) {
    const auto index = static_cast<std::size_t>(rank);
    auto message = connection(rank)->take();
    if (!message) {
      if (!connection(rank)->is_lost()) return;
      throw_to_all({Code::kIo, {rank}, what(), name_of(rank) + ": " + connection(rank)->loss(), ""}, telling_end());
    }
    if (message->kind == MessageKind::kFailure) {
      const auto failure = read_failure(message->payload);
      if (failure && is_impatience(*failure)) throw_to_all(absence(state, rank), telling_end());
      if (failure) {
        throw_to_all({failure->code(), {rank}, what(), failure->message() + ": " + failure->cause(), failure->remedy()},
                     telling_end());
      }
    }
    if (message->kind != MessageKind::kBlob || message->rank != rank || state.has_come[index]) {
      throw_to_all({Code::kInvalidInput, {rank}, what(), name_of(rank) + " sent a message out of turn", ""},
                   telling_end());
    }
    if (message->operation != static_cast<std::uint8_t>(operation)) {
      throw_to_all({Code::kMismatch,
                    {rank},
                    what(),
                    name_of(rank) + " made another call than rank 0",
                    "Make the same calls on every rank"},
                   telling_end());
    }
    const Timeout patience(message->patience);
    state.telling = std::min(state.telling, Clock::now() + patience - telling_time(patience));
    state.blobs[index] = std::move(message->payload);
    state.has_come[index] = true;
    --state.missing;
  }

  /// Sends all blobs to all ranks, each as fast as it reads: one that has stopped does not hold up the others.
  void answer(Operation operation, const std::vector<Blob>& blobs, Deadline deadline) {
    std::vector<std::size_t> next(static_cast<std::size_t>(size()), 0);
    for (;;) {
      std::vector<Connection*> unfinished;
      std::vector<int> silent;
      for (int rank = 1; rank < size(); ++rank) {
        auto& sent = next[static_cast<std::size_t>(rank)];
        for (; connection(rank)->is_flushed() && sent < blobs.size() && !connection(rank)->has_send_failed(); ++sent) {
          Message message;
          message.kind = MessageKind::kBlob;
          message.operation = static_cast<std::uint8_t>(operation);
          message.rank = static_cast<int>(sent);
          message.payload = blobs[sent];
          connection(rank)->send(std::move(message));
        }
        if (connection(rank)->has_send_failed()) {
          throw_to_all({Code::kIo, {rank}, what(), name_of(rank) + ": its connection broke while it was answered", ""},
                       telling_end());
        }
        if (connection(rank)->is_flushed()) continue;
        unfinished.push_back(connection(rank));
        silent.push_back(rank);
      }
      if (unfinished.empty()) return;
      if (Clock::now() >= deadline) {
        throw_to_all({Code::kTimeout, silent, what(), rank_list(silent) + " stopped reading within the timeout", ""},
                     deadline);
      }
      pump_all(unfinished, deadline);
    }
  }

  /// A rank ran into its own timeout while it waited for this one: no fault of that rank.
  static bool is_impatience(const ExchangeError& failure) {
    return failure.code() == Code::kTimeout && failure.ranks() == std::vector<int>{0};
  }

  /// Who did not come; if all but `impatient` did, then it was this rank that came too late for it.
  [[nodiscard]] ExchangeError absence(const Collecting& state, int impatient) const {
    std::vector<int> missing;
    for (int rank = 1; rank < size(); ++rank) {
      if (rank != impatient && !state.has_come[static_cast<std::size_t>(rank)]) missing.push_back(rank);
    }
    if (missing.empty()) missing.push_back(0);
    const std::string waited = std::to_string(std::chrono::ceil<Timeout>(Clock::now() - state.started).count()) + " ms";
    return {Code::kTimeout, missing, what(),
            rank_list(missing) + " did not come in time" +
                (missing.front() == 0 ? " for rank " + std::to_string(impatient) : ": rank 0 waited " + waited),
            "See whether they still run; give a longer timeout if they are only late"};
  }

  [[nodiscard]] static Deadline telling_end() { return Clock::now() + kFailureTime; }

  [[noreturn]] void throw_to_all(const ExchangeError& error, Deadline deadline) {
    announce_failure(error, deadline);
    throw ExchangeError(error);
  }

  void announce_failure(const ExchangeError& failure, Deadline deadline) noexcept override {
    send_failure(failure, others_, deadline);
  }

  std::vector<Connection*> others_;  ///< made once, so that telling a failure needs no memory for it
};

}  // namespace

std::unique_ptr<StarExchange> make_first_rank(Meeting meeting, Company company) {
  return std::make_unique<FirstRank>(std::move(meeting), std::move(company));
}

}  // namespace commfuse::runtime
