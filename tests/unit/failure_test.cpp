// From the words that a kernel left in the mailbox to a sentence.
#include <gtest/gtest.h>

#include <bit>

#include "runtime/call_header.hpp"
#include "runtime/pattern.hpp"
#include "runtime/workspace_state.hpp"

namespace commfuse::runtime {
namespace {

using device::DeviceStatus;

/// Rank 1 of 4, with its mailbox in ordinary memory.
class MailboxOnly final : public WorkspaceState {
 public:
  MailboxOnly() {
    rank_ = 1;
    world_size_ = 4;
    mailbox_ = &mailbox;
  }
  /// As a kernel leaves it.
  MailboxOnly(DeviceStatus status, std::uint32_t other) : MailboxOnly() {
    mailbox.status = static_cast<std::uint32_t>(status);
    mailbox.awaited_rank = other;
    mailbox.operation = operation_word(Op::kAllReduce, Pattern::kResidualRmsNorm);
    mailbox.epoch_low = 7;
    mailbox.epoch_high = 1;
    mailbox.token = 12;
  }
  device::HostMailbox mailbox{};
};

struct MailboxCase {
  DeviceStatus status;
  Code code;
  int awaited_rank;
  int origin_rank;
  std::string_view text;
};

TEST(Failure, SaysWhatTheFirstFailingKernelLeft) {
  const MailboxCase cases[] = {
      {DeviceStatus::kTimeout, Code::kTimeout, 3, -1, "waiting for rank 3's data of token 12"},
      {DeviceStatus::kAborted, Code::kAborted, 3, 1, "aborted in call 4294967303 (all_reduce residual_rms_norm)"},
      {DeviceStatus::kPeerAborted, Code::kAborted, -1, 3, "because rank 3 was aborted"},
      {DeviceStatus::kBusy, Code::kBusy, -1, 1, "because rank 1 began a call while another"},
      {DeviceStatus::kPeerBusy, Code::kBusy, -1, 3, "because rank 3 began a call while another"},
      {DeviceStatus::kStale, Code::kStale, 3, -1, "earlier generation"},
  };
  for (const MailboxCase& each : cases) {
    const MailboxOnly workspace(each.status, 3);
    const Failure failure = workspace.failure();
    EXPECT_EQ(failure.code, each.code);
    EXPECT_EQ(failure.rank, 1);
    EXPECT_EQ(failure.awaited_rank, each.awaited_rank) << each.text;
    EXPECT_EQ(failure.origin_rank, each.origin_rank) << each.text;
    EXPECT_EQ(failure.epoch, (std::uint64_t{1} << 32) + 7);
    EXPECT_NE(failure.text().find(each.text), std::string::npos) << failure.text();
    EXPECT_NE(failure.text().find("rank 1: "), std::string::npos) << failure.text();
  }
}

TEST(Failure, NamesTheFieldThatDiffersAndBothValuesInWords) {
  struct Field {
    device::CallWord word;
    std::uint32_t own;
    std::uint32_t other;
    std::string_view text;
  };
  KernelSpec plain;
  KernelSpec weights;
  weights.weight_bias = true;
  weights.gamma_dtype = DataType::kFp32;
  const std::uint32_t options = CallHeader(plain, 1, 0, 0).word[device::kOptionsWord];
  const std::uint32_t more = CallHeader(weights, 1, 0, 0).word[device::kOptionsWord];
  const Field fields[] = {
      {device::kTokensWord, 4, 5, "tokens is 4 here and 5 there"},
      {device::kOperationWord, 0, 1, "operation is all_reduce here and all_reduce residual_rms_norm there"},
      {device::kDtypeWord, 1, 2, "dtype is bf16 here and fp32 there"},
      {device::kHiddenSizeWord, 4096, 8192, "hidden_size is 4096 here and 8192 there"},
      {device::kAlgorithmWord, 0, 1, "algorithm is one_shot here and two_shot there"},
      {device::kEpochLowWord, 8, 9, "epoch is 8 here and 9 there"},
      {device::kGenerationWord, 0, 1, "generation is 0 here and 1 there"},
      {device::kEpsWord, std::bit_cast<std::uint32_t>(0.5F), 0, "eps is 0.5 here and 0 there"},
      {device::kOptionsWord, options, more,
       "options is fp32_accumulate here and fp32_accumulate, weight_bias, fp32 gamma there"},
      {device::kOptionsWord, 0, 2 << 4, "options is none here and linear there"},
  };
  for (const Field& field : fields) {
    MailboxOnly workspace(DeviceStatus::kMismatch, 2);
    workspace.mailbox.operation |= device::kAnnouncement;
    workspace.mailbox.field = field.word;
    workspace.mailbox.own_value = field.own;
    workspace.mailbox.other_value = field.other;
    const Failure failure = workspace.failure();
    EXPECT_EQ(failure.code, Code::kMismatch);
    EXPECT_EQ(failure.awaited_rank, 2);
    EXPECT_EQ(failure.own_value, field.own);
    EXPECT_EQ(failure.other_value, field.other);
    EXPECT_NE(failure.text().find(field.text), std::string::npos) << failure.text();
    EXPECT_NE(failure.text().find("(all_reduce residual_rms_norm) is not the one that rank 2 makes"),
              std::string::npos);
  }
}

TEST(Failure, TellsAnAnnouncementThatNeverCameFromDataThatNeverCame) {
  MailboxOnly workspace(DeviceStatus::kTimeout, 0);
  EXPECT_FALSE(workspace.failure().before_call);
  workspace.mailbox.operation |= device::kAnnouncement;
  EXPECT_TRUE(workspace.failure().before_call);
  EXPECT_EQ(workspace.failure().operation, "residual_rms_norm");
  EXPECT_NE(workspace.failure().text().find("waiting for rank 0 to announce its call"), std::string::npos);
}

TEST(Failure, AnAbortThatNoKernelHasNoticedYetIsAFailureToo) {
  MailboxOnly workspace;
  EXPECT_EQ(workspace.failure().code, Code::kOk);
  workspace.abort();
  workspace.abort();
  EXPECT_EQ(workspace.failure().code, Code::kAborted);
  EXPECT_EQ(workspace.failure().text(), "rank 1: aborted");
}

TEST(CallHeader, DiffersWhereTheKernelsOrTheirArgumentsDo) {
  KernelSpec spec;
  spec.pattern = Pattern::kResidualRmsNorm;
  spec.hidden_size = 4096;
  const auto words = [](const KernelSpec& changed, std::int64_t tokens = 3, float eps = 1e-6F,
                        std::uint32_t rows_of_ranks = 0) {
    const CallHeader header(changed, tokens, rows_of_ranks, eps);
    return std::vector<std::uint32_t>(std::begin(header.word), std::end(header.word));
  };
  std::vector<std::vector<std::uint32_t>> all = {words(spec), words(spec, 4), words(spec, 3, 1e-5F),
                                                 words(spec, 3, 1e-6F, 1)};
  const auto add = [&](auto change) {
    KernelSpec changed = spec;
    change(changed);
    all.push_back(words(changed));
  };
  add([](KernelSpec& s) { s.pattern = Pattern::kRmsNorm; });
  add([](KernelSpec& s) { s.algorithm = Algorithm::kTwoShot; });
  add([](KernelSpec& s) { s.hidden_size = 8192; });
  add([](KernelSpec& s) { s.dtype = DataType::kFp16; });
  add([](KernelSpec& s) { s.fp32_accumulate = false; });
  add([](KernelSpec& s) { s.gamma_dtype = DataType::kFp32; });
  add([](KernelSpec& s) { s.weight_bias = true; });
  add([](KernelSpec& s) { s.residual_scattered = true; });
  add([](KernelSpec& s) { s.quant_layout = QuantLayout::kLinear; });
  add([](KernelSpec& s) { s.group_size = 64; });
  add([](KernelSpec& s) { s.latent_width = 512; });
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(all[i], all[j]) << i << " and " << j;
  }
  // Geometry and architecture may differ: the ranks' kernels understand each other all the same.
  KernelSpec same = spec;
  same.threads = 512;
  same.cluster = 4;
  same.arch = "sm_100a";
  EXPECT_EQ(words(same), words(spec));
}

}  // namespace
}  // namespace commfuse::runtime
