// Who is no member: strangers that connect, and somebody between two members who changes what they say.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "commfuse/exchange.hpp"
#include "exchange_processes.hpp"
#include "runtime/exchange/bytes.hpp"
#include "runtime/exchange/keys.hpp"
#include "runtime/exchange/meeting.hpp"
#include "runtime/exchange/message.hpp"

namespace commfuse::exchange_testing {
namespace {

using runtime::Message;
using runtime::MessageKind;
using std::chrono::milliseconds;

constexpr std::string_view kSecret = "a secret for tests only";

/// A plain blocking socket that speaks the protocol badly.
class Stranger {
 public:
  explicit Stranger(const std::string& address) {
    sockaddr_in place = {};
    place.sin_family = AF_INET;
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    place.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.find(':') + 1))));
    const auto deadline = Clock::now() + std::chrono::seconds(5);
    for (;;) {
      socket_ = Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      if (::connect(socket_.get(), reinterpret_cast<sockaddr*>(&place), sizeof(place)) == 0) return;
      if (Clock::now() > deadline) throw std::runtime_error("nobody listens");
      std::this_thread::sleep_for(milliseconds(5));
    }
  }
  explicit Stranger(Descriptor socket) : socket_(std::move(socket)) {}

  void send(std::span<const std::byte> bytes) const {
    (void)::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  void send(std::string_view text) const { send(runtime::as_span(text)); }
  void send(const Message& message, const runtime::Key& tag = {}) const {
    Blob bytes = runtime::write_message(message);
    bytes.insert(bytes.end(), tag.begin(), tag.end());
    send(bytes);
  }
  void send_authenticated(const Message& message, const runtime::Key& key) const {
    send(message, runtime::digest(key, {runtime::write_message(message)}));
  }

  /// All bytes of the next message, or nothing where the connection ends.
  [[nodiscard]] Blob receive_bytes() const {
    Blob bytes;
    for (;;) {
      const auto parsed = runtime::parse_message(bytes, kMaxBlobBytes);
      if (parsed.message) return bytes;
      const std::size_t whole = bytes.size() < runtime::kHeaderBytes ? runtime::kHeaderBytes : length_of(bytes);
      const std::size_t before = bytes.size();
      bytes.resize(whole);
      const ssize_t got = ::recv(socket_.get(), bytes.data() + before, whole - before, 0);
      if (got <= 0) return {};
      bytes.resize(before + static_cast<std::size_t>(got));
    }
  }
  [[nodiscard]] std::optional<Message> receive() const {
    return runtime::parse_message(receive_bytes(), kMaxBlobBytes).message;
  }
  [[nodiscard]] runtime::Key receive_nonce() const {
    const auto challenge = receive();
    runtime::Key nonce = {};
    EXPECT_TRUE(challenge && challenge->kind == MessageKind::kChallenge && challenge->payload.size() == nonce.size());
    if (challenge) std::copy(challenge->payload.begin(), challenge->payload.end(), nonce.begin());
    return nonce;
  }
  /// Whether the other side ends the connection within two seconds, whatever it sends before.
  [[nodiscard]] bool is_turned_away() const {
    const auto deadline = Clock::now() + std::chrono::seconds(2);
    for (;;) {
      pollfd entry = {socket_.get(), POLLIN, 0};
      const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
      if (::poll(&entry, 1, static_cast<int>(std::max<long>(left, 0))) <= 0) return false;
      char buffer[4096];
      if (::recv(socket_.get(), buffer, sizeof(buffer), 0) <= 0) return true;
    }
  }
  void close() { socket_ = Descriptor(); }

 private:
  static std::size_t length_of(const Blob& header) {
    runtime::ByteReader reader(std::span<const std::byte>(header).subspan(24));
    return runtime::kHeaderBytes + reader.integer<std::uint32_t>() + runtime::kTagBytes;
  }
  Descriptor socket_;
};

Message hello_of(int rank, const std::string& group, const runtime::Key& nonce = {}) {
  Message message;
  message.kind = MessageKind::kHello;
  message.rank = rank;
  message.patience = 5000;
  message.payload = runtime::write_hello({runtime::key_of_group(group), nonce, 2, this_host()});
  return message;
}

