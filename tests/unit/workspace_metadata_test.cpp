#include "commfuse/workspace_metadata.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "runtime/workspace_state.hpp"

namespace commfuse {
namespace {

Deployment deployment(int world_size, int hidden_size, std::int64_t max_tokens, const std::string& more = "") {
  return Deployment::parse(
      R"({"name": "d", "dtype": "bf16", "world_size": )" + std::to_string(world_size) + R"(, "hidden_size": )" +
      std::to_string(hidden_size) + R"(, "max_tokens": )" + std::to_string(max_tokens) + more +
      R"(, "operations": [{"op": "all_reduce", "patterns": ["all_reduce", "residual_rms_norm"]}]})");
}

/// A workspace without memory.
class Sized final : public runtime::WorkspaceState {
 public:
  Sized(int world_size, std::uint64_t bytes, bool checking = false) {
    rank_ = 1;
    world_size_ = world_size;
    rotation_bytes_ = runtime::rounded_rotation_bytes(bytes);
    checking_ = checking;
    generation_ = 3;
    timeout_ns_ = 5'000'000'000;
    caps_.ranks_on_device = 2;
  }
};

TEST(WorkspaceBytes, AddUpToEverythingThatARankTakes) {
  const Deployment d = deployment(4, 4096, 1000);
  const WorkspaceBytes bytes = required_bytes(d);
  // One-shot of 1000 rows of 8192 bytes from three peers is the largest call.
  EXPECT_EQ(bytes.rotation_buffer, 3 * 1000 * 8192U);
  EXPECT_EQ(bytes.rotation_buffers, 3 * bytes.rotation_buffer);
  EXPECT_EQ(bytes.shared(), runtime::shared_memory_bytes(bytes.rotation_buffer));
  EXPECT_EQ(bytes.device(), bytes.shared() + sizeof(device::Control));
  EXPECT_EQ(bytes.pinned, sizeof(device::HostMailbox) + 4);
  EXPECT_EQ(required_bytes(std::uint64_t{1}).rotation_buffer, 256U);
  EXPECT_EQ(required_bytes(std::uint64_t{0}).rotation_buffer, 256U);
}

// The seed's sizes were 32-bit numbers, cut off at 2 GiB with a warning; its staging buffer did not grow with fp32.
TEST(WorkspaceBytes, AreExactBeyondFourGibibytesAndForEveryType) {
  const Deployment large = deployment(8, 7168, 131072);
  EXPECT_EQ(required_bytes(large).rotation_buffer, std::uint64_t{7} * 131072 * 7168 * 2);
  Deployment wide = deployment(2, 4096, 1024);
  const std::uint64_t narrow_bytes = required_bytes(wide).rotation_buffer;
  wide.dtype = DataType::kFp32;
  EXPECT_EQ(required_bytes(wide).rotation_buffer, 2 * narrow_bytes);
}

TEST(WorkspaceMetadata, DescribesTheWorkspace) {
  const Sized workspace(4, 1000);
  const WorkspaceMetadata metadata = metadata_of(workspace);
  EXPECT_EQ(metadata.rank, 1);
  EXPECT_EQ(metadata.world_size, 4);
  EXPECT_EQ(metadata.bytes, required_bytes(std::uint64_t{1000}));
  EXPECT_EQ(metadata.timeout, std::chrono::seconds(5));
  const auto json = nlohmann::json::parse(metadata.to_json());
  EXPECT_EQ(json.at("rank"), 1);
  EXPECT_EQ(json.at("world_size"), 4);
  EXPECT_EQ(json.at("generation"), 3);
  EXPECT_EQ(json.at("checking"), false);
  EXPECT_EQ(json.at("timeout_ns"), 5'000'000'000);
  EXPECT_EQ(json.at("sm_count"), 132);
  EXPECT_EQ(json.at("ranks_on_device"), 2);
  EXPECT_EQ(json.at("bytes").at("rotation_buffer"), 1024);
  EXPECT_EQ(json.at("bytes").at("device"), metadata.bytes.device());
  EXPECT_EQ(json.size(), 8U);
}

TEST(WorkspaceMetadata, MaxTokensIsTheLastThatFits) {
  for (const int world_size : {2, 3, 8}) {
    for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
      KernelSpec spec;
      spec.pattern = Pattern::kResidualRmsNorm;
      spec.algorithm = algorithm;
      spec.world_size = world_size;
      spec.hidden_size = 2880;
      for (const std::uint64_t bytes : {std::uint64_t{1}, std::uint64_t{100'000}, std::uint64_t{1} << 33}) {
        const WorkspaceMetadata metadata = metadata_of(Sized(world_size, bytes));
        const std::int64_t most = metadata.max_tokens(spec);
        EXPECT_LE(required_rotation_bytes(spec, most), metadata.bytes.rotation_buffer);
        EXPECT_GT(required_rotation_bytes(spec, most + 1), metadata.bytes.rotation_buffer);
      }
      EXPECT_EQ(metadata_of(Sized(world_size + 1, 1 << 20)).max_tokens(spec), 0);
    }
  }
  KernelSpec alone;
  alone.world_size = 1;
  alone.hidden_size = 8;
  EXPECT_EQ(metadata_of(Sized(1, 1)).max_tokens(alone), std::numeric_limits<std::int32_t>::max());
}

TEST(WorkspaceMetadata, AWorkspaceServesEveryDeploymentThatFitsIt) {
  const Deployment small = deployment(4, 2880, 100);
  const Deployment other_shape = deployment(4, 5760, 50);
  const WorkspaceMetadata metadata = metadata_of(Sized(4, required_rotation_bytes(small)));
  EXPECT_TRUE(metadata.serves(small).ok());
  EXPECT_TRUE(metadata.serves(other_shape).ok());
  EXPECT_EQ(metadata.serves(deployment(4, 2880, 101)).code, Code::kCapacity);
  EXPECT_EQ(metadata.serves(deployment(2, 2880, 1)).code, Code::kMismatch);
  const WorkspaceMetadata checking = metadata_of(Sized(4, required_rotation_bytes(small), true));
  EXPECT_EQ(checking.serves(small).code, Code::kNotWarmed);
  EXPECT_TRUE(checking.serves(deployment(4, 2880, 100, R"(, "checking": true)")).ok());
}

}  // namespace
}  // namespace commfuse
