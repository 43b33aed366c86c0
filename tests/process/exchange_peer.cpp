// One rank of a group, as a process of its own: exchange_peer KEY=VALUE... STEP...
//
// Keys: means (unix, tcp, environment, mpi), group, rank, size, directory, address, secret, host, timeout
// (milliseconds). Steps are done in order, on the exchange of the group: see `steps` below. Prints "done", or "error
// CODE [RANKS] TEXT".
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iostream>
#include <stdexcept>
#include <thread>

#include "commfuse/exchange.hpp"
#ifdef COMMFUSE_EXCHANGE_PEER_MPI
#include "commfuse/exchange_mpi.hpp"
#endif

namespace {

using commfuse::Blob;
using commfuse::Exchange;
using commfuse::Timeout;

struct Run {
  std::map<std::string, std::string> options;
  std::unique_ptr<Exchange> exchange;
  std::vector<std::unique_ptr<Exchange>> parents;
  Timeout timeout{2000};

  [[nodiscard]] std::string option(const std::string& key, const std::string& otherwise = "") const {
    const auto found = options.find(key);
    return found == options.end() ? otherwise : found->second;
  }
};

Blob to_blob(const std::string& text) {
  Blob blob(text.size());
  std::memcpy(blob.data(), text.data(), text.size());
  return blob;
}

std::vector<int> numbers(const std::string& list) {
  std::vector<int> result;
  for (std::size_t at = 0; at < list.size();
       at = list.find(',', at) == std::string::npos ? list.size() : list.find(',', at) + 1) {
    result.push_back(std::atoi(list.c_str() + at));
  }
  return result;
}

void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("wrong: " + what);
}

/// Of another length on each rank, and telling the group, so that a blob of another group shows.
Blob blob_of(const Run& run, int rank, const std::string& bytes) {
  std::string text = run.exchange->group() + " rank " + std::to_string(rank) + " ";
  text.resize(text.size() + static_cast<std::size_t>(std::stol(bytes) * rank), static_cast<char>('a' + rank % 26));
  return to_blob(text);
}

void gather(Run& run, const std::string& bytes) {
  const auto blobs = run.exchange->all_gather(blob_of(run, run.exchange->rank(), bytes), run.timeout);
  expect(blobs.size() == static_cast<std::size_t>(run.exchange->size()), "number of blobs");
  for (int rank = 0; rank < run.exchange->size(); ++rank) {
    expect(blobs[static_cast<std::size_t>(rank)] == blob_of(run, rank, bytes), "blob of rank " + std::to_string(rank));
  }
}

/// Every rank passes a memory file with its own text to every other and reads what it got from them.
void pass_files(Run& run, const std::string&) {
  Exchange& exchange = *run.exchange;
  for (int from = 0; from < exchange.size(); ++from) {
    for (int to = 0; to < exchange.size(); ++to) {
      const std::string text = "from " + std::to_string(from) + " to " + std::to_string(to);
      commfuse::Descriptor file;
      if (exchange.rank() == from) {
        file = commfuse::Descriptor(::memfd_create("exchange_peer", MFD_CLOEXEC));
        expect(::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()), "write");
      }
      const auto received = exchange.hand_over_descriptor(from, to, file.get(), run.timeout);
      expect(received.is_open() == (exchange.rank() == to), "a descriptor on the receiver alone");
      if (!received.is_open()) continue;
      char buffer[64] = {};
      const ssize_t length = ::pread(received.get(), buffer, sizeof(buffer), 0);
      expect(std::string(buffer, static_cast<std::size_t>(std::max<ssize_t>(length, 0))) == text, "content: " + text);
    }
  }
}

/// "0,1/2,3": goes on in the group that has this rank.
void split(Run& run, const std::string& groups) {
  std::vector<int> own;
  for (std::size_t at = 0; at <= groups.size();) {
    const auto end = std::min(groups.find('/', at), groups.size());
    const auto members = numbers(groups.substr(at, end - at));
    if (std::find(members.begin(), members.end(), run.exchange->rank()) != members.end()) own = members;
    at = end + 1;
  }
  auto child = run.exchange->split(own, run.timeout);
  expect((child != nullptr) == !own.empty(), "a group for members alone");
  if (!child) throw std::runtime_error("no group");
  run.parents.push_back(std::move(run.exchange));
  run.exchange = std::move(child);
}

void pass_unsupported(Run& run, const std::string& pair) {
  const auto ranks = numbers(pair);
  const commfuse::Descriptor file(::memfd_create("exchange_peer", MFD_CLOEXEC));
  if (run.exchange->rank() != ranks[0] && run.exchange->rank() != ranks[1]) return;
  try {
    (void)run.exchange->hand_over_descriptor(ranks[0], ranks[1], file.get(), run.timeout);
  } catch (const commfuse::Error& error) {
    expect(error.code() == commfuse::Code::kUnsupported, std::string("code of: ") + error.what());
    return;
  }
  expect(false, "a descriptor went to another host");
}