/// Something that begins like a hello and is none: cut off, of an impossible length, with another magic number, with
/// noise behind it or instead of it.
Blob broken_hello(std::mt19937& random) {
  Blob bytes = runtime::write_message(hello_of(1, "group"));
  const auto below = [&](std::size_t limit) {
    return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random);
  };
  const auto noise = [&] { return static_cast<std::byte>(random()); };
  switch (below(4)) {
    case 0:
      bytes.resize(below(bytes.size()));
      break;
    case 1:
      // The length, little-endian: more than any stranger may send.
      bytes[25] = noise();
      bytes[26] = noise() | std::byte{1};
      bytes[27] = noise();
      break;
    case 2:
      bytes[below(4)] ^= static_cast<std::byte>(1 + below(255));
      break;
    default:
      bytes.resize(below(2 * runtime::kMaxStrangerPayload) + 1);
      bytes[0] = std::byte{0};
      std::generate(bytes.begin() + 1, bytes.end(), noise);
  }
  return bytes;
}
constexpr int kBrokenHellos = 300;

class ExchangeStrangers : public testing::Test {
 protected:
  ExchangeStrangers() {
    group.common = {"means=tcp", "address=" + address, "directory=" + folder.path().string(), "timeout=10000"};
  }
  /// The group of two meets although strangers came before its rank 1, and came first.
  void expect_group_meets_despite(const std::function<void()>& strangers) {
    auto first = group.start(0, {"gather:5", "pass"});
    { const Stranger knows_that_it_listens(address); }
    strangers();
    auto second = group.start(1, {"gather:5", "pass"});
    EXPECT_EQ(first.finish(), "done\n");
    EXPECT_EQ(second.finish(), "done\n");
  }
  Folder folder;
  std::string address = free_address();
  Ranks group;
  ExchangeKey key = ExchangeKey::from_secret(kSecret);
};

TEST_F(ExchangeStrangers, SilentOnesDoNotHoldUpTheGroup) {
  std::vector<Stranger> silent;
  expect_group_meets_despite([&] {
    for (int i = 0; i < 200; ++i) silent.emplace_back(address);
  });
}

TEST_F(ExchangeStrangers, MalformedInputIsTurnedAway) {
  expect_group_meets_despite([&] {
    Message oversized = hello_of(1, "group");
    Blob header = runtime::write_message(oversized);
    header[24] = header[25] = header[26] = std::byte{0xff};
    Message wrong_rank = hello_of(1, "group");
    wrong_rank.rank = 1 << 20;
    Message unknown = hello_of(1, "group");
    unknown.kind = static_cast<MessageKind>(99);
    Message out_of_turn = hello_of(1, "group");
    out_of_turn.kind = MessageKind::kBlob;
    Message short_hello = hello_of(1, "group");
    short_hello.payload.resize(40);
    Message replayed_number = hello_of(1, "group");
    replayed_number.sequence = 7;
    const std::vector<Blob> inputs = {Blob(100000, std::byte{0x5a}), header, runtime::write_message(wrong_rank),
                                      runtime::write_message(unknown)};
    for (const Blob& input : inputs) {
      const Stranger stranger(address);
      stranger.send(input);
      EXPECT_TRUE(stranger.is_turned_away());
    }
    for (std::string_view text : {"GET / HTTP/1.1\r\n\r\n", "CFX\x02", "C!"}) {
      const Stranger stranger(address);
      stranger.send(text);
      EXPECT_TRUE(stranger.is_turned_away()) << text;
    }
    for (const Message& message : {out_of_turn, short_hello, replayed_number}) {
      const Stranger stranger(address);
      stranger.send_authenticated(message, runtime::hello_key(key, stranger.receive_nonce()));
      EXPECT_TRUE(stranger.is_turned_away());
    }
    Stranger truncated(address);
    const Blob whole = runtime::write_message(hello_of(1, "group"));
    truncated.send(std::span(whole).first(whole.size() / 2));
    truncated.close();
  });
}

TEST_F(ExchangeStrangers, HundredsOfBrokenHellosDoNotHoldUpTheGroup) {
  std::mt19937 random(11);
  expect_group_meets_despite([&] {
    for (int i = 0; i < kBrokenHellos; ++i) {
      const Stranger stranger(address);
      stranger.send(broken_hello(random));
    }
  });
}

TEST_F(ExchangeStrangers, WhoeverHasNotTheKeyIsTurnedAway) {
  expect_group_meets_despite([&] {
    const Stranger unauthenticated(address);
    unauthenticated.send(hello_of(1, "group"));
    EXPECT_TRUE(unauthenticated.is_turned_away());
    const Stranger guessing(address);
    guessing.send_authenticated(
        hello_of(1, "group"),
        runtime::hello_key(ExchangeKey::from_secret("another secret of some length"), guessing.receive_nonce()));
    EXPECT_TRUE(guessing.is_turned_away());
  });
}

TEST_F(ExchangeStrangers, AHelloThatWasRecordedOnOneConnectionIsWorthNothingOnAnother) {
  expect_group_meets_despite([&] {
    const Stranger recorded(address);
    const runtime::Key key_there = runtime::hello_key(key, recorded.receive_nonce());
    const Stranger replaying(address);
    replaying.send_authenticated(hello_of(1, "group"), key_there);
    EXPECT_TRUE(replaying.is_turned_away());
  });
}

