#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>

#include "commfuse/exchange.hpp"

namespace commfuse {
namespace {

constexpr Timeout kLong = std::chrono::seconds(20);

/// An engine's collective library, played by threads.
struct Engine {
  std::unique_ptr<Exchange> threads;
  int garbled_round = -1;  ///< the round in which the bytes come out wrong
  int failing_round = -1;
  int round = 0;
  static std::atomic<int> alive;
  explicit Engine(std::unique_ptr<Exchange> end) : threads(std::move(end)) { ++alive; }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine() { --alive; }
};
std::atomic<int> Engine::alive = 0;

int all_gather(void* user, const void* send, void* receive, std::size_t bytes, std::int64_t timeout_ms,
               unsigned char* missing) {
  auto& engine = *static_cast<Engine*>(user);
  const int round = engine.round++;
  if (round == engine.failing_round) return 5;
  try {
    const auto blobs =
        engine.threads->all_gather(std::span(static_cast<const std::byte*>(send), bytes), Timeout(timeout_ms));
    auto* place = static_cast<std::byte*>(receive);
    for (const Blob& blob : blobs) {
      if (blob.size() != bytes) return 6;
      std::memcpy(place, blob.data(), bytes);
      place += bytes;
    }
    if (round == engine.garbled_round) std::memset(receive, 0xee, bytes);
    return 0;
  } catch (const ExchangeError& error) {
    for (int rank : error.ranks()) missing[rank] = 1;
    return 7;
  }
}

int hand_over(void* user, int from, int to, int descriptor, int* received, std::int64_t timeout_ms) {
  try {
    *received =
        static_cast<Engine*>(user)->threads->hand_over_descriptor(from, to, descriptor, Timeout(timeout_ms)).release();
    return 0;
  } catch (const Error&) {
    return 8;
  }
}

int split(void* user, const int* members, int count, std::int64_t timeout_ms, ExchangeCallbacks* child);

void release(void* user) { delete static_cast<Engine*>(user); }

ExchangeCallbacks callbacks_of(std::unique_ptr<Exchange> end) {
  ExchangeCallbacks callbacks;
  callbacks.user = new Engine(std::move(end));
  callbacks.all_gather = all_gather;
  callbacks.release = release;
  return callbacks;
}

int split(void* user, const int* members, int count, std::int64_t timeout_ms, ExchangeCallbacks* child) {
  try {
    const std::span own(members, static_cast<std::size_t>(count));
    *child = callbacks_of(static_cast<Engine*>(user)->threads->split(own, Timeout(timeout_ms)));
    return 0;
  } catch (const Error&) {
    return 9;
  }
}

class CallbackExchange : public testing::Test {
 protected:
  CallbackExchange() {
    std::string name = (std::filesystem::temp_directory_path() / "commfuse-callback-XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    folder = name;
  }
  ~CallbackExchange() override {
    EXPECT_EQ(Engine::alive, 0) << "each engine is released once";
    EXPECT_TRUE(std::filesystem::is_empty(folder));
    std::filesystem::remove_all(folder);
  }

  std::vector<std::string> run(
      int size, const std::function<void(Exchange&)>& body,
      const std::function<void(ExchangeCallbacks&, CallbackExchangeOptions&)>& change = [](ExchangeCallbacks&,
                                                                                           CallbackExchangeOptions&) {},
      Timeout timeout = kLong) const {
    auto ends = make_thread_exchanges(size);
    std::vector<std::string> outcomes(ends.size());
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        CallbackExchangeOptions options{"group", rank, size, folder, {}};
        ExchangeCallbacks callbacks = callbacks_of(std::move(ends[static_cast<std::size_t>(rank)]));
        change(callbacks, options);
        std::string& outcome = outcomes[static_cast<std::size_t>(rank)];
        try {
          const auto exchange = make_callback_exchange(callbacks, options, timeout);
          body(*exchange);
        } catch (const ExchangeError& error) {
          outcome = to_string(error.code());
          for (int failing : error.ranks()) outcome += " " + std::to_string(failing);
        } catch (const Error& error) {
          outcome = "Error " + std::string(to_string(error.code()));
        }
      });
    }
    for (auto& thread : threads) thread.join();
    return outcomes;
  }
  std::filesystem::path folder;
};

