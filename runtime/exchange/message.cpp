#include "runtime/exchange/message.hpp"

#include <algorithm>

#include "runtime/exchange/bytes.hpp"

namespace commfuse::runtime {
namespace {

constexpr std::string_view kMagic = "CFX";
constexpr std::uint8_t kVersion = 1;
constexpr std::size_t kMaxNameBytes = 255;
constexpr int kLastCode = static_cast<int>(Code::kInternal);

Parsed refused(std::string why) {
  Parsed parsed;
  parsed.refusal = std::move(why);
  return parsed;
}

void write_host(ByteWriter& writer, const HostIdentity& host) {
  writer.text(host.host, kMaxNameBytes);
  writer.text(host.name, kMaxNameBytes);
  writer.integer(host.mount_namespace);
  writer.integer(host.pid_namespace);
  writer.integer(host.ipc_namespace);
  writer.integer(host.user_namespace);
  writer.integer(host.user);
  writer.integer(host.process);
}

HostIdentity read_host(ByteReader& reader) {
  HostIdentity host;
  host.host = reader.text(kMaxNameBytes);
  host.name = reader.text(kMaxNameBytes);
  host.mount_namespace = reader.integer<std::uint64_t>();
  host.pid_namespace = reader.integer<std::uint64_t>();
  host.ipc_namespace = reader.integer<std::uint64_t>();
  host.user_namespace = reader.integer<std::uint64_t>();
  host.user = reader.integer<std::uint32_t>();
  host.process = reader.integer<std::uint32_t>();
  return host;
}

Key read_key(ByteReader& reader) {
  Key key = {};
  const auto field = reader.raw(key.size());
  std::copy(field.begin(), field.end(), key.begin());
  return key;
}

}  // namespace

Parsed parse_message(std::span<const std::byte> bytes, std::size_t max_payload) {
  // Wrong beginnings are refused at once: waiting for a whole header would let a stranger sit with three bytes of HTTP.
  const auto start = bytes.first(std::min(bytes.size(), kMagic.size()));
  if (as_text(start) != kMagic.substr(0, start.size())) return refused("it does not start like a message of commfuse");
  if (bytes.size() > kMagic.size() && std::to_integer<int>(bytes[kMagic.size()]) != kVersion) {
    return refused("it is of protocol version " + std::to_string(std::to_integer<int>(bytes[kMagic.size()])) +
                   ", this is version " + std::to_string(kVersion));
  }
  if (bytes.size() < kHeaderBytes) return {};

  ByteReader reader(bytes.first(kHeaderBytes).subspan(kMagic.size() + 1));
  const auto kind = reader.integer<std::uint8_t>();
  Message message;
  message.operation = reader.integer<std::uint8_t>();
  const auto zero = reader.integer<std::uint16_t>();
  const auto rank = reader.integer<std::uint32_t>();
  message.patience = reader.integer<std::uint32_t>();
  message.sequence = reader.integer<std::uint64_t>();
  const auto length = reader.integer<std::uint32_t>();
  // What remains of the 32 bytes keeps the header a round number.
  const auto padding = reader.integer<std::uint32_t>();
  if (kind < 1 || kind > static_cast<std::uint8_t>(MessageKind::kFailure)) {
    return refused("its kind " + std::to_string(kind) + " does not exist");
  }
  if (zero != 0 || padding != 0) return refused("its reserved bytes are not zero");
  if (rank >= static_cast<std::uint32_t>(kMaxExchangeSize))
    return refused("its rank " + std::to_string(rank) + " is too large");
  if (length > max_payload) {
    return refused("it has " + std::to_string(length) + " bytes, allowed are " + std::to_string(max_payload));
  }
  const std::size_t whole = kHeaderBytes + length + kTagBytes;
  if (bytes.size() < whole) return {};

  message.kind = static_cast<MessageKind>(kind);
  message.rank = static_cast<int>(rank);
  const auto payload = bytes.subspan(kHeaderBytes, length);
  message.payload.assign(payload.begin(), payload.end());
  Parsed parsed;
  parsed.message = std::move(message);
  parsed.consumed = whole;
  parsed.authenticated = bytes.first(kHeaderBytes + length);
  parsed.tag = bytes.subspan(kHeaderBytes + length, kTagBytes);
  return parsed;
}

Blob write_message(const Message& message) {
  ByteWriter writer;
  writer.raw(as_span(kMagic));
  writer.integer(kVersion);
  writer.integer(static_cast<std::uint8_t>(message.kind));
  writer.integer(message.operation);
  writer.integer(std::uint16_t{0});
  writer.integer(static_cast<std::uint32_t>(message.rank));
  writer.integer(message.patience);
  writer.integer(message.sequence);
  writer.integer(static_cast<std::uint32_t>(message.payload.size()));
  writer.integer(std::uint32_t{0});
  writer.raw(message.payload);
  return writer.take();
}

Blob write_hello(const Hello& hello) {
  ByteWriter writer;
  writer.raw(hello.group);
  writer.raw(hello.nonce);
  writer.integer(static_cast<std::uint32_t>(hello.size));
  write_host(writer, hello.host);
  return writer.take();
}

std::optional<Hello> read_hello(std::span<const std::byte> payload) {
  ByteReader reader(payload);
  Hello hello;
  hello.group = read_key(reader);
  hello.nonce = read_key(reader);
  const auto size = reader.integer<std::uint32_t>();
  hello.host = read_host(reader);
  if (!reader.is_finished() || size < 1 || size > static_cast<std::uint32_t>(kMaxExchangeSize)) return std::nullopt;
  hello.size = static_cast<int>(size);
  return hello;
}

Blob write_welcome(std::span<const HostIdentity> hosts) {
  ByteWriter writer;
  writer.integer(static_cast<std::uint32_t>(hosts.size()));
  for (const auto& host : hosts) write_host(writer, host);
  return writer.take();
}

std::optional<std::vector<HostIdentity>> read_welcome(std::span<const std::byte> payload) {
  ByteReader reader(payload);
  const auto count = reader.integer<std::uint32_t>();
  if (count > static_cast<std::uint32_t>(kMaxExchangeSize)) return std::nullopt;
  std::vector<HostIdentity> hosts;
  for (std::uint32_t i = 0; i < count && reader.is_good(); ++i) hosts.push_back(read_host(reader));
  if (!reader.is_finished()) return std::nullopt;
  return hosts;
}

Blob write_failure(const ExchangeError& failure) {
  ByteWriter writer;
  writer.integer(static_cast<std::uint8_t>(failure.code()));
  writer.integer(static_cast<std::uint32_t>(failure.ranks().size()));
  for (int rank : failure.ranks()) writer.integer(static_cast<std::uint32_t>(rank));
  writer.text(failure.message(), kMaxTextBytes);
  writer.text(failure.cause(), kMaxTextBytes);
  writer.text(failure.remedy(), kMaxTextBytes);
  return writer.take();
}

std::optional<ExchangeError> read_failure(std::span<const std::byte> payload) {
  ByteReader reader(payload);
  const auto code = reader.integer<std::uint8_t>();
  const auto count = reader.integer<std::uint32_t>();
  if (code == 0 || code > kLastCode || count > static_cast<std::uint32_t>(kMaxExchangeSize)) return std::nullopt;
  std::vector<int> ranks;
  for (std::uint32_t i = 0; i < count && reader.is_good(); ++i) {
    const auto rank = reader.integer<std::uint32_t>();
    if (rank >= static_cast<std::uint32_t>(kMaxExchangeSize)) return std::nullopt;
    ranks.push_back(static_cast<int>(rank));
  }
  std::string what = reader.text(kMaxTextBytes);
  std::string cause = reader.text(kMaxTextBytes);
  std::string remedy = reader.text(kMaxTextBytes);
  if (!reader.is_finished()) return std::nullopt;
  return ExchangeError(static_cast<Code>(code), std::move(ranks), std::move(what), std::move(cause), std::move(remedy));
}

}  // namespace commfuse::runtime