TEST_F(ExchangeStrangers, AMemberOfAnotherGroupIsRefusedAndToldWhere) {
  expect_group_meets_despite([&] {
    const Stranger lost(address);
    lost.send_authenticated(hello_of(1, "another group"), runtime::hello_key(key, lost.receive_nonce()));
    const auto refusal = lost.receive();
    ASSERT_TRUE(refusal);
    EXPECT_EQ(refusal->kind, MessageKind::kRefusal);
    EXPECT_NE(runtime::as_text(refusal->payload).find("'group'"), std::string_view::npos);
    EXPECT_TRUE(lost.is_turned_away());
  });
}

TEST_F(ExchangeStrangers, ARankWithAnotherKeyIsMissedAndBothSidesHintAtTheKey) {
  group.common.back() = "timeout=600";
  auto first = group.start(0, {});
  group.common.push_back("secret=some other secret text");
  auto second = group.start(1, {});
  const std::string text = first.finish();
  EXPECT_TRUE(text.starts_with("error Timeout [1] ")) << text;
  EXPECT_NE(text.find("not authenticated with the key"), std::string::npos) << text;
  const std::string other = second.finish();
  EXPECT_TRUE(other.starts_with("error Timeout [0] ")) << other;
  EXPECT_NE(other.find("same key"), std::string::npos) << other;
}

/// Stands between rank 1 and rank 0 and hands on whole messages, changed by `change`, which gets the direction.
void stand_between(int listener, const std::string& address,
                   const std::function<Blob(bool to_first, const Blob&)>& change) {
  const Stranger to_other(Descriptor(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)));
  const Stranger to_first(address);
  std::thread back([&] {
    for (Blob bytes = to_first.receive_bytes(); !bytes.empty(); bytes = to_first.receive_bytes()) {
      to_other.send(change(false, bytes));
    }
    const_cast<Stranger&>(to_other).send(std::string_view());
  });
  for (Blob bytes = to_other.receive_bytes(); !bytes.empty(); bytes = to_other.receive_bytes()) {
    to_first.send(change(true, bytes));
  }
  back.join();
}

class ExchangeTampering : public ExchangeStrangers {
 protected:
  /// What ranks 0 and 1 say when each message passes through `change`.
  std::pair<std::string, std::string> run(const std::function<Blob(bool, const Blob&)>& change) {
    const Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in place = {};
    place.sin_family = AF_INET;
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(place);
    EXPECT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&place), sizeof(place)), 0);
    EXPECT_EQ(::listen(listener.get(), 4), 0);
    EXPECT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&place), &length), 0);
    group.common = {"means=tcp", "directory=" + folder.path().string(), "timeout=2000"};
    Ranks honest = group, deceived = group;
    honest.common.push_back("address=" + address);
    deceived.common.push_back("address=127.0.0.1:" + std::to_string(ntohs(place.sin_port)));
    // Different hosts, so that no Unix socket is needed between the two.
    honest.common.emplace_back("host=left");
    deceived.common.emplace_back("host=right");
    auto first = honest.start(0, {"gather:5", "gather:6"});
    auto second = deceived.start(1, {"gather:5", "gather:6"});
    std::thread middle([&] { stand_between(listener.get(), address, change); });
    std::pair<std::string, std::string> texts = {first.finish(), second.finish()};
    middle.join();
    return texts;
  }
  /// The second blob of a direction is one of the gathers after the set-up.
  static bool is_blob(const Blob& bytes, std::uint64_t number) {
    const auto message = runtime::parse_message(bytes, kMaxBlobBytes).message;
    return message && message->kind == MessageKind::kBlob && message->sequence >= number;
  }
};

TEST_F(ExchangeTampering, AnHonestRelayChangesNothing) {
  const auto [first, second] = run([](bool, const Blob& bytes) { return bytes; });
  EXPECT_EQ(first, "done\n");
  EXPECT_EQ(second, "done\n");
}

TEST_F(ExchangeTampering, AChangedByteIsNoticedByTheFirstRank) {
  const auto [first, second] = run([](bool to_first, const Blob& bytes) {
    Blob changed = bytes;
    if (to_first && is_blob(bytes, 2)) changed[runtime::kHeaderBytes] ^= std::byte{1};
    return changed;
  });
  EXPECT_TRUE(first.starts_with("error Io [1] ")) << first;
  EXPECT_NE(first.find("not authenticated"), std::string::npos) << first;
  EXPECT_EQ(second, first);
}