void gather_and_check(Exchange& exchange, std::size_t length) {
  const auto blob_of = [&](int rank) {
    return Blob(length * static_cast<std::size_t>(rank), static_cast<std::byte>(rank + 1));
  };
  const auto blobs = exchange.all_gather(blob_of(exchange.rank()), kLong);
  for (int rank = 0; rank < exchange.size(); ++rank) EXPECT_EQ(blobs.at(static_cast<std::size_t>(rank)), blob_of(rank));
}

void pass_and_check(Exchange& exchange) {
  for (int from = 0; from < exchange.size(); ++from) {
    for (int to = 0; to < exchange.size(); ++to) {
      const std::string text = std::to_string(from) + std::to_string(to);
      const Descriptor file(::memfd_create("test", MFD_CLOEXEC));
      ASSERT_EQ(::write(file.get(), text.data(), text.size()), 2);
      const Descriptor received = exchange.hand_over_descriptor(from, to, file.get(), kLong);
      ASSERT_EQ(received.is_open(), exchange.rank() == to);
      if (!received.is_open()) continue;
      char content[3] = {};
      EXPECT_EQ(::pread(received.get(), content, 2, 0), 2);
      EXPECT_EQ(content, text);
    }
  }
}

TEST_F(CallbackExchange, GathersOverWhatTheEngineBringsAndPassesDescriptorsBesideIt) {
  EXPECT_EQ(run(4,
                [](Exchange& exchange) {
                  for (std::size_t length : {0, 1, 1000}) gather_and_check(exchange, length);
                  exchange.barrier(kLong);
                  pass_and_check(exchange);
                  EXPECT_EQ(exchange.host(3), this_host());
                }),
            std::vector<std::string>(4));
}

TEST_F(CallbackExchange, PassesDescriptorsThroughTheEngineWhereItOffersThat) {
  EXPECT_EQ(run(2, pass_and_check,
                [](ExchangeCallbacks& callbacks, CallbackExchangeOptions&) { callbacks.hand_over = hand_over; }),
            std::vector<std::string>(2));
}

TEST_F(CallbackExchange, RanksThatCannotMeetOnTheirHostGoWithoutDescriptorsAndSayWhy) {
  EXPECT_EQ(run(
                2,
                [](Exchange& exchange) {
                  gather_and_check(exchange, 10);
                  const Descriptor file(::memfd_create("test", MFD_CLOEXEC));
                  try {
                    (void)exchange.hand_over_descriptor(0, 1, file.get(), kLong);
                    ADD_FAILURE();
                  } catch (const Error& error) {
                    EXPECT_EQ(error.code(), Code::kUnsupported);
                    EXPECT_NE(error.cause().find("ranks 0 and 1 are in different mount namespaces"), std::string::npos)
                        << error.what();
                  }
                  gather_and_check(exchange, 10);
                },
                [](ExchangeCallbacks&, CallbackExchangeOptions& options) {
                  options.directory.clear();
                  options.host = this_host();
                  options.host->mount_namespace += static_cast<std::uint64_t>(options.rank);
                }),
            std::vector<std::string>(2));
}

TEST_F(CallbackExchange, SplitsThroughTheEngineOrOverUnixSockets) {
  for (bool has_split : {false, true}) {
    EXPECT_EQ(
        run(
            4,
            [](Exchange& exchange) {
              const auto child = exchange.split(exchange.rank() < 2 ? std::vector{0, 1} : std::vector{2, 3}, kLong);
              gather_and_check(*child, 100);
              pass_and_check(*child);
            },
            [&](ExchangeCallbacks& callbacks, CallbackExchangeOptions&) {
              if (has_split) callbacks.split = split;
            }),
        std::vector<std::string>(4));
  }
}

