#include "process/group_processes.hpp"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <thread>

extern char** environ;

namespace commfuse {
namespace {

using namespace std::chrono_literals;

std::map<std::string, RankTask>& tasks() {
  static std::map<std::string, RankTask> map;
  return map;
}

/// An engine's own all-gather, which cannot pass descriptors.
int bridge_gather(void* user, const void* send, void* receive, std::size_t bytes, std::int64_t timeout_ms,
                  unsigned char*) noexcept {
  try {
    auto* to = static_cast<std::byte*>(receive);
    const std::span own(static_cast<const std::byte*>(send), bytes);
    for (const Blob& blob : static_cast<Exchange*>(user)->all_gather(own, Timeout(timeout_ms))) {
      to = std::copy(blob.begin(), blob.end(), to);
    }
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}

int run_rank(char** words) {
  RankArguments arguments;
  arguments.rank = std::atoi(words[0]);
  arguments.size = std::atoi(words[1]);
  arguments.group = words[2];
  arguments.directory = words[3];
  arguments.task = words[4];
  arguments.kind = static_cast<MemoryKind>(std::atoi(words[5]));
  arguments.times = std::atoi(words[6]);
  try {
    tasks().at(arguments.task)(arguments);
  } catch (const Error& error) {
    std::printf("%s\n", text_of(error).c_str());
  } catch (const std::exception& error) {
    std::printf("outside: %s\n", error.what());
  }
  return 0;
}

}  // namespace

std::unique_ptr<Exchange> RankArguments::meet() const {
  // What ranks shall believe of each other.
  HostIdentity host = this_host();
  if (const char* other = std::getenv("COMMFUSE_TEST_HOST")) {
    host.host += other;
    host.name = other;
  }
  if (const char* other = std::getenv("COMMFUSE_TEST_NAMESPACES")) {
    host.mount_namespace = host.ipc_namespace = static_cast<std::uint64_t>(std::atoi(other));
  }
  auto exchange = make_unix_exchange(
      {.group = group, .rank = rank, .size = size, .directory = directory / "exchange", .host = host}, 20s);
  if (std::getenv("COMMFUSE_TEST_BRIDGE") == nullptr) return exchange;
  ExchangeCallbacks callbacks;
  callbacks.user = exchange.release();
  callbacks.all_gather = bridge_gather;
  callbacks.release = [](void* user) { delete static_cast<Exchange*>(user); };
  return make_callback_exchange(callbacks, {.group = group, .rank = rank, .size = size, .directory = {}, .host = host},
                                20s);
}

WorkspaceOptions RankArguments::options() {
  return {.rotation_bytes = kRotationBytes,
          .timeout = 1s,
          .self_test = std::getenv("COMMFUSE_TEST_NO_SELF_TEST") == nullptr,
          .set_up_timeout = 10s};
}

RankTaskEntry::RankTaskEntry(const char* name, RankTask task) { tasks()[name] = task; }

std::ptrdiff_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
}
std::string text_of(const Error& error) { return "error " + std::string(to_string(error.code())) + " " + error.what(); }

void ProcessGroups::SetUp() {
  char pattern[] = "/tmp/commfuse-groups-XXXXXX";
  ASSERT_NE(::mkdtemp(pattern), nullptr);
  directory_ = pattern;
}

void ProcessGroups::TearDown() { std::filesystem::remove_all(directory_); }

std::vector<std::string> ProcessGroups::run(const std::string& task, const std::vector<RankSetup>& ranks,
                                            MemoryKind kind, int times) {
  std::vector<pid_t> pids;
  const auto output = [&](std::size_t rank) { return directory_ / ("output-" + std::to_string(rank)); };
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    std::istringstream wrapper(ranks[rank].wrapper);
    std::vector<std::string> words(std::istream_iterator<std::string>(wrapper), {});
    const std::vector<std::string> own_words = {std::filesystem::read_symlink("/proc/self/exe").string(),
                                                "--rank-process",
                                                std::to_string(rank),
                                                std::to_string(ranks.size()),
                                                "group " + directory_.string(),
                                                directory_.string(),
                                                task,
                                                std::to_string(static_cast<int>(kind)),
                                                std::to_string(times)};
    words.insert(words.end(), own_words.begin(), own_words.end());
    std::vector<std::string> variables = ranks[rank].environment;
    variables.emplace_back("COMMFUSE_LIBCUDA=" COMMFUSE_FAILING_DRIVER);
#ifdef COMMFUSE_SHARED_MEMORY_DRIVER
    variables.emplace_back("COMMFUSE_TEST_DRIVER=" COMMFUSE_SHARED_MEMORY_DRIVER);
#endif
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    std::vector<char*> environment;
    for (std::string& variable : variables) environment.push_back(variable.data());
    for (char** variable = environ; *variable != nullptr; ++variable) environment.push_back(*variable);
    environment.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, 1, output(rank).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    pid_t pid = -1;
    EXPECT_EQ(::posix_spawnp(&pid, argv.front(), &actions, nullptr, argv.data(), environment.data()), 0);
    ::posix_spawn_file_actions_destroy(&actions);
    pids.push_back(pid);
  }
  std::vector<std::string> texts;
  const auto deadline = std::chrono::steady_clock::now() + deadline_;
  for (std::size_t rank = 0; rank < pids.size(); ++rank) {
    if (pids[rank] > 0) {
      while (::waitpid(pids[rank], nullptr, WNOHANG) == 0) {
        if (std::chrono::steady_clock::now() > deadline) {
          ADD_FAILURE() << "rank " << rank << " hangs";
          ::kill(pids[rank], SIGKILL);
        }
        std::this_thread::sleep_for(2ms);
      }
    }
    std::ifstream file(output(rank));
    texts.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return texts;
}

void ProcessGroups::expect_all(const std::vector<std::string>& texts, const std::string& expected) {
  for (const std::string& text : texts) EXPECT_EQ(text, expected);
}

void ProcessGroups::expect_alike(const std::vector<std::string>& texts, const std::vector<std::string>& parts) {
  for (const std::string& text : texts) {
    EXPECT_EQ(text, texts.front());
    for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
    EXPECT_EQ(text.find("left behind"), std::string::npos) << text;
  }
}

}  // namespace commfuse

int main(int argc, char** argv) {
  if (argc == 9 && std::string_view(argv[1]) == "--rank-process") return commfuse::run_rank(argv + 2);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
