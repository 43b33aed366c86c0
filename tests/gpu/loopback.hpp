// Reference cases on a real GPU: all ranks as streams of this process.
#pragma once

#include <cuda.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "commfuse/operations.hpp"
#include "device/params.cuh"
#include "reference/case.hpp"
#include "runtime/device_memory.hpp"

namespace commfuse::gpu {

/// A device's primary context, current on this thread while the object lives.
class DeviceContext {
 public:
  explicit DeviceContext(int ordinal = 0);
  ~DeviceContext();
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

 private:
  CUdevice device_ = 0;
};

/// Why there is no usable GPU; empty if there is one.
[[nodiscard]] std::string why_no_gpu();

class StreamHandle {
 public:
  StreamHandle();
  ~StreamHandle();
  StreamHandle(StreamHandle&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  StreamHandle& operator=(StreamHandle&&) = delete;
  [[nodiscard]] CUstream get() const noexcept { return stream_; }

 private:
  CUstream stream_ = nullptr;
};

/// The operation that `spec` is a kernel of.
[[nodiscard]] AllReduceKind kind_of(const KernelSpec& spec);
[[nodiscard]] ReduceScatterKind reduce_scatter_kind_of(const KernelSpec& spec);
[[nodiscard]] AllGatherKind all_gather_kind_of(const KernelSpec& spec);

/// A case with its tensors in device memory: those of all ranks, or of one.
class PlacedCase {
 public:
  explicit PlacedCase(reference::Case data, std::optional<int> only_rank = std::nullopt);

  [[nodiscard]] const reference::Case& data() const noexcept { return data_; }
  [[nodiscard]] AllReduceTensors tensors(int rank) const;
  [[nodiscard]] ReduceScatterTensors reduce_scatter_tensors(int rank) const;
  [[nodiscard]] AllGatherTensors all_gather_tensors(int rank) const;
  /// Registers those of its tensors that direct kernels reach and `tensors` (device::bit_of) names, until it is
  /// unregistered. All ranks must be placed.
  void register_with(LoopbackGroup& group, device::u32 tensors = ~0U);
  void unregister(LoopbackGroup& group);
  /// Inputs and poisoned outputs as before the first call.
  void restore();
  /// Empty if every output on every rank that is placed is right; else the first report.
  [[nodiscard]] std::string check() const;

 private:
  [[nodiscard]] bool is_placed(std::size_t rank) const {
    return !only_rank_ || static_cast<std::size_t>(*only_rank_) == rank;
  }

  reference::Case data_;
  std::optional<int> only_rank_;
  std::vector<std::array<runtime::DeviceBuffer, reference::kTensorCount>> memory_;
  std::vector<RegisteredBuffer> registered_;
};

/// All ranks of one group with a stream each.
class Ranks {
 public:
  Ranks(int world_size, std::uint64_t rotation_bytes, std::chrono::nanoseconds timeout = std::chrono::seconds(10));
  Ranks(int world_size, const WorkspaceOptions& options);

  [[nodiscard]] int size() const noexcept { return group_.world_size(); }
  [[nodiscard]] LoopbackGroup& group() noexcept { return group_; }
  [[nodiscard]] Workspace& workspace(int rank) { return group_.workspace(rank); }
  [[nodiscard]] CUstream stream(int rank) const { return streams_[static_cast<std::size_t>(rank)].get(); }
  /// Waits for all streams and returns what failed, as text.
  [[nodiscard]] std::string synchronise();

 private:
  LoopbackGroup group_;
  std::vector<StreamHandle> streams_;
};

/// One operation of any kind on all ranks.
class GroupOperation {
 public:
  GroupOperation(const KernelSet& kernels, Ranks& ranks, const AllReduceKind& kind);
  /// The operation that `spec` is a kernel of.
  GroupOperation(const KernelSet& kernels, Ranks& ranks, const KernelSpec& spec);

  /// A launch of one rank, its tensors looked up.
  using Launch = std::function<Status(const LaunchOptions&, CUstream)>;
  [[nodiscard]] Launch prepare(int rank, const PlacedCase& placed);
  /// Launches on every rank's stream; the first refusal as text.
  [[nodiscard]] std::string launch(const PlacedCase& placed, const LaunchOptions& options);
  /// A rank's operation: for an all-reduce, and for what all have in common.
  [[nodiscard]] AllReduce& rank(int rank) { return std::get<AllReduce>(operations_[static_cast<std::size_t>(rank)]); }
  [[nodiscard]] ReduceScatter& reduce_scatter(int rank) {
    return std::get<ReduceScatter>(operations_[static_cast<std::size_t>(rank)]);
  }
  [[nodiscard]] AllGather& all_gather(int rank) {
    return std::get<AllGather>(operations_[static_cast<std::size_t>(rank)]);
  }
  [[nodiscard]] const FusedOperation& any(int rank) const;

 private:
  Ranks& ranks_;
  std::vector<std::variant<AllReduce, ReduceScatter, AllGather>> operations_;
};

/// The launch options that a case was made for.
[[nodiscard]] LaunchOptions options_of(const reference::Case& data, bool zero_padding = false);

}  // namespace commfuse::gpu
