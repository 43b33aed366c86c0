#include "runtime/exchange/meeting.hpp"

#include "runtime/exchange/bytes.hpp"

namespace commfuse::runtime {

void check_meeting(const Meeting& meeting) {
  const std::string what = "cannot set up exchange '" + meeting.group + "'";
  if (meeting.group.empty()) {
    throw Error(Code::kInvalidArgument, what, "it has no name",
                "Name it after the job and its members: see group_name()");
  }
  if (meeting.group.size() > 1000) throw Error(Code::kInvalidArgument, what, "its name has more than 1000 bytes");
  if (meeting.size < 1 || meeting.size > kMaxExchangeSize) {
    throw Error(
        Code::kInvalidArgument, what,
        "its size is " + std::to_string(meeting.size) + ", allowed are 1 to " + std::to_string(kMaxExchangeSize));
  }
  if (meeting.rank < 0 || meeting.rank >= meeting.size) {
    throw Error(Code::kInvalidArgument, what,
                "rank " + std::to_string(meeting.rank) + " is none of a group of " + std::to_string(meeting.size));
  }
}

Key key_of_group(std::string_view name, std::string_view nonce) {
  return digest({}, {as_span("commfuse group"), as_span(name), as_span(nonce)});
}

}  // namespace commfuse::runtime