void say(Run&, const std::string& word) { std::cout << word << std::endl; }

void wait_for_line(Run&, const std::string&) {
  std::string line;
  std::getline(std::cin, line);
}

const std::map<std::string, std::function<void(Run&, const std::string&)>> steps = {
    {"gather", gather},
    {"barrier", [](Run& run, const std::string&) { run.exchange->barrier(run.timeout); }},
    {"agree",
     [](Run& run, const std::string& text) {
       commfuse::agree(*run.exchange, "the deployment", to_blob(text), run.timeout);
     }},
    {"pass", pass_files},
    {"pass_unsupported", pass_unsupported},
    {"split", split},
    {"abandon",
     [](Run& run, const std::string& why) { run.exchange->abandon(commfuse::Code::kDriver, why, run.timeout); }},
    {"oversized",
     [](Run& run, const std::string&) {
       (void)run.exchange->all_gather(Blob(commfuse::kMaxBlobBytes + 1), run.timeout);
     }},
    {"sleep", [](Run&, const std::string& time) { std::this_thread::sleep_for(Timeout(std::stol(time))); }},
    {"kill", [](Run&, const std::string&) { ::raise(SIGKILL); }},
    {"stop", [](Run&, const std::string&) { ::raise(SIGSTOP); }},
    {"late",
     [](Run& run, const std::string& rank) {
       if (run.exchange->rank() == std::stoi(rank)) std::this_thread::sleep_for(2 * run.timeout);
     }},
    {"say", say},
    {"wait", wait_for_line},
};

void start(Run& run) {
  const std::string means = run.option("means", "unix");
  std::optional<commfuse::HostIdentity> host;
  if (!run.option("host").empty()) {
    host = commfuse::this_host();
    host->host = host->name = run.option("host");
  }
  if (means == "environment") {
    run.exchange = commfuse::make_exchange_from_environment(commfuse::process_environment(),
                                                            numbers(run.option("members")), run.timeout);
#ifdef COMMFUSE_EXCHANGE_PEER_MPI
  } else if (means == "mpi") {
    run.exchange = commfuse::make_mpi_exchange(MPI_COMM_WORLD, "mpi", run.timeout);
#endif
  } else if (means == "unix") {
    run.exchange = commfuse::make_unix_exchange({run.option("group", "group"), std::stoi(run.option("rank")),
                                                 std::stoi(run.option("size")), run.option("directory"), host},
                                                run.timeout);
  } else {
    run.exchange = commfuse::make_tcp_exchange(
        {run.option("group", "group"), std::stoi(run.option("rank")), std::stoi(run.option("size")),
         run.option("address"), "", commfuse::ExchangeKey::from_secret(run.option("secret", "a secret for tests only")),
         run.option("directory"), host},
        run.timeout);
  }
}

}  // namespace

int main(int count, char** arguments) {
#ifdef COMMFUSE_EXCHANGE_PEER_MPI
  MPI_Init(&count, &arguments);
  // Goes after the exchange. mpirun ends all ranks as soon as one of them returns an error, hence the return value.
  const std::unique_ptr<int, void (*)(int*)> end(&count, [](int*) { MPI_Finalize(); });
  constexpr int kFailed = 0;
#else
  constexpr int kFailed = 3;
#endif
  Run run;
  try {
    int next = 1;
    for (; next < count && std::strchr(arguments[next], '=') != nullptr; ++next) {
      const std::string argument = arguments[next];
      run.options[argument.substr(0, argument.find('='))] = argument.substr(argument.find('=') + 1);
    }
    run.timeout = Timeout(std::stol(run.option("timeout", "2000")));
    start(run);
    for (; next < count; ++next) {
      const std::string step = arguments[next];
      const auto colon = std::min(step.find(':'), step.size());
      steps.at(step.substr(0, colon))(run, colon < step.size() ? step.substr(colon + 1) : "");
    }
    std::cout << "done" << std::endl;
    return 0;
  } catch (const commfuse::ExchangeError& error) {
    std::cout << "error " << commfuse::to_string(error.code()) << " [";
    for (std::size_t i = 0; i < error.ranks().size(); ++i) std::cout << (i > 0 ? "," : "") << error.ranks()[i];
    std::cout << "] " << error.what() << std::endl;
  } catch (const commfuse::Error& error) {
    std::cout << "error " << commfuse::to_string(error.code()) << " [] " << error.what() << std::endl;
  } catch (const std::exception& error) {
    std::cout << "error " << error.what() << std::endl;
  }
  return kFailed;
}
