#include <algorithm>
#include <numeric>

#include "commfuse/exchange.hpp"

namespace commfuse {
namespace {

using Environment = std::map<std::string, std::string>;

std::string text(const Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

enum class Means { kUnix, kTcp };

Means means_for(const Environment& environment, const LaunchInfo& info, std::span<const int> members) {
  const std::string asked = text(environment, "COMMFUSE_EXCHANGE");
  if (asked == "unix") return Means::kUnix;
  if (asked == "tcp") return Means::kTcp;
  if (!asked.empty()) {
    throw Error(Code::kInvalidArgument, "cannot use COMMFUSE_EXCHANGE='" + asked + "'",
                "it is neither 'unix' nor 'tcp'");
  }
  if (info.local_size == info.size) return Means::kUnix;
  // torchrun numbers the ranks of a host one after the other; the other launchers can be told to do otherwise.
  const int first_local = info.rank - info.local_rank;
  if (info.launcher == Launcher::kTorchrun && info.local_rank >= 0 && info.local_size > 0 &&
      members.front() >= first_local && members.back() < first_local + info.local_size) {
    return Means::kUnix;
  }
  if (info.local_size > 0 || !text(environment, "COMMFUSE_EXCHANGE_ADDRESS").empty()) return Means::kTcp;
  throw Error(Code::kInvalidArgument, "cannot choose how the ranks find each other",
              std::string(to_string(info.launcher)) + " does not say whether they are all on this host",
              "Set COMMFUSE_EXCHANGE=unix if they are, else COMMFUSE_EXCHANGE_ADDRESS=host:port to a free port where "
              "rank 0 runs");
}

std::string address_for(const Environment& environment, const LaunchInfo& info) {
  if (const std::string address = text(environment, "COMMFUSE_EXCHANGE_ADDRESS"); !address.empty()) return address;
  const std::string port = text(environment, "COMMFUSE_EXCHANGE_PORT");
  if (!port.empty() && !info.master_host.empty()) {
    const bool is_ipv6 = info.master_host.find(':') != std::string::npos;
    return (is_ipv6 ? "[" + info.master_host + "]" : info.master_host) + ":" + port;
  }
  throw Error(Code::kInvalidArgument, "cannot start a TCP exchange",
              "nobody says where rank 0 listens (the launcher's own port is taken by its store)",
              "Set COMMFUSE_EXCHANGE_ADDRESS=host:port on every rank, or COMMFUSE_EXCHANGE_PORT beside MASTER_ADDR");
}

}  // namespace

std::unique_ptr<Exchange> make_exchange_from_environment(const Environment& environment, std::span<const int> members,
                                                         Timeout timeout) {
  const LaunchInfo info = read_launch(environment);
  std::vector<int> group(members.begin(), members.end());
  if (group.empty()) {
    group.resize(static_cast<std::size_t>(info.size));
    std::iota(group.begin(), group.end(), 0);
  }
  std::sort(group.begin(), group.end());
  const auto own = std::find(group.begin(), group.end(), info.rank);
  const bool is_set = std::adjacent_find(group.begin(), group.end()) == group.end();
  if (own == group.end() || !is_set || group.front() < 0 || group.back() >= info.size) {
    throw Error(Code::kInvalidArgument, "cannot make the exchange of " + group_name("members ", group),
                "this is rank " + std::to_string(info.rank) + " of " + std::to_string(info.size),
                "Give each member once, this rank among them");
  }
  if (info.job.empty()) {
    throw Error(Code::kInvalidArgument, "cannot name the exchange of this job",
                std::string(to_string(info.launcher)) + " set nothing that only this job has",
                "Set COMMFUSE_EXCHANGE_JOB to the same new name on every rank");
  }
  const std::string name = group_name(info.job, group);
  const int rank = static_cast<int>(own - group.begin());
  const int size = static_cast<int>(group.size());
  const std::string directory = text(environment, "COMMFUSE_EXCHANGE_DIR");
  if (means_for(environment, info, group) == Means::kUnix) {
    UnixExchangeOptions options;
    options.group = name;
    options.rank = rank;
    options.size = size;
    options.directory = directory;
    return make_unix_exchange(options, timeout);
  }
  if (group.front() != 0) {
    throw Error(Code::kUnsupported, "cannot make exchange '" + name + "' over TCP",
                "the environment says where rank 0 listens, and it is no member",
                "Make the exchange of all ranks and split it");
  }
  TcpExchangeOptions options;
  options.group = name;
  options.rank = rank;
  options.size = size;
  options.address = address_for(environment, info);
  options.listen_address = text(environment, "COMMFUSE_EXCHANGE_LISTEN");
  options.key = ExchangeKey::from_environment(environment);
  options.directory = directory;
  return make_tcp_exchange(options, timeout);
}

}  // namespace commfuse
