#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>

#include "commfuse/exchange.hpp"

namespace commfuse {
namespace {

using std::chrono::milliseconds;
constexpr Timeout kLong = std::chrono::seconds(20);

Blob blob_of(const std::string& text) {
  Blob blob(text.size());
  if (!text.empty()) std::memcpy(blob.data(), text.data(), text.size());
  return blob;
}

/// An ExchangeError as text, or "" for none.
std::string outcome_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const ExchangeError& error) {
    std::string text(to_string(error.code()));
    for (int rank : error.ranks()) text += " " + std::to_string(rank);
    return text;
  } catch (const Error& error) {
    return "Error " + std::string(to_string(error.code()));
  }
  return "";
}

/// Runs `body` for each end in a thread of its own and gives each one's outcome.
std::vector<std::string> run(std::vector<std::unique_ptr<Exchange>> ends, const std::function<void(Exchange&)>& body) {
  std::vector<std::string> outcomes(ends.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    threads.emplace_back([&, i] {
      const auto own = std::move(ends[i]);
      outcomes[i] = outcome_of([&] { body(*own); });
    });
  }
  for (auto& thread : threads) thread.join();
  return outcomes;
}

void gather_and_check(Exchange& exchange, int round) {
  const auto text_of = [&](int rank) {
    return exchange.group() + " " + std::to_string(round) + std::string(static_cast<std::size_t>(rank), 'x');
  };
  const auto blobs = exchange.all_gather(blob_of(text_of(exchange.rank())), kLong);
  ASSERT_EQ(blobs.size(), static_cast<std::size_t>(exchange.size()));
  for (int rank = 0; rank < exchange.size(); ++rank)
    EXPECT_EQ(blobs[static_cast<std::size_t>(rank)], blob_of(text_of(rank)));
}

TEST(ThreadExchange, ThirtyTwoThreadsGatherWhatEachGave) {
  const auto outcomes = run(make_thread_exchanges(32), [](Exchange& exchange) {
    for (int round = 0; round < 50; ++round) {
      gather_and_check(exchange, round);
      exchange.barrier(kLong);
    }
  });
  EXPECT_EQ(outcomes, std::vector<std::string>(32));
}

TEST(ThreadExchange, NobodyLeavesABarrierBeforeAllHaveCome) {
  std::atomic<int> inside = 0;
  const auto outcomes = run(make_thread_exchanges(8), [&](Exchange& exchange) {
    for (int round = 1; round <= 100; ++round) {
      ++inside;
      exchange.barrier(kLong);
      EXPECT_GE(inside, 8 * round);
    }
  });
  EXPECT_EQ(outcomes, std::vector<std::string>(8));
}

TEST(ThreadExchange, GroupsOfEqualSizeThatSplitAtTheSameTimeNeverCross) {
  const auto outcomes = run(make_thread_exchanges(8), [](Exchange& exchange) {
    const std::vector<int> own = exchange.rank() % 2 == 0 ? std::vector{0, 2, 4, 6} : std::vector{1, 3, 5, 7};
    const auto child = exchange.split(own, kLong);
    ASSERT_NE(child, nullptr);
    EXPECT_EQ(child->size(), 4);
    EXPECT_EQ(child->rank(), exchange.rank() / 2);
    for (int round = 0; round < 20; ++round) gather_and_check(*child, round);
    const auto pair = child->split(child->rank() < 2 ? std::vector{0, 1} : std::vector{2, 3}, kLong);
    for (int round = 0; round < 20; ++round) gather_and_check(*pair, round);
    gather_and_check(exchange, 7);
  });
  EXPECT_EQ(outcomes, std::vector<std::string>(8));
}

TEST(ThreadExchange, ARankMayTakePartInASplitWithoutJoiningAGroup) {
  const auto outcomes = run(make_thread_exchanges(3), [](Exchange& exchange) {
    const auto child = exchange.split(exchange.rank() < 2 ? std::vector{0, 1} : std::vector<int>{}, kLong);
    EXPECT_EQ(child == nullptr, exchange.rank() == 2);
    if (child) gather_and_check(*child, 1);
  });
  EXPECT_EQ(outcomes, std::vector<std::string>(3));
}

