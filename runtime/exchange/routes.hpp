// The ways by which descriptors go from one rank to another.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "commfuse/exchange.hpp"
#include "runtime/exchange/socket.hpp"

namespace commfuse::runtime {

class DescriptorRoutes {
 public:
  DescriptorRoutes() = default;
  DescriptorRoutes(const DescriptorRoutes&) = delete;
  DescriptorRoutes& operator=(const DescriptorRoutes&) = delete;
  virtual ~DescriptorRoutes() = default;
  /// On rank `from` or `to`. Throws ExchangeError where the other rank fails, Error(kUnsupported) where there is no
  /// way.
  [[nodiscard]] virtual Descriptor pass(int from, int to, int descriptor, Deadline deadline) = 0;
};

/// Socket pairs to each other rank, by rank.
[[nodiscard]] std::unique_ptr<DescriptorRoutes> make_link_routes(std::string group, int rank,
                                                                 std::vector<Descriptor> links);

/// For groups that do not meet over Unix sockets: the ranks of each host meet over one of their own. Collective over
/// `whole`. Where a host's ranks cannot meet (other containers, other users), passing descriptors there says why; that
/// is no failure of the group.
[[nodiscard]] std::unique_ptr<DescriptorRoutes> make_local_routes(Exchange& whole,
                                                                  const std::filesystem::path& directory,
                                                                  Deadline deadline);

}  // namespace commfuse::runtime
