// How the ranks of a group find each other and tell each other what they need to share memory. Knows nothing of CUDA.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "commfuse/error.hpp"

namespace commfuse {

using Blob = std::vector<std::byte>;
using Timeout = std::chrono::milliseconds;

inline constexpr std::size_t kMaxBlobBytes = std::size_t{1} << 20;  ///< one rank's blob in one all_gather
inline constexpr int kMaxExchangeSize = 1024;                       ///< ranks of one group

/// An open file descriptor, closed with its owner.
class Descriptor {
 public:
  Descriptor() noexcept = default;
  explicit Descriptor(int number) noexcept : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();

  [[nodiscard]] int get() const noexcept { return number_; }
  [[nodiscard]] bool is_open() const noexcept { return number_ >= 0; }
  [[nodiscard]] int release() noexcept { return std::exchange(number_, -1); }

 private:
  int number_ = -1;
};

/// Where a rank runs: what decides whether two ranks can share memory, and by which means.
struct HostIdentity {
  std::string host;                   ///< equal for ranks under one kernel, containers included
  std::string name;                   ///< host name, for messages
  std::uint64_t mount_namespace = 0;  ///< inode of /proc/self/ns/mnt; likewise below; 0 where it cannot be read
  std::uint64_t pid_namespace = 0;
  std::uint64_t ipc_namespace = 0;
  std::uint64_t user_namespace = 0;
  std::uint32_t user = 0;     ///< effective user id
  std::uint32_t process = 0;  ///< process id, in its own namespace

  friend bool operator==(const HostIdentity&, const HostIdentity&) = default;
};
[[nodiscard]] HostIdentity this_host();

/// A failure of the group. Every surviving rank gets the same code, text and ranks.
class ExchangeError : public Error {
 public:
  ExchangeError(Code code, std::vector<int> ranks, std::string what, std::string cause, std::string remedy)
      : Error(code, std::move(what), std::move(cause), std::move(remedy)), ranks_(std::move(ranks)) {}
  /// The missing, failing or differing ranks, ascending, as numbered in the group.
  [[nodiscard]] const std::vector<int>& ranks() const noexcept { return ranks_; }

 private:
  std::vector<int> ranks_;
};

/// One rank's end of a group.
///
/// all_gather, barrier, split and agree are collective: every rank makes the same calls in the same order. A rank that
/// is missing, dies, stops or calls something else ends the call on every surviving rank, within the shortest timeout
/// given, with an ExchangeError that names it (kTimeout, kIo, kMismatch); afterwards the exchange is finished and each
/// further call throws that error again (not after the kMismatch of split and agree, which leave all ranks in step).
/// One call at a time (kBusy otherwise); timeouts must be positive.
class Exchange {
 public:
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  virtual ~Exchange();

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  /// What the group calls itself in messages.
  [[nodiscard]] const std::string& group() const noexcept { return group_; }
  [[nodiscard]] const HostIdentity& host(int rank) const;

  /// Each rank's blob, by rank. Blobs may differ in length, up to kMaxBlobBytes.
  [[nodiscard]] std::vector<Blob> all_gather(std::span<const std::byte> blob, Timeout timeout);
  void barrier(Timeout timeout);

  /// Passes an open descriptor from one rank to another of the same host. Concerns these two ranks: `from` gives
  /// `descriptor` (which stays its own) and does not wait for the receiver; `to` gets a descriptor; for every other
  /// rank it is nothing, so all may run the same loop over pairs. Descriptors of one pair arrive in order.
  /// kUnsupported, with the reason and without ending the exchange, where the two have no way to do it.
  [[nodiscard]] Descriptor hand_over_descriptor(int from, int to, int descriptor, Timeout timeout);

  /// The group of `members` (ranks of this one, ascending, this rank among them), numbered by their place in the list.
  /// Collective over this group; every member must give the same list. An empty list takes part and returns null.
  [[nodiscard]] std::unique_ptr<Exchange> split(std::span<const int> members, Timeout timeout);