TEST_F(CallbackExchange, GroupsOfSeveralHostsCannotBeSplitWithoutTheEngine) {
  EXPECT_EQ(run(
                2,
                [](Exchange& exchange) {
                  (void)exchange.split(std::vector{0, 1}, kLong);
                },
                [](ExchangeCallbacks&, CallbackExchangeOptions& options) {
                  options.host = this_host();
                  options.host->host += std::to_string(options.rank);
                }),
            std::vector<std::string>(2, "Error Unsupported"));
}

TEST_F(CallbackExchange, WhatTheEngineSaysAboutMissingRanksIsPassedOn) {
  EXPECT_EQ(run(3,
                [](Exchange& exchange) {
                  if (exchange.rank() == 1) {
                    std::this_thread::sleep_for(Timeout(300));
                  } else {
                    exchange.barrier(Timeout(100));
                  }
                }),
            (std::vector<std::string>{"Timeout 1", "", "Timeout 1"}));
}

TEST_F(CallbackExchange, FailuresOfTheEngineAreIoErrors) {
  const auto outcomes = run(
      2, [](Exchange& exchange) { exchange.barrier(kLong); },
      [](ExchangeCallbacks& callbacks, CallbackExchangeOptions&) {
        static_cast<Engine*>(callbacks.user)->failing_round = 1;
      });
  EXPECT_EQ(outcomes, std::vector<std::string>(2, "Io"));
}

TEST_F(CallbackExchange, GarbledBytesAreRefused) {
  const auto outcomes = run(
      2, [](Exchange& exchange) { exchange.barrier(kLong); },
      [](ExchangeCallbacks& callbacks, CallbackExchangeOptions&) {
        static_cast<Engine*>(callbacks.user)->garbled_round = 0;
      });
  EXPECT_EQ(outcomes, std::vector<std::string>(2, "InvalidInput 0"));
}

TEST_F(CallbackExchange, CommunicatorsOfTwoGroupsThatWereMixedUpAreAMismatch) {
  const auto outcomes = run(
      2, [](Exchange& exchange) { exchange.barrier(kLong); },
      [](ExchangeCallbacks&, CallbackExchangeOptions& options) { options.group += std::to_string(options.rank); });
  EXPECT_EQ(outcomes, (std::vector<std::string>{"Mismatch 1", "Mismatch 0"}));
}

TEST_F(CallbackExchange, DifferentCallsAndAbandonedOnesFailOnEveryRank) {
  EXPECT_EQ(run(3,
                [](Exchange& exchange) {
                  if (exchange.rank() == 1) return exchange.barrier(kLong);
                  (void)exchange.all_gather(Blob(7), kLong);
                }),
            std::vector<std::string>(3, "Mismatch 1"));
  EXPECT_EQ(run(3,
                [](Exchange& exchange) {
                  if (exchange.rank() == 1) exchange.abandon(Code::kDriver, "as a test", kLong);
                  exchange.barrier(kLong);
                }),
            std::vector<std::string>(3, "Driver 1"));
}

TEST_F(CallbackExchange, WrongArgumentsAreRefusedAndTheEngineIsReleased) {
  EXPECT_EQ(run(
                1, [](Exchange&) {},
                [](ExchangeCallbacks& callbacks, CallbackExchangeOptions&) { callbacks.all_gather = nullptr; }),
            std::vector<std::string>(1, "Error InvalidArgument"));
  EXPECT_EQ(run(
                1, [](Exchange&) {}, [](ExchangeCallbacks&, CallbackExchangeOptions& options) { options.rank = 3; }),
            std::vector<std::string>(1, "Error InvalidArgument"));
  EXPECT_EQ(run(
                1, [](Exchange&) {}, [](ExchangeCallbacks&, CallbackExchangeOptions&) {}, Timeout(0)),
            std::vector<std::string>(1, "Error InvalidArgument"));
}

}  // namespace
}  // namespace commfuse
