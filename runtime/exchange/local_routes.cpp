#include <algorithm>

#include "runtime/exchange/bytes.hpp"
#include "runtime/exchange/keys.hpp"
#include "runtime/exchange/routes.hpp"

namespace commfuse::runtime {
namespace {

class LocalRoutes final : public DescriptorRoutes {
 public:
  LocalRoutes(Exchange& whole, std::vector<int> locals, std::unique_ptr<Exchange> local, std::string obstacle)
      : group_(whole.group()),
        rank_(whole.rank()),
        locals_(std::move(locals)),
        local_(std::move(local)),
        obstacle_(std::move(obstacle)) {
    for (int rank = 0; rank < whole.size(); ++rank) host_names_.push_back(whole.host(rank).name);
  }

  Descriptor pass(int from, int to, int descriptor, Deadline deadline) override {
    const std::string what = "cannot pass a descriptor from rank " + std::to_string(from) + " to rank " +
                             std::to_string(to) + " in exchange '" + group_ + "'";
    const int local_from = local_rank(from);
    const int local_to = local_rank(to);
    if (local_from < 0 || local_to < 0) {
      throw Error(Code::kUnsupported, what,
                  "they are on different hosts (" + host_names_[static_cast<std::size_t>(from)] + " and " +
                      host_names_[static_cast<std::size_t>(to)] + ")");
    }
    if (!local_) {
      throw Error(Code::kUnsupported, what, obstacle_,
                  "Give all ranks of a host one private folder that they share: COMMFUSE_EXCHANGE_DIR");
    }
    try {
      return local_->hand_over_descriptor(local_from, local_to, descriptor, std::max(left(deadline), Timeout(1)));
    } catch (const ExchangeError& error) {
      const int other = rank_ == from ? to : from;
      throw ExchangeError(error.code(), {other}, what, error.cause(), error.remedy());
    }
  }

 private:
  [[nodiscard]] int local_rank(int rank) const {
    const auto found = std::find(locals_.begin(), locals_.end(), rank);
    return found == locals_.end() ? -1 : static_cast<int>(found - locals_.begin());
  }

  std::string group_;
  int rank_;
  std::vector<int> locals_;
  std::unique_ptr<Exchange> local_;
  std::string obstacle_;
  std::vector<std::string> host_names_;
};

/// Why processes of one host cannot meet in a folder, as far as their namespaces tell.
std::string obstacle_of(const Exchange& whole, std::span<const int> locals, bool has_own_directory) {
  const HostIdentity& first = whole.host(locals.front());
  for (int rank : locals) {
    const HostIdentity& other = whole.host(rank);
    const std::string pair = rank_list(std::vector<int>{locals.front(), rank});
    if (other.user != first.user) return pair + " run as different users";
    if (other.user_namespace != first.user_namespace) return pair + " are in different user namespaces";
    if (other.mount_namespace != first.mount_namespace && !has_own_directory) {
      return pair + " are in different mount namespaces (other containers)";
    }
  }
  return {};
}

}  // namespace

std::unique_ptr<DescriptorRoutes> make_local_routes(Exchange& whole, const std::filesystem::path& directory,
                                                    Deadline deadline) {
  std::vector<int> locals;
  bool is_needed = false;
  for (int rank = 0; rank < whole.size(); ++rank) {
    if (whole.host(rank).host == whole.host(whole.rank()).host) locals.push_back(rank);
    for (int other = 0; other < rank; ++other) is_needed |= whole.host(rank).host == whole.host(other).host;
  }
  std::unique_ptr<Exchange> local;
  std::string obstacle;
  if (is_needed) {
    // The first rank of each host names the folder, and makes its group's name one that nobody else can know before.
    const std::filesystem::path own = directory.empty() ? default_exchange_directory() : directory;
    ByteWriter writer;
    writer.text(to_hex(random_key()), 64);
    writer.integer(static_cast<std::uint8_t>(!directory.empty()));
    writer.text(own.string(), 4096);
    const auto blobs = whole.all_gather(writer.take(), std::max(left(deadline), Timeout(1)));
    ByteReader reader(blobs[static_cast<std::size_t>(locals.front())]);
    const std::string nonce = reader.text(64);
    const bool has_own_directory = reader.integer<std::uint8_t>() != 0;
    const std::string folder = reader.text(4096);

    if (locals.size() > 1) obstacle = obstacle_of(whole, locals, has_own_directory);
    if (locals.size() > 1 && obstacle.empty()) {
      UnixExchangeOptions options;
      options.group = "descriptors of " + whole.group().substr(0, 900) + " " + nonce;
      options.rank = static_cast<int>(std::find(locals.begin(), locals.end(), whole.rank()) - locals.begin());
      options.size = static_cast<int>(locals.size());
      options.directory = folder;
      options.host = whole.host(whole.rank());
      try {
        // Half of what is left, so that the group can still agree on going without.
        local = make_unix_exchange(options, std::max(left(deadline) / 2, Timeout(1)));
      } catch (const Error& error) {
        obstacle = error.what();
      }
    }
    const auto outcomes =
        whole.all_gather(as_span(std::string_view(obstacle).substr(0, 4000)), std::max(left(deadline), Timeout(1)));
    for (int rank : locals) {
      const Blob& outcome = outcomes[static_cast<std::size_t>(rank)];
      if (outcome.empty()) continue;
      local.reset();
      obstacle = as_text(outcome);
      break;
    }
  }
  return std::make_unique<LocalRoutes>(whole, std::move(locals), std::move(local), std::move(obstacle));
}

}  // namespace commfuse::runtime
