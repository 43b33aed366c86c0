// Collective calls of a group whose ranks are connected to the first of them.
#pragma once

#include <memory>

#include "runtime/exchange/meeting.hpp"
#include "runtime/exchange/routes.hpp"

namespace commfuse::runtime {

// A collective call, on the first rank:
//
//   collecting ── a blob of every rank is there ──> answering ── every blob is sent to every rank ──> done
//       └──────── a rank is lost, silent or makes another call ──> failing: the failure is sent to every rank
//
// on every other rank:
//
//   sending its blob and receiving, at once ── all blobs are there ──> done
//       └──────── a failure comes, the first rank is lost or silent ──> failed
//
// It cannot deadlock: both sides wait in poll() for reading and writing at the same time, so no full buffer can stop
// the other side, and every wait has a deadline. A rank's blob carries how long it will wait, and the first rank gives
// up a little before the most impatient of those who have come, so that all of them hear from it who is missing. Only
// if the first rank itself is silent do the others run into their own deadline, and then that is what they say.

/// The group that `meeting` describes, met, and checked with a first barrier. `door` is the first rank's, if it has
/// been opened already.
[[nodiscard]] std::unique_ptr<Exchange> make_star_exchange(Meeting meeting, std::shared_ptr<Door> door,
                                                           Deadline deadline);

}  // namespace commfuse::runtime
