#include "runtime/exchange/message.hpp"

#include <gtest/gtest.h>

#include "runtime/exchange/bytes.hpp"
#include "runtime/exchange/keys.hpp"

namespace commfuse::runtime {
namespace {

Message sample(MessageKind kind, Blob payload) {
  Message message;
  message.kind = kind;
  message.operation = 2;
  message.rank = 7;
  message.patience = 1234;
  message.sequence = 0x0102030405060708;
  message.payload = std::move(payload);
  return message;
}

Blob with_tag(const Message& message) {
  Blob bytes = write_message(message);
  bytes.resize(bytes.size() + kTagBytes, std::byte{0xcc});
  return bytes;
}

HostIdentity sample_host(const std::string& name) { return {name, name + " name", 1, 2, 3, 4, 1000, 4242}; }

TEST(ExchangeMessage, IsReadAsItWasWritten) {
  const Message message = sample(MessageKind::kBlob, {std::byte{1}, std::byte{2}, std::byte{3}});
  Blob bytes = with_tag(message);
  bytes.push_back(std::byte{0x43});  // the next message begins
  const Parsed parsed = parse_message(bytes, kMaxBlobBytes);
  ASSERT_TRUE(parsed.message) << parsed.refusal;
  EXPECT_EQ(parsed.consumed, kHeaderBytes + 3 + kTagBytes);
  EXPECT_EQ(parsed.authenticated.size(), kHeaderBytes + 3);
  EXPECT_EQ(parsed.tag[0], std::byte{0xcc});
  EXPECT_EQ(parsed.message->kind, message.kind);
  EXPECT_EQ(parsed.message->operation, message.operation);
  EXPECT_EQ(parsed.message->rank, message.rank);
  EXPECT_EQ(parsed.message->patience, message.patience);
  EXPECT_EQ(parsed.message->sequence, message.sequence);
  EXPECT_EQ(parsed.message->payload, message.payload);
}

TEST(ExchangeMessage, HasTheLayoutThatItsGrammarSays) {
  const Blob bytes = write_message(sample(MessageKind::kFailure, {std::byte{9}}));
  EXPECT_EQ(to_hex(bytes),
            "43465801"          // CFX, version
            "07020000"          // kind, operation, zero
            "07000000d2040000"  // rank, patience
            "0807060504030201"  // sequence
            "0100000000000000"  // length, zero
            "09");
}

TEST(ExchangeMessage, EveryBeginningOfOneNeedsMoreBytesAndIsNotRefused) {
  const Blob bytes = with_tag(sample(MessageKind::kBlob, Blob(40)));
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const Parsed parsed = parse_message(std::span(bytes).first(length), kMaxBlobBytes);
    EXPECT_FALSE(parsed.message) << length;
    EXPECT_EQ(parsed.refusal, "") << length;
  }
}

TEST(ExchangeMessage, WhatCannotBecomeOneIsRefused) {
  const Blob good = with_tag(sample(MessageKind::kBlob, Blob(40)));
  const auto refusal_with = [&](std::size_t at, int value) {
    Blob bytes = good;
    bytes[at] = static_cast<std::byte>(value);
    return parse_message(bytes, 40).refusal;
  };
  EXPECT_EQ(parse_message(good, 40).refusal, "");
  for (std::size_t at : {0, 1, 2}) EXPECT_NE(refusal_with(at, 0), "") << "magic " << at;
  EXPECT_NE(refusal_with(3, 2), "") << "version";
  for (int kind : {0, 8, 255}) EXPECT_NE(refusal_with(4, kind), "") << "kind " << kind;
  EXPECT_NE(refusal_with(6, 1), "") << "reserved";
  EXPECT_NE(refusal_with(7, 1), "") << "reserved";
  EXPECT_NE(refusal_with(31, 1), "") << "reserved";
  EXPECT_NE(refusal_with(9, 4), "") << "rank 1031";
  EXPECT_NE(refusal_with(24, 41), "") << "longer than allowed";
  EXPECT_NE(refusal_with(27, 0x80), "") << "2 GiB";
  // As soon as it shows: a stranger need not send more than one wrong byte.
  EXPECT_NE(parse_message(as_span("X"), 40).refusal, "");
  EXPECT_NE(parse_message(as_span("CFX\x09"), 40).refusal, "");
}

TEST(ExchangeMessage, HelloWelcomeAndFailureAreReadAsTheyWereWritten) {
  const Hello hello = {random_key(), random_key(), 16, sample_host("left")};
  const auto hello_read = read_hello(write_hello(hello));
  ASSERT_TRUE(hello_read);
  EXPECT_EQ(hello_read->group, hello.group);
  EXPECT_EQ(hello_read->nonce, hello.nonce);
  EXPECT_EQ(hello_read->size, 16);
  EXPECT_EQ(hello_read->host, hello.host);

  const std::vector<HostIdentity> hosts = {sample_host("left"), sample_host("right")};
  EXPECT_EQ(read_welcome(write_welcome(hosts)), hosts);

  const ExchangeError failure(Code::kTimeout, {1, 5}, "what", "cause", "remedy");
  const auto failure_read = read_failure(write_failure(failure));
  ASSERT_TRUE(failure_read);
  EXPECT_EQ(failure_read->code(), Code::kTimeout);
  EXPECT_EQ(failure_read->ranks(), (std::vector{1, 5}));
  EXPECT_STREQ(failure_read->what(), failure.what());
}

TEST(ExchangeMessage, PayloadsWithMissingOrSpareBytesAreRefused) {
  const auto check = [](const Blob& payload, const auto& read) {
    ASSERT_TRUE(read(payload));
    for (std::size_t length = 0; length < payload.size(); ++length) {
      EXPECT_FALSE(read(Blob(payload.begin(), payload.begin() + static_cast<std::ptrdiff_t>(length)))) << length;
    }
    Blob longer = payload;
    longer.push_back(std::byte{0});
    EXPECT_FALSE(read(longer));
  };
  check(write_hello({random_key(), random_key(), 2, sample_host("left")}), read_hello);
  check(write_welcome(std::vector{sample_host("left"), sample_host("right")}), read_welcome);
  check(write_failure({Code::kIo, {0, 1}, "what", "cause", "remedy"}), read_failure);
}

TEST(ExchangeMessage, PayloadsWithImpossibleNumbersAreRefused) {
  Blob failure = write_failure({Code::kIo, {0}, "", "", ""});
  for (int code : {0, 17, 255}) {
    failure[0] = static_cast<std::byte>(code);
    EXPECT_FALSE(read_failure(failure)) << "code " << code;
  }
  EXPECT_FALSE(read_failure(write_failure({Code::kIo, {kMaxExchangeSize}, "", "", ""})));
  EXPECT_FALSE(read_hello(write_hello({{}, {}, 0, {}})));
  EXPECT_FALSE(read_hello(write_hello({{}, {}, kMaxExchangeSize + 1, {}})));
  // A count that the bytes cannot hold must not be reserved for.
  EXPECT_FALSE(read_welcome(Blob(4, std::byte{0xff})));
}

TEST(ExchangeMessage, TextsThatAreTooLongAreCutByTheWriterAndRefusedByTheReader) {
  const auto failure = read_failure(write_failure({Code::kIo, {}, std::string(100000, 'x'), "", ""}));
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->message().size(), kMaxTextBytes);
  ByteWriter writer;
  writer.text(std::string(5000, 'x'), 5000);
  const Blob bytes = writer.take();
  ByteReader reader(bytes);
  EXPECT_EQ(reader.text(kMaxTextBytes), "");
  EXPECT_FALSE(reader.is_good());
}

