// Messages of strangers: whatever the bytes, the parser reads nothing beyond them, and what it accepts is exactly what
// the writer writes for it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>

#include "runtime/exchange/message.hpp"

namespace {

using commfuse::Blob;
namespace runtime = commfuse::runtime;

void require(bool holds) {
  if (!holds) std::abort();
}

template <typename Read, typename Write>
void check_payload(std::span<const std::byte> payload, Read read, Write write) {
  const auto value = read(payload);
  if (value) require(write(*value) == Blob(payload.begin(), payload.end()));
}

void check_stream(std::span<const std::byte> stream, std::size_t max_payload) {
  for (;;) {
    const auto parsed = runtime::parse_message(stream, max_payload);
    require(!parsed.message || parsed.refusal.empty());
    if (!parsed.message) return;
    require(parsed.consumed <= stream.size() && parsed.message->payload.size() <= max_payload);
    require(parsed.tag.size() == runtime::kTagBytes);
    const auto covered = parsed.authenticated;
    require(runtime::write_message(*parsed.message) == Blob(covered.begin(), covered.end()));
    // With fewer bytes it is the same beginning, so nothing else may come of it.
    const auto shorter = runtime::parse_message(stream.first(parsed.consumed - 1), max_payload);
    require(!shorter.message && shorter.refusal.empty());
    stream = stream.subspan(parsed.consumed);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  switch (data[0] % 5) {
    case 0:
      check_stream(bytes, runtime::kMaxStrangerPayload);
      break;
    case 1:
      check_stream(bytes, 16);
      break;
    case 2:
      check_payload(bytes, runtime::read_hello, runtime::write_hello);
      break;
    case 3: {
      const auto write = [](const std::vector<commfuse::HostIdentity>& hosts) { return runtime::write_welcome(hosts); };
      check_payload(bytes, runtime::read_welcome, write);
      break;
    }
    case 4:
      check_payload(bytes, runtime::read_failure, runtime::write_failure);
      break;
  }
  return 0;
}