TEST_F(ExchangeTampering, AChangedByteIsNoticedByTheOtherRank) {
  const auto [first, second] = run([](bool to_first, const Blob& bytes) {
    Blob changed = bytes;
    if (!to_first && is_blob(bytes, 4)) changed[5] ^= std::byte{2};
    return changed;
  });
  EXPECT_TRUE(second.starts_with("error Io [0] ")) << second;
  EXPECT_TRUE(first.starts_with("error ")) << first;
}

TEST_F(ExchangeTampering, AMessageThatIsRepeatedIsRefused) {
  const auto [first, second] = run([](bool to_first, const Blob& bytes) {
    Blob doubled = bytes;
    if (to_first && is_blob(bytes, 2)) doubled.insert(doubled.end(), bytes.begin(), bytes.end());
    return doubled;
  });
  EXPECT_TRUE(first.starts_with("error Io [1] ")) << first;
  EXPECT_NE(first.find("was due"), std::string::npos) << first;
  EXPECT_TRUE(second.starts_with("error ")) << second;
}

class ExchangeUnixStrangers : public testing::Test {
 protected:
  ExchangeUnixStrangers() { group.common = {"directory=" + folder.path().string(), "timeout=10000"}; }
  [[nodiscard]] std::filesystem::path socket_path() const {
    const auto deadline = Clock::now() + std::chrono::seconds(5);
    while (Clock::now() < deadline) {
      for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
        if (entry.path().extension() == ".sock") return entry.path();
      }
      std::this_thread::sleep_for(milliseconds(2));
    }
    return {};
  }
  [[nodiscard]] static Descriptor connect_to(const std::filesystem::path& path, int& error) {
    Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un place = {};
    place.sun_family = AF_UNIX;
    std::strncpy(place.sun_path, path.c_str(), sizeof(place.sun_path) - 1);
    // The file is there a moment before anybody listens at it.
    for (int attempt = 0; attempt < 100; ++attempt) {
      error = ::connect(socket.get(), reinterpret_cast<sockaddr*>(&place), sizeof(place)) == 0 ? 0 : errno;
      if (error != ECONNREFUSED) break;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return socket;
  }
  Folder folder;
  Ranks group;
};

TEST_F(ExchangeUnixStrangers, GarbageAndSilenceOfTheSameUserDoNotHoldUpTheGroup) {
  auto first = group.start(0, {"gather:5"});
  int error = 0;
  const Stranger silent(connect_to(socket_path(), error));
  ASSERT_EQ(error, 0);
  const Stranger garbage(connect_to(socket_path(), error));
  garbage.send("this is no hello");
  EXPECT_TRUE(garbage.is_turned_away());
  auto second = group.start(1, {"gather:5"});
  EXPECT_EQ(first.finish(), "done\n");
  EXPECT_EQ(second.finish(), "done\n");
}

TEST_F(ExchangeUnixStrangers, HundredsOfBrokenHellosDoNotHoldUpTheGroup) {
  std::mt19937 random(12);
  auto first = group.start(0, {"gather:5"});
  for (int i = 0; i < kBrokenHellos; ++i) {
    int error = 0;
    const Stranger stranger(connect_to(socket_path(), error));
    ASSERT_EQ(error, 0);
    stranger.send(broken_hello(random));
  }
  auto second = group.start(1, {"gather:5"});
  EXPECT_EQ(first.finish(), "done\n");
  EXPECT_EQ(second.finish(), "done\n");
}

TEST_F(ExchangeUnixStrangers, AnotherUserCannotReachTheSocketAndIsTurnedAwayWhereItCan) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  auto first = group.start(0, {"gather:5"});
  const auto path = socket_path();
  const auto as_another_user = [&] {
    const int child = ::fork();
    if (child == 0) {
      if (::seteuid(65534) != 0) ::_exit(100);
      int error = 0;
      const Stranger stranger(connect_to(path, error));
      if (error != 0) ::_exit(error == EACCES ? 1 : 101);
      ::_exit(stranger.is_turned_away() ? 2 : 102);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WEXITSTATUS(status);
  };
  EXPECT_EQ(as_another_user(), 1) << "the folder is closed to others";
  ASSERT_EQ(::chmod(folder.path().c_str(), 0711), 0);
  ASSERT_EQ(::chmod(path.c_str(), 0777), 0);
  EXPECT_EQ(as_another_user(), 2) << "a peer of another user is turned away";
  ASSERT_EQ(::chmod(folder.path().c_str(), 0700), 0);
  auto second = group.start(1, {"gather:5"});
  EXPECT_EQ(first.finish(), "done\n");
  EXPECT_EQ(second.finish(), "done\n");
}

}  // namespace
}  // namespace commfuse::exchange_testing