TEST(ThreadExchange, PassesDescriptors) {
  const auto outcomes = run(make_thread_exchanges(3), [](Exchange& exchange) {
    for (int from = 0; from < 3; ++from) {
      for (int to = 0; to < 3; ++to) {
        const std::string text = std::to_string(from) + std::to_string(to);
        const Descriptor file(::memfd_create("test", MFD_CLOEXEC));
        ASSERT_EQ(::write(file.get(), text.data(), text.size()), 2);
        const Descriptor received = exchange.hand_over_descriptor(from, to, file.get(), kLong);
        EXPECT_EQ(received.is_open(), exchange.rank() == to);
        if (!received.is_open()) continue;
        char content[3] = {};
        EXPECT_EQ(::pread(received.get(), content, 2, 0), 2);
        EXPECT_EQ(content, text);
      }
    }
  });
  EXPECT_EQ(outcomes, std::vector<std::string>(3));
}

TEST(ThreadExchange, AMissingThreadIsNamedToAllOthersWithinTheTimeout) {
  const auto outcomes = run(make_thread_exchanges(4), [](Exchange& exchange) {
    if (exchange.rank() == 2) {
      std::this_thread::sleep_for(milliseconds(400));
    } else {
      exchange.barrier(exchange.rank() == 1 ? Timeout(100) : kLong);
    }
  });
  EXPECT_EQ(outcomes, (std::vector<std::string>{"Timeout 2", "Timeout 2", "", "Timeout 2"}));
}

TEST(ThreadExchange, AThreadThatLeavesIsNamedAtOnceAndTheExchangeIsFinished) {
  const auto outcomes = run(make_thread_exchanges(3), [](Exchange& exchange) {
    exchange.barrier(kLong);
    if (exchange.rank() == 1) return;
    EXPECT_EQ(outcome_of([&] { exchange.barrier(kLong); }), "Io 1");
    EXPECT_EQ(
        outcome_of([&] { (void)exchange.hand_over_descriptor(1 - exchange.rank() / 2, exchange.rank(), 0, kLong); }),
        "Io 1");
    exchange.barrier(kLong);
  });
  EXPECT_EQ(outcomes, (std::vector<std::string>{"Io 1", "", "Io 1"}));
}

TEST(ThreadExchange, DifferentCallsAndAbandonedOnesFailOnEveryThread) {
  EXPECT_EQ(run(make_thread_exchanges(3),
                [](Exchange& exchange) {
                  if (exchange.rank() == 2) return exchange.barrier(kLong);
                  (void)exchange.all_gather({}, kLong);
                }),
            std::vector<std::string>(3, "Mismatch 2"));
  EXPECT_EQ(run(make_thread_exchanges(3),
                [](Exchange& exchange) {
                  if (exchange.rank() == 0) exchange.abandon(Code::kDriver, "as a test", kLong);
                  exchange.barrier(kLong);
                }),
            std::vector<std::string>(3, "Driver 0"));
  EXPECT_EQ(run(make_thread_exchanges(2),
                [](Exchange& exchange) {
                  (void)exchange.all_gather(Blob(exchange.rank() == 1 ? kMaxBlobBytes + 1 : 1), kLong);
                }),
            std::vector<std::string>(2, "InvalidArgument 1"));
}

TEST(ThreadExchange, WrongSplitsAreTheSameErrorOnEveryThreadAndLeaveTheGroupUsable) {
  for (const std::vector<int>& wrong : {std::vector{1, 0}, std::vector{0, 0, 1}, std::vector{0, 9}, std::vector{0}}) {
    EXPECT_EQ(run(make_thread_exchanges(2),
                  [&](Exchange& exchange) {
                    const std::vector<int> good = {0, 1};
                    EXPECT_EQ(outcome_of([&] {
                                (void)exchange.split(exchange.rank() == 1 ? wrong : good, kLong);
                              }).substr(0, 8),
                              "Mismatch");
                    gather_and_check(exchange, 1);
                  }),
              std::vector<std::string>(2));
  }
}

TEST(ThreadExchange, TwoCallsAtOnceAreBusy) {
  auto ends = make_thread_exchanges(2);
  // It may find the other thread inside for a moment, too.
  std::thread waiting([&] {
    while (outcome_of([&] { ends[0]->barrier(kLong); }) == "Error Busy") std::this_thread::yield();
  });
  std::string outcome;
  while (outcome != "Error Busy") {
    // A timeout of nothing fails before it can disturb the call of the other thread, in case that has not started.
    outcome = outcome_of([&] { ends[0]->barrier(Timeout(0)); });
    ASSERT_TRUE(outcome == "Error Busy" || outcome == "Error InvalidArgument") << outcome;
  }
  ends[1]->barrier(kLong);
  waiting.join();
}

