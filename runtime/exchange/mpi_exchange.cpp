// The callbacks of an exchange over MPI. The all-gather is made of messages between each pair of ranks, because a
// collective call of MPI can neither be given up at a deadline nor say who is missing.
#include "commfuse/exchange_mpi.hpp"

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

namespace commfuse {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTag = 0x434d;
constexpr int kSpins = 200;

/// A round that was given up: MPI may still write into it.
struct Round {
  std::vector<unsigned char> sent;
  std::vector<unsigned char> received;
  std::vector<MPI_Request> requests;
};

struct Communicator {
  MPI_Comm communicator = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
  std::vector<std::unique_ptr<Round>> given_up;
};

bool is_finished(std::vector<MPI_Request>& requests, Clock::time_point deadline, int& status) {
  for (int spins = 0;; ++spins) {
    int all = 0;
    status = MPI_Testall(static_cast<int>(requests.size()), requests.data(), &all, MPI_STATUSES_IGNORE);
    if (status != MPI_SUCCESS || all != 0) return true;
    if (Clock::now() >= deadline) return false;
    // The other ranks may need this core.
    if (spins > kSpins) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

int give_up(Communicator& state, std::unique_ptr<Round> round, unsigned char* missing) {
  for (int rank = 0; rank < state.size; ++rank) {
    MPI_Request& receiving = round->requests[static_cast<std::size_t>(2 * rank)];
    int is_there = 1;
    if (receiving != MPI_REQUEST_NULL) MPI_Test(&receiving, &is_there, MPI_STATUS_IGNORE);
    if (is_there != 0) continue;
    missing[rank] = 1;
    MPI_Cancel(&receiving);
  }
  state.given_up.push_back(std::move(round));
  return MPI_ERR_PENDING;
}

int all_gather(void* user, const void* send, void* receive, std::size_t bytes, std::int64_t timeout_ms,
               unsigned char* missing) {
  auto& state = *static_cast<Communicator*>(user);
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  auto round = std::make_unique<Round>();
  const auto* bytes_sent = static_cast<const unsigned char*>(send);
  round->sent.assign(bytes_sent, bytes_sent + bytes);
  round->received.resize(bytes * static_cast<std::size_t>(state.size));
  round->requests.assign(2 * static_cast<std::size_t>(state.size), MPI_REQUEST_NULL);
  const int count = static_cast<int>(bytes);
  for (int rank = 0; rank < state.size; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    unsigned char* place = round->received.data() + index * bytes;
    if (rank == state.rank) {
      std::memcpy(place, send, bytes);
      continue;
    }
    int status = MPI_Irecv(place, count, MPI_BYTE, rank, kTag, state.communicator, &round->requests[2 * index]);
    if (status == MPI_SUCCESS) {
      status = MPI_Isend(round->sent.data(), count, MPI_BYTE, rank, kTag, state.communicator,
                         &round->requests[2 * index + 1]);
    }
    if (status != MPI_SUCCESS) {
      state.given_up.push_back(std::move(round));
      return status;
    }
  }
  int status = MPI_SUCCESS;
  if (!is_finished(round->requests, deadline, status)) return give_up(state, std::move(round), missing);
  if (status != MPI_SUCCESS) {
    state.given_up.push_back(std::move(round));
    return status;
  }
  std::memcpy(receive, round->received.data(), round->received.size());
  return 0;
}

void release(void* user) {
  std::unique_ptr<Communicator> state(static_cast<Communicator*>(user));
  int is_finalised = 0;
  MPI_Finalized(&is_finalised);
  if (is_finalised != 0) return;
  if (state->given_up.empty()) {
    MPI_Comm_free(&state->communicator);
  } else {
    // MPI still knows the addresses of the rounds that were given up; they stay until the process ends.
    static std::vector<std::unique_ptr<Communicator>>* const kept = new std::vector<std::unique_ptr<Communicator>>;
    kept->push_back(std::move(state));
  }
}

int split(void* user, const int* members, int count, std::int64_t timeout_ms, ExchangeCallbacks* child);

ExchangeCallbacks callbacks_of(MPI_Comm communicator) {
  auto state = std::make_unique<Communicator>();
  state->communicator = communicator;
  // The default would end the process where a message fails.
  MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN);
  MPI_Comm_rank(communicator, &state->rank);
  MPI_Comm_size(communicator, &state->size);
  ExchangeCallbacks callbacks;
  callbacks.user = state.release();
  callbacks.all_gather = all_gather;
  callbacks.split = split;
  callbacks.release = release;
  return callbacks;
}

/// The members have just gathered, so MPI's call, which knows no deadline, waits for nobody that is not there.
int split(void* user, const int* members, int count, std::int64_t, ExchangeCallbacks* child) {
  const auto& state = *static_cast<const Communicator*>(user);
  MPI_Group all = MPI_GROUP_NULL, chosen = MPI_GROUP_NULL;
  MPI_Comm communicator = MPI_COMM_NULL;
  int status = MPI_Comm_group(state.communicator, &all);
  if (status == MPI_SUCCESS) status = MPI_Group_incl(all, count, members, &chosen);
  if (status == MPI_SUCCESS) status = MPI_Comm_create_group(state.communicator, chosen, kTag, &communicator);
  if (chosen != MPI_GROUP_NULL) MPI_Group_free(&chosen);
  if (all != MPI_GROUP_NULL) MPI_Group_free(&all);
  if (status == MPI_SUCCESS) *child = callbacks_of(communicator);
  return status;
}

}  // namespace

std::unique_ptr<Exchange> make_mpi_exchange(MPI_Comm communicator, const std::string& name, Timeout timeout) {
  const auto start = Clock::now();
  const std::string what = "cannot set up exchange '" + name + "' over MPI";
  int is_initialised = 0, is_finalised = 0;
  MPI_Initialized(&is_initialised);
  MPI_Finalized(&is_finalised);
  if (is_initialised == 0 || is_finalised != 0) {
    throw Error(Code::kInvalidArgument, what, "MPI is not initialised", "Call MPI_Init before");
  }
  // A communicator of our own: its messages cannot meet the caller's.
  MPI_Comm own = MPI_COMM_NULL;
  std::vector<MPI_Request> request(1, MPI_REQUEST_NULL);
  int status = MPI_Comm_idup(communicator, &own, request.data());
  if (status == MPI_SUCCESS && !is_finished(request, start + timeout, status)) {
    throw Error(Code::kTimeout, what, "not all ranks of the communicator came within the timeout",
                "See whether all of them make this call");
  }
  if (status != MPI_SUCCESS) throw Error(Code::kIo, what, "MPI_Comm_idup returned " + std::to_string(status));
  CallbackExchangeOptions options;
  options.group = name;
  MPI_Comm_rank(own, &options.rank);
  MPI_Comm_size(own, &options.size);
  const auto left = timeout - std::chrono::ceil<Timeout>(Clock::now() - start);
  return make_callback_exchange(callbacks_of(own), options, std::max(left, Timeout(1)));
}

}  // namespace commfuse