TEST(ExchangeKeys, EachConnectionAndDirectionHasItsOwn) {
  const ExchangeKey secret = ExchangeKey::from_secret("a secret for tests only");
  const Key first = random_key(), second = random_key(), newcomer = random_key();
  const ConnectionKeys keys = connection_keys(secret, first, newcomer);
  EXPECT_EQ(keys.hello, hello_key(secret, first));
  EXPECT_EQ(keys.to_first, connection_keys(secret, first, newcomer).to_first);
  EXPECT_NE(keys.to_first, keys.from_first);
  EXPECT_NE(keys.to_first, keys.hello);
  EXPECT_NE(keys.hello, hello_key(secret, second));
  EXPECT_NE(keys.to_first, connection_keys(secret, second, newcomer).to_first);
  EXPECT_NE(keys.to_first, connection_keys(secret, first, second).to_first);
  EXPECT_NE(keys.to_first,
            connection_keys(ExchangeKey::from_secret("another secret of tests"), first, newcomer).to_first);
}

TEST(ExchangeKeys, PartsOfADigestDoNotRunIntoEachOther) {
  EXPECT_NE(digest({}, {as_span("ab"), as_span("c")}), digest({}, {as_span("a"), as_span("bc")}));
}

}  // namespace
}  // namespace commfuse::runtime