  /// This rank cannot go on: its next collective call is replaced by an ExchangeError on every other rank that carries
  /// the code and the reason.
  void abandon(Code code, std::string_view reason, Timeout timeout) noexcept;

 protected:
  using Deadline = std::chrono::steady_clock::time_point;
  enum class Operation : std::uint8_t { kAllGather = 1, kBarrier = 2, kSplit = 3 };
  /// What the first member tells the others so that they can join it, and what it keeps open until they have come.
  struct Invitation {
    Blob blob;
    std::shared_ptr<void> kept;
  };

  Exchange(std::string group, int rank, int size, std::vector<HostIdentity> hosts);
  void set_hosts(std::vector<HostIdentity> hosts) { hosts_ = std::move(hosts); }

 private:
  class Call;
  virtual std::vector<Blob> gather(Operation operation, std::span<const std::byte> blob, Deadline deadline) = 0;
  virtual Descriptor pass_descriptor(int from, int to, int descriptor, Deadline deadline) = 0;
  virtual void announce_failure(const ExchangeError& failure, Deadline deadline) noexcept = 0;
  virtual Invitation prepare_split(std::span<const int> members, Deadline deadline) = 0;
  virtual std::unique_ptr<Exchange> join_split(std::span<const int> members, Invitation invitation,
                                               Deadline deadline) = 0;

  [[noreturn]] void fail(ExchangeError failure, Deadline deadline);
  std::vector<Blob> checked_gather(Operation operation, std::span<const std::byte> blob, Deadline deadline);

  std::string group_;
  int rank_;
  int size_;
  std::vector<HostIdentity> hosts_;
  std::unique_ptr<ExchangeError> failure_;
  std::atomic<bool> in_call_ = false;
};

/// Compares a small value across the group: deployment hash, kernel keys with the digests of their cubins, device caps.
/// Throws the same ExchangeError(kMismatch) on every rank, naming the ranks that differ from the majority (from rank 0
/// where there is none). `what` is named in the error ("the deployment").
void agree(Exchange& exchange, std::string_view what, std::span<const std::byte> value, Timeout timeout);

// ---- threads of one process -----------------------------------------------------------------------------------------

/// One end per rank, each to be used by one thread. The shared state goes with the last of them.
[[nodiscard]] std::vector<std::unique_ptr<Exchange>> make_thread_exchanges(int size);

// ---- processes of one host ------------------------------------------------------------------------------------------

/// A text that only this group of this job has. `members` are the job's ranks in any order.
[[nodiscard]] std::string group_name(std::string_view job, std::span<const int> members);

struct UnixExchangeOptions {
  std::string group;  ///< the same on every rank, different from any other group of this user
  int rank = 0;       ///< within the group
  int size = 1;
  std::filesystem::path directory;   ///< private to the user, made if missing; empty: see default_exchange_directory
  std::optional<HostIdentity> host;  ///< what to tell the others; empty: this_host()
};
/// Meets over a Unix socket that exists only until everybody has come.
[[nodiscard]] std::unique_ptr<Exchange> make_unix_exchange(const UnixExchangeOptions& options, Timeout timeout);

/// $XDG_RUNTIME_DIR/commfuse, else /tmp/commfuse-UID.
[[nodiscard]] std::filesystem::path default_exchange_directory();

// ---- several hosts --------------------------------------------------------------------------------------------------

/// The secret that the ranks of a job share; every message of a TCP exchange is authenticated with it.
class ExchangeKey {
 public:
  /// At least 16 bytes of secret text.
  [[nodiscard]] static ExchangeKey from_secret(std::string_view secret);
  /// A file that only its owner (this user) may read; a newline at its end is not part of the secret.
  [[nodiscard]] static ExchangeKey from_file(const std::filesystem::path& path);
  /// COMMFUSE_EXCHANGE_KEY, else the file named by COMMFUSE_EXCHANGE_KEY_FILE.
  [[nodiscard]] static ExchangeKey from_environment(const std::map<std::string, std::string>& environment);

