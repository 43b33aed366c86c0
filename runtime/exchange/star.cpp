#include "runtime/exchange/star.hpp"

#include <algorithm>

#include "runtime/exchange/bytes.hpp"
#include "runtime/exchange/star_exchange.hpp"

namespace commfuse::runtime {

StarExchange::StarExchange(Meeting meeting, Company company)
    : Exchange(meeting.group, meeting.rank, meeting.size, company.hosts),
      meeting_(std::move(meeting)),
      connections_(std::move(company.connections)) {
  if (meeting_.transport->carries_descriptors()) {
    routes_ = make_link_routes(meeting_.group, meeting_.rank, std::move(company.links));
  }
}

void StarExchange::finish_set_up(Deadline deadline) {
  barrier(std::max(left(deadline), Timeout(1)));
  if (!routes_) routes_ = make_local_routes(*this, meeting_.transport->directory(), deadline);
}

void StarExchange::send_failure(const ExchangeError& failure, std::span<Connection* const> connections,
                                Deadline deadline) noexcept {
  const Deadline until = std::max(Clock::now() + kFailureTime / 4, std::min(deadline, Clock::now() + kFailureTime));
  try {
    Message message;
    message.kind = MessageKind::kFailure;
    message.payload = write_failure(failure);
    for (Connection* connection : connections) connection->send(message);
    for (;;) {
      std::vector<Connection*> unfinished;
      for (Connection* connection : connections) {
        if (!connection->has_send_failed() && !connection->is_flushed()) unfinished.push_back(connection);
      }
      if (unfinished.empty() || Clock::now() >= until) return;
      pump_all(unfinished, until);
    }
  } catch (const std::exception&) {
    // Out of memory: the others find the connections closed. The failure that was to be told is the one that matters.
  }
}

Descriptor StarExchange::pass_descriptor(int from, int to, int descriptor, Deadline deadline) {
  return routes_->pass(from, to, descriptor, deadline);
}

Exchange::Invitation StarExchange::prepare_split(std::span<const int> members, Deadline deadline) {
  const std::string nonce = to_hex(random_key());
  std::shared_ptr<Door> door;
  if (members.size() > 1)
    door = meeting_.transport->open_door(key_of_group(group_name(group(), members), nonce), "", deadline);
  ByteWriter writer;
  writer.text(nonce, 64);
  writer.text(door ? door->address() : "", kMaxTextBytes);
  return {writer.take(), door};
}

std::unique_ptr<Exchange> StarExchange::join_split(std::span<const int> members, Invitation invitation,
                                                   Deadline deadline) {
  ByteReader reader(invitation.blob);
  const std::string nonce = reader.text(64);
  Meeting child;
  child.transport = meeting_.transport;
  child.group = group_name(group(), members);
  child.key = key_of_group(child.group, nonce);
  child.rank = static_cast<int>(std::find(members.begin(), members.end(), rank()) - members.begin());
  child.size = static_cast<int>(members.size());
  child.host = meeting_.host;
  child.address = reader.text(kMaxTextBytes);
  return make_star_exchange(std::move(child), std::static_pointer_cast<Door>(std::move(invitation.kept)), deadline);
}

std::unique_ptr<Exchange> make_star_exchange(Meeting meeting, std::shared_ptr<Door> door, Deadline deadline) {
  check_meeting(meeting);
  const bool is_first = meeting.rank == 0;
  Company company;
  if (meeting.size == 1) {
    company.connections.resize(1);
    company.hosts = {meeting.host};
    company.links.resize(1);
  } else if (is_first) {
    if (!door) door = meeting.transport->open_door(meeting.key, meeting.address, deadline);
    company = receive_company(meeting, std::move(door), deadline);
  } else {
    company = join_company(meeting, deadline);
  }
  auto exchange = is_first ? make_first_rank(std::move(meeting), std::move(company))
                           : make_other_rank(std::move(meeting), std::move(company));
  exchange->finish_set_up(deadline);
  return exchange;
}

}  // namespace commfuse::runtime