TEST(ThreadExchange, WrongArgumentsAreRefused) {
  EXPECT_EQ(outcome_of([] { (void)make_thread_exchanges(0); }), "Error InvalidArgument");
  EXPECT_EQ(outcome_of([] { (void)make_thread_exchanges(kMaxExchangeSize + 1); }), "Error InvalidArgument");
  auto ends = make_thread_exchanges(1);
  EXPECT_EQ(outcome_of([&] { ends[0]->barrier(Timeout(-1)); }), "Error InvalidArgument");
  EXPECT_EQ(outcome_of([&] { (void)ends[0]->host(1); }), "Error InvalidArgument");
  EXPECT_EQ(outcome_of([&] { (void)ends[0]->hand_over_descriptor(0, 1, 0, kLong); }), "Error InvalidArgument");
  EXPECT_EQ(outcome_of([&] { (void)ends[0]->hand_over_descriptor(0, 0, -1, kLong); }), "Error InvalidArgument");
  EXPECT_EQ(outcome_of([&] { ends[0]->barrier(Timeout::max()); }), "");
}

TEST(Agreement, NamesTheMinorityWithTheSameErrorOnEveryRank) {
  const auto agree_on = [](const std::vector<std::string>& values) {
    return run(make_thread_exchanges(static_cast<int>(values.size())), [&](Exchange& exchange) {
      agree(exchange, "the deployment", blob_of(values[static_cast<std::size_t>(exchange.rank())]), kLong);
    });
  };
  EXPECT_EQ(agree_on({"a", "a", "a"}), std::vector<std::string>(3));
  EXPECT_EQ(agree_on({"b", "a", "a"}), std::vector<std::string>(3, "Mismatch 0"));
  EXPECT_EQ(agree_on({"a", "b"}), std::vector<std::string>(2, "Mismatch 1"));
  EXPECT_EQ(agree_on({"a", "b", "a", "c"}), std::vector<std::string>(4, "Mismatch 1 3"));
  EXPECT_EQ(agree_on({"", "a"}), std::vector<std::string>(2, "Mismatch 1"));
  const std::string large(100000, 'x');
  EXPECT_EQ(agree_on({large, large}), std::vector<std::string>(2));
  EXPECT_EQ(agree_on({large, large, large + "y"}), std::vector<std::string>(3, "Mismatch 2"));
}

TEST(Agreement, ShowsWhereValuesDiffer) {
  const auto text_of = [](const std::string& first, const std::string& second) {
    std::string text;
    run(make_thread_exchanges(2), [&](Exchange& exchange) {
      try {
        agree(exchange, "the kernels", blob_of(exchange.rank() == 0 ? first : second), kLong);
      } catch (const Error& error) {
        if (exchange.rank() == 1) text = error.what();
        EXPECT_NO_THROW(exchange.barrier(kLong));
      }
    });
    return text;
  };
  const std::string text = text_of(std::string(50, '=') + "sm_90a", std::string(50, '=') + "sm_100a");
  EXPECT_NE(text.find("do not agree on the kernels: rank 1 differs"), std::string::npos) << text;
  EXPECT_NE(text.find("at byte 53 "), std::string::npos) << text;
  EXPECT_NE(text.find("=sm_100a'"), std::string::npos) << text;
  EXPECT_NE(text.find("=sm_90a'"), std::string::npos) << text;
  EXPECT_NE(text_of(std::string("\x01\x02", 2), std::string("\x01\x03", 2)).find("0x0103"), std::string::npos);
}

TEST(ThisHost, IsTheSameForTheWholeProcessAndNamesItsNamespaces) {
  const HostIdentity host = this_host();
  EXPECT_EQ(host, this_host());
  EXPECT_FALSE(host.host.empty());
  EXPECT_NE(host.mount_namespace, 0U);
  EXPECT_EQ(host.process, static_cast<std::uint32_t>(::getpid()));
}

}  // namespace
}  // namespace commfuse
