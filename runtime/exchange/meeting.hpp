// How the ranks of a group come together around their first rank.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/exchange/connection.hpp"
#include "runtime/exchange/transport.hpp"

namespace commfuse::runtime {

/// What this rank knows before it meets the others.
struct Meeting {
  std::shared_ptr<Transport> transport;
  std::string group;
  Key key = {};  ///< of the group, from its name and, if it was split, a nonce
  int rank = 0;
  int size = 1;
  HostIdentity host;
  std::string address;  ///< of the first rank's door
};

/// Throws Error(kInvalidArgument) for a rank, size or name that cannot be.
void check_meeting(const Meeting& meeting);
[[nodiscard]] Key key_of_group(std::string_view name, std::string_view nonce = {});

struct Company {
  std::vector<std::unique_ptr<Connection>> connections;  ///< of the first rank: by rank, its own null; of others: one
  std::vector<HostIdentity> hosts;
  std::vector<Descriptor> links;  ///< by rank, where the transport carries descriptors
};

// The first rank:
//
//   open door ── accept ──> newcomer (challenge sent) ── hello ──> member      ... until every rank is a member
//   everybody is there: close the door, send each member the welcome and its links, leave
//   a member leaves, two come as one rank, sizes differ, time is up: send each member the failure, leave
//
// The others:
//
//   knock (again and again) ── connected ──> challenge ── hello sent ──> welcome ── links ──> leave
//                                  └── connection lost or refused: knock again
//
// It cannot deadlock: nobody waits for anybody but the first rank, which waits only in poll() on all sockets at once,
// with a deadline that is ahead of the shortest of its members' (each tells its own in its hello). A stranger costs one
// of a bounded number of newcomers, who are sent away after some seconds without a hello or when newer ones need the
// place; it is never read beyond one message of 4 KiB, and what it says can fail nothing but its own connection.

[[nodiscard]] Company receive_company(const Meeting& meeting, std::shared_ptr<Door> door, Deadline deadline);
[[nodiscard]] Company join_company(const Meeting& meeting, Deadline deadline);

/// Gives each pair of members the two ends of a socket pair, made by the first rank, which keeps only its own.
void give_links(Company& company, const Meeting& meeting, Deadline deadline);

}  // namespace commfuse::runtime
