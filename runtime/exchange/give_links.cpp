#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <functional>

#include "runtime/exchange/meeting.hpp"

namespace commfuse::runtime {

void give_links(Company& company, const Meeting& meeting, Deadline deadline) {
  std::vector<Connection*> connections;
  for (auto& connection : company.connections) connections.push_back(connection.get());
  company.links.resize(connections.size());
  const auto link_of = [](int rank) {
    Message message;
    message.kind = MessageKind::kLink;
    message.rank = rank;
    return message;
  };
  for (std::size_t low = 0; low < connections.size(); ++low) {
    for (std::size_t high = low + 1; high < connections.size(); ++high) {
      int ends[2] = {-1, -1};
      if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
        throw ExchangeError(Code::kIo, {0}, "exchange '" + meeting.group + "' could not be set up",
                            "rank 0 cannot make a socket pair: " + errno_text(errno), "Raise the limit of open files");
      }
      Descriptor first(ends[0]), second(ends[1]);
      if (low == 0) {
        company.links[high] = std::move(first);
      } else {
        connections[low]->send(link_of(static_cast<int>(high)), std::move(first));
      }
      connections[high]->send(link_of(static_cast<int>(low)), std::move(second));
    }
    // Row by row, so that this rank never holds more than a row of descriptors that others have not read.
    const auto is_done = [](const Connection* connection) { return connection == nullptr || connection->is_flushed(); };
    while (!std::all_of(connections.begin(), connections.end(), is_done) && Clock::now() < deadline) {
      std::vector<Connection*> unfinished;
      std::copy_if(connections.begin(), connections.end(), std::back_inserter(unfinished), std::not_fn(is_done));
      pump_all(unfinished, deadline);
    }
  }
}

}  // namespace commfuse::runtime