  [[nodiscard]] std::span<const std::byte, 32> bytes() const noexcept { return bytes_; }

 private:
  std::byte bytes_[32] = {};
};

struct TcpExchangeOptions {
  std::string group;
  int rank = 0;
  int size = 1;
  std::string address;         ///< "host:port" of rank 0, where the others connect ("[::1]:7000" for IPv6)
  std::string listen_address;  ///< where rank 0 binds; empty: `address`
  ExchangeKey key;
  std::filesystem::path directory;  ///< for passing descriptors among ranks of one host; empty: the default
  std::optional<HostIdentity> host;
};
[[nodiscard]] std::unique_ptr<Exchange> make_tcp_exchange(const TcpExchangeOptions& options, Timeout timeout);

// ---- an engine's own means ------------------------------------------------------------------------------------------

/// What an engine brings (torch.distributed, NCCL's bootstrap, MPI). Functions return 0 for success; none may throw.
struct ExchangeCallbacks {
  void* user = nullptr;
  /// Every rank's `bytes` bytes (the same number on each) into `receive`, by rank. Must return within `timeout_ms`;
  /// where it can tell who is missing, it sets missing[rank] = 1.
  int (*all_gather)(void* user, const void* send, void* receive, std::size_t bytes, std::int64_t timeout_ms,
                    unsigned char* missing) = nullptr;
  /// Optional. As Exchange::hand_over_descriptor; `*received` is set on rank `to`.
  int (*hand_over)(void* user, int from, int to, int descriptor, int* received, std::int64_t timeout_ms) = nullptr;
  /// Optional. Fills `child` for the group of `members`; called by the members only.
  int (*split)(void* user, const int* members, int count, std::int64_t timeout_ms, ExchangeCallbacks* child) = nullptr;
  /// Optional. Called once, when the exchange is destroyed or could not be made.
  void (*release)(void* user) = nullptr;
};

struct CallbackExchangeOptions {
  std::string group;
  int rank = 0;
  int size = 1;
  std::filesystem::path directory;
  std::optional<HostIdentity> host;
};
[[nodiscard]] std::unique_ptr<Exchange> make_callback_exchange(const ExchangeCallbacks& callbacks,
                                                               const CallbackExchangeOptions& options, Timeout timeout);

// ---- from the environment of a launcher -----------------------------------------------------------------------------

enum class Launcher : int { kTorchrun = 0, kOpenMpi = 1, kPmi = 2, kSlurm = 3 };
[[nodiscard]] std::string_view to_string(Launcher launcher) noexcept;

struct LaunchInfo {
  Launcher launcher = Launcher::kTorchrun;
  int rank = 0;
  int size = 1;
  int local_rank = -1;  ///< -1: the launcher does not say; likewise local_size
  int local_size = -1;
  std::string job;          ///< the same on all ranks of this start of the job and no other; empty: not known
  std::string master_host;  ///< where rank 0 runs, as far as the launcher says
  int master_port = 0;      ///< the launcher's own port there, which is taken; 0: not said
};

[[nodiscard]] std::map<std::string, std::string> process_environment();
/// Reads what torchrun, mpirun (Open MPI), a PMI launcher or srun set, in this order. Pure. Throws kNotFound where
/// nobody launched us, kInvalidArgument for values that are missing, malformed or contradict each other.
[[nodiscard]] LaunchInfo read_launch(const std::map<std::string, std::string>& environment);

/// The group of all ranks of the job: Unix sockets where all ranks are local, TCP otherwise (see docs/exchange.md for
/// the COMMFUSE_EXCHANGE_... variables). `members`: only these ranks of the job, empty for all; this rank among them.
[[nodiscard]] std::unique_ptr<Exchange> make_exchange_from_environment(
    const std::map<std::string, std::string>& environment, std::span<const int> members, Timeout timeout);

}  // namespace commfuse
