// Processes and threads that want the same kernels at the same time.
#include "cache/obtain.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <barrier>
#include <thread>

#include "cache/flights.hpp"
#include "cache/locks.hpp"
#include "commfuse/error.hpp"
#include "process/cache_process.hpp"
#include "unit/cache_testing.hpp"

namespace commfuse::cache {
namespace {

using testing::Child;
using testing::options_for;
using testing::Sample;
using testing::TemporaryDirectory;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

// Memory that parent and children share.
template <typename T>
class Shared {
 public:
  Shared() {
    void* memory = ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    value_ = new (memory) T;
  }
  ~Shared() { ::munmap(value_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  T* operator->() const { return value_; }

 private:
  T* value_;
};

class ProcessBarrier {
 public:
  explicit ProcessBarrier(unsigned count) {
    pthread_barrierattr_t attributes;
    ::pthread_barrierattr_init(&attributes);
    ::pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    ::pthread_barrier_init(&barrier_->value, &attributes, count);
  }
  void wait() { ::pthread_barrier_wait(&barrier_->value); }

 private:
  struct Barrier {
    pthread_barrier_t value;
  };
  Shared<Barrier> barrier_;
};

class Obtain : public ::testing::Test {
 protected:
  [[nodiscard]] StoreOptions options(const char* name = "cache") const {
    StoreOptions result = options_for(dir_ / name);
    result.directories.runtime = dir_ / "run";
    return result;
  }
  void SetUp() override { ASSERT_TRUE(fs::create_directory(dir_ / "run")); }
  TemporaryDirectory dir_;
};

std::vector<Sample> samples(int count, const std::string& prefix = "kernel_") {
  std::vector<Sample> all;
  for (int i = 0; i < count; ++i) all.emplace_back(prefix + std::to_string(i), 100 + static_cast<std::size_t>(i));
  return all;
}

std::vector<Wanted> wanted(const std::vector<Sample>& all) {
  std::vector<Wanted> list;
  for (const Sample& sample : all) list.push_back({sample.key, sample.json});
  return list;
}

Compiled compiled(const Sample& sample) { return {sample.cubin, testing::kFacts}; }

TEST_F(Obtain, SixteenProcessesCompileEachKeyOnceInEachOfAHundredRounds) {
  constexpr int kProcesses = 16, kRounds = 100, kKeys = 3;
  Shared<std::array<std::atomic<int>, kRounds * kKeys>> compiles;
  ProcessBarrier start(kProcesses);
  std::vector<Child> children;
  for (int rank = 0; rank < kProcesses; ++rank) {
    children.emplace_back([&, rank]() -> std::string {
      const Store store(options());
      for (int round = 0; round < kRounds; ++round) {
        const std::vector<Sample> all = samples(kKeys, "round_" + std::to_string(round) + "_");
        start.wait();
        const auto got = obtain(store, wanted(all),
                                [&](std::size_t i) {
                                  ++(*compiles.operator->())[static_cast<std::size_t>(round * kKeys) + i];
                                  std::this_thread::sleep_for(1ms);
                                  return compiled(all[i]);
                                },
                                {.rank = rank, .ranks = kProcesses});
        for (std::size_t i = 0; i < all.size(); ++i) {
          if (got[i].cubin != all[i].cubin) return "wrong kernel in round " + std::to_string(round);
        }
      }
      return {};
    });
  }
  for (Child& child : children) EXPECT_EQ(child.result(), "");
  for (std::size_t i = 0; i < compiles->size(); ++i) EXPECT_EQ((*compiles.operator->())[i], 1) << "key " << i;
  int locks_left = 0;
  for (const auto& entry : fs::directory_iterator(dir_ / "run/commfuse"))
    locks_left += entry.path().extension() == ".lock";
  EXPECT_EQ(locks_left, 0);
}

TEST_F(Obtain, RanksThatStartTogetherShareTheWork) {
  constexpr int kRanks = 4, kKeys = 16;
  Shared<std::array<std::atomic<int>, kRanks>> compiles;
  ProcessBarrier start(kRanks);
  const std::vector<Sample> all = samples(kKeys);
  std::vector<Child> children;
  for (int rank = 0; rank < kRanks; ++rank) {
    children.emplace_back([&, rank]() -> std::string {
      const Store store(options());
      start.wait();
      (void)obtain(store, wanted(all),
                   [&](std::size_t i) {
                     ++(*compiles.operator->())[static_cast<std::size_t>(rank)];
                     std::this_thread::sleep_for(20ms);
                     return compiled(all[i]);
                   },
                   {.rank = rank, .ranks = kRanks});
      return {};
    });
  }
  for (Child& child : children) EXPECT_EQ(child.result(), "");
  int total = 0;
  for (const auto& count : *compiles.operator->()) {
    EXPECT_GE(count, 1);
    total += count;
  }
  EXPECT_EQ(total, kKeys);
}

TEST_F(Obtain, StartsAtTheRanksShareOfTheListAndReportsByIndex) {
  const std::vector<Sample> all = samples(8);
  std::vector<std::size_t> compile_order, done_order;
  const auto got = obtain(
      Store(options()), wanted(all),
      [&](std::size_t i) {
        compile_order.push_back(i);
        return compiled(all[i]);
      },
      {.rank = 3, .ranks = 4}, [&](std::size_t i, const Obtained&) { done_order.push_back(i); });
  EXPECT_EQ(compile_order, (std::vector<std::size_t>{6, 7, 0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(done_order, compile_order);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(got[i].origin, Origin::kCompiled);
    EXPECT_EQ(got[i].cubin, all[i].cubin);
    EXPECT_TRUE(got[i].publication.stored());
    EXPECT_EQ(got[i].miss.reason, Miss::kAbsent);
  }
}

TEST_F(Obtain, ASecondCallFindsEverythingAndTouchesNoLock) {
  const std::vector<Sample> all = samples(5);
  (void)obtain(Store(options()), wanted(all), [&](std::size_t i) { return compiled(all[i]); });
  fs::remove_all(dir_ / "run/commfuse");
  const auto got =
      obtain(Store(options()), wanted(all), [&](std::size_t) -> Compiled { throw std::logic_error("no"); });
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(got[i].origin, Origin::kHit);
  EXPECT_FALSE(fs::exists(dir_ / "run/commfuse"));
}

TEST_F(Obtain, TheLockOfAKilledProcessIsFreeAtOnce) {
  const std::vector<Sample> all = samples(1);
  ProcessBarrier compiling(2);
  Child victim([&]() -> std::string {
    (void)obtain(Store(options()), wanted(all), [&](std::size_t) -> Compiled {
      compiling.wait();
      for (;;) ::pause();
    });
    return {};
  });
  compiling.wait();
  const Store store(options());
  EXPECT_EQ(store.locks().try_lock(all[0].key).result, LockAttempt::Result::kBusy);
  ::kill(victim.pid(), SIGKILL);
  const auto begin = std::chrono::steady_clock::now();
  const auto got = obtain(store, wanted(all), [&](std::size_t) { return compiled(all[0]); }, {.patience = 60s});
  EXPECT_EQ(got[0].origin, Origin::kCompiled);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
  EXPECT_EQ(victim.result(), "signal 9");
}

TEST_F(Obtain, AHolderThatIsStoppedIsWaitedForOnlySoLong) {
  const std::vector<Sample> all = samples(1);
  ProcessBarrier compiling(2);
  Child holder([&]() -> std::string {
    (void)obtain(Store(options()), wanted(all), [&](std::size_t) -> Compiled {
      compiling.wait();
      for (;;) ::pause();
    });
    return {};
  });
  compiling.wait();
  ::kill(holder.pid(), SIGSTOP);
  const auto begin = std::chrono::steady_clock::now();
  const auto got =
      obtain(Store(options()), wanted(all), [&](std::size_t) { return compiled(all[0]); }, {.patience = 150ms});
  EXPECT_EQ(got[0].origin, Origin::kCompiled);
  EXPECT_TRUE(got[0].publication.stored());
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 150ms);
  ::kill(holder.pid(), SIGKILL);
  EXPECT_EQ(holder.result(), "signal 9");
}

TEST_F(Obtain, WithoutAnyPlaceForLocksKernelsAreCompiledAllTheSame) {
  if (!testing::private_mounts_work()) GTEST_SKIP() << "mounting is not allowed here";
  const std::vector<Sample> all = samples(3);
  EXPECT_EQ(testing::run_in_child([&]() -> std::string {
              if (!testing::enter_private_mounts()) return "unshare";
              for (const char* place : {"/tmp", "/dev/shm"}) {
                if (::mount("none", place, "tmpfs", MS_RDONLY, nullptr) != 0) return "mount";
              }
              if (::mount("none", "/mnt", "tmpfs", 0, "mode=0700") != 0) return "mount";
              const Store store(options_for("/mnt/cache"));
              if (store.locks().try_lock(all[0].key).result != LockAttempt::Result::kUnavailable) return "a lock";
              if (!store.locks().directory().empty()) return "a directory";
              const auto got = obtain(store, wanted(all), [&](std::size_t i) { return compiled(all[i]); }, {.jobs = 2});
              for (const Obtained& one : got) {
                if (one.origin != Origin::kCompiled || !one.publication.stored()) return "not compiled";
              }
              return {};
            }),
            "");
}

TEST_F(Obtain, ThirtyTwoThreadsCompileEachKeyOnce) {
  constexpr int kThreads = 32, kKeys = 6;
  const std::vector<Sample> all = samples(kKeys);
  std::array<std::atomic<int>, kKeys> compiles{};
  std::atomic<int> wrong{0};
  std::barrier start(kThreads);
  const Store store(options());
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      start.arrive_and_wait();
      const auto got = obtain(store, wanted(all),
                              [&](std::size_t i) {
                                ++compiles[i];
                                std::this_thread::sleep_for(2ms);
                                return compiled(all[i]);
                              },
                              {.rank = t, .ranks = kThreads});
      for (std::size_t i = 0; i < all.size(); ++i) wrong += got[i].cubin != all[i].cubin;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& count : compiles) EXPECT_EQ(count, 1);
  EXPECT_EQ(wrong, 0);
}

TEST_F(Obtain, JobsRunAtTheSameTime) {
  const std::vector<Sample> all = samples(4);
  std::barrier together(4);  // passes only if four compiles are under way at once
  const auto got = obtain(Store(options()), wanted(all),
                          [&](std::size_t i) {
                            together.arrive_and_wait();
                            return compiled(all[i]);
                          },
                          {.jobs = 4});
  for (const Obtained& one : got) EXPECT_EQ(one.origin, Origin::kCompiled);
}

TEST_F(Obtain, AFailedCompileIsToldAndForgotten) {
  const std::vector<Sample> all = samples(3);
  const Store store(options());
  const auto failing = [&](std::size_t i) -> Compiled {
    if (i == 1) throw Error(Code::kCompiler, "cannot compile", "line 3");
    return compiled(all[i]);
  };
  const auto first = obtain(store, wanted(all), failing);
  EXPECT_EQ(first[0].origin, Origin::kCompiled);
  EXPECT_EQ(first[2].origin, Origin::kCompiled);
  ASSERT_EQ(first[1].origin, Origin::kFailed);
  try {
    std::rethrow_exception(first[1].error);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kCompiler);
  }
  EXPECT_EQ(store.list().size(), 2u);
  const auto second = obtain(store, wanted(all), [&](std::size_t i) { return compiled(all[i]); });
  EXPECT_EQ(second[1].origin, Origin::kCompiled);
  EXPECT_EQ(second[0].origin, Origin::kHit);
}

TEST_F(Obtain, AKernelThatCannotBeStoredIsReturned) {
  testing::write_all(dir_ / "file", "in the way");
  const std::vector<Sample> all = samples(2);
  std::vector<std::string> warnings;
  StoreOptions blocked = options("file/cache");
  blocked.warn = [&](std::string_view text) { warnings.emplace_back(text); };
  const auto got = obtain(Store(blocked), wanted(all), [&](std::size_t i) { return compiled(all[i]); });
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(got[i].origin, Origin::kCompiled);
    EXPECT_EQ(got[i].cubin, all[i].cubin);
    EXPECT_EQ(got[i].publication.result, Publication::Result::kFailed);
  }
  EXPECT_EQ(warnings.size(), 1u);
}

TEST_F(Obtain, AnExceptionOfTheCallbackStopsTheCallWithoutHanging) {
  const std::vector<Sample> all = samples(20);
  EXPECT_THROW((void)obtain(
                   Store(options()), wanted(all), [&](std::size_t i) { return compiled(all[i]); }, {.jobs = 4},
                   [](std::size_t, const Obtained&) { throw std::runtime_error("stop"); }),
               std::runtime_error);
}

TEST(Flights, OthersGetTheValueOrTheErrorAndTheFlightIsGone) {
  Flights<int> flights;
  auto first = flights.board("k");
  ASSERT_TRUE(first.pilot);
  const auto second = flights.board("k");
  ASSERT_FALSE(second.pilot);
  EXPECT_TRUE(flights.board("other").pilot);
  first.pilot->land({7, nullptr});
  EXPECT_EQ(second.passenger.get().value, 7);

  auto failing = flights.board("k");
  ASSERT_TRUE(failing.pilot) << "a flight that landed must have left";
  const auto told = flights.board("k");
  failing.pilot->land({std::nullopt, std::make_exception_ptr(std::runtime_error("no"))});
  EXPECT_TRUE(told.passenger.get().error);
  EXPECT_TRUE(flights.board("k").pilot) << "a failure must not stay";
}

TEST(Flights, OneThatIsAbandonedIsCalledOffForThoseWhoWait) {
  Flights<int> flights;
  auto boarding = flights.board("k");
  const auto waiting = flights.board("k");
  boarding.pilot.reset();
  EXPECT_FALSE(waiting.passenger.get().value);
  EXPECT_FALSE(waiting.passenger.get().error);
  EXPECT_TRUE(flights.board("k").pilot);
}

TEST(Locks, LieInThePrivateRuntimeDirectoryAndNeverInOneThatOthersCanReach) {
  const TemporaryDirectory dir;
  Directories directories;
  directories.writable = dir / "cache";
  directories.runtime = dir / "run";
  fs::create_directory(dir / "run");
  {
    const Locks locks(directories);
    EXPECT_EQ(locks.directory(), dir / "run/commfuse");
    EXPECT_FALSE(fs::exists(dir / "run/commfuse"));
    const LockAttempt held = locks.try_lock(std::string(64, 'a'));
    EXPECT_EQ(held.result, LockAttempt::Result::kHeld);
    EXPECT_EQ(locks.try_lock(std::string(64, 'a')).result, LockAttempt::Result::kBusy);
    EXPECT_EQ(locks.try_lock(std::string(64, 'b')).result, LockAttempt::Result::kHeld);
    directories.writable = dir / "other";
    EXPECT_EQ(Locks(directories).try_lock(std::string(64, 'a')).result, LockAttempt::Result::kHeld);
  }
  ASSERT_EQ(::chmod((dir / "run/commfuse").c_str(), 0755), 0);
  const Locks locks(directories);
  (void)locks.try_lock(std::string(64, 'a'));
  EXPECT_NE(locks.directory(), dir / "run/commfuse");
}

TEST(Locks, OfAGroupSharedCacheLieBesideItForTheGroup) {
  const TemporaryDirectory dir;
  const fs::path shared = dir / "shared";
  ASSERT_EQ(::mkdir(shared.c_str(), 0700), 0);
  ASSERT_EQ(::chmod(shared.c_str(), 02770), 0);
  Directories directories;
  directories.writable = shared;
  const mode_t before = ::umask(022);
  const Locks locks(directories);
  const LockAttempt held = locks.try_lock(std::string(64, 'a'));
  ::umask(before);
  ASSERT_EQ(held.result, LockAttempt::Result::kHeld);
  EXPECT_EQ(locks.directory(), shared / "locks");
  struct stat status {};
  ASSERT_EQ(::stat((shared / "locks").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777u, 02770u);
  for (const auto& entry : fs::directory_iterator(shared / "locks")) {
    ASSERT_EQ(::stat(entry.path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777u, 0660u);
  }
}

}  // namespace
}  // namespace commfuse::cache
