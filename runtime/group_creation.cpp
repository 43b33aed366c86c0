#include "runtime/group_creation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "cache/sha256.hpp"
#include "commfuse/version.hpp"
#include "device/params.cuh"
#include "runtime/driver.hpp"
#include "runtime/exchange/bytes.hpp"

namespace commfuse::runtime {

GroupCreation::GroupCreation(Exchange& exchange, const WorkspaceOptions& options, MemoryKind asked)
    : exchange_(exchange),
      steps_(exchange, options.set_up_timeout, sharing_purpose(exchange.group())),
      options_(options),
      asked_(asked),
      rotation_bytes_(rounded_rotation_bytes(options.rotation_bytes)) {}

void GroupCreation::agree_on_request() {
  if (exchange_.size() > static_cast<int>(device::kMaxWorldSize)) {
    throw Error(Code::kInvalidArgument, fmt::format("cannot {}", steps_.purpose()),
                fmt::format("it has {} ranks", exchange_.size()), fmt::format("at most {} can", device::kMaxWorldSize));
  }
  const std::string request = fmt::format(
      "commfuse {}, rotation bytes {}, parameter block of {} bytes, memory kind {}, self-test {}, checking mode {}, "
      "planner table {}",
      COMMFUSE_VERSION_STRING, rotation_bytes_, sizeof(device::AllReduceParams), to_string(asked_),
      options_.self_test ? "on" : "off", options_.checking ? "on" : "off",
      options_.planner_table.is_empty() ? "none" : cache::sha256_hex(options_.planner_table.to_json()));
  agree(exchange_, "the workspace", as_span(request), options_.set_up_timeout);
}

void GroupCreation::look_at_devices() {
  const GroupSteps::Result result = steps_.publish([&] { return look_at_own_device().write(); });
  const bool one_host = is_one_host(exchange_);
  if (!result.is_ok()) throw one_host ? steps_.error_of(result.ranks) : hosts_error(exchange_, result.ranks);
  for (const Blob& blob : result.payloads) devices_.push_back(RankDevice::read(blob));
  kinds_ = kinds_to_try(asked_, one_host, devices_);
  if (!one_host) require_fabric(exchange_, asked_, devices_);
  caps_ = common_caps(devices_);
  steps_.require([&] {
    for (int rank = 0; rank < exchange_.size(); ++rank) require_reachable(rank);
  });
}

std::unique_ptr<ProcessWorkspace> GroupCreation::share_memory() {
  std::unique_ptr<ProcessWorkspace> workspace;
  steps_.require([&] { workspace = std::make_unique<ProcessWorkspace>(exchange_, options_, rotation_bytes_, caps_); });
  MemorySharing sharing(steps_, device_, shared_memory_bytes(rotation_bytes_), kEmptyWord, options_.self_test);
  for (const MemoryKind kind : kinds_) {
    SharedMemory memory;
    attempts_.push_back({kind, sharing.attempt(kind, memory)});
    if (!all_ok(attempts_.back().ranks)) continue;
    (void)workspace->take(std::move(memory), rotation_bytes_);
    return workspace;
  }
  throw no_kind_error(exchange_.group(), attempts_);
}

RankDevice GroupCreation::look_at_own_device() {
  if (options_.timeout.count() <= 0) {
    throw Error(Code::kInvalidArgument, "the timeout of the workspace is not positive", "",
                "Every wait on the GPU is bounded; give the longest time that a peer may be late");
  }
  (void)driver();
  COMMFUSE_DRIVER(cuCtxGetCurrent(&context_));
  if (context_ == nullptr) {
    throw Error(Code::kInvalidArgument, "no CUDA context is current", "",
                "Make the context in which the kernels will run current before the group is made");
  }
  COMMFUSE_DRIVER(cuCtxGetDevice(&device_));
  RankDevice own;
  CUuuid uuid{};
  COMMFUSE_DRIVER(cuDeviceGetUuid(&uuid, device_));
  static_assert(sizeof(uuid) == sizeof(own.uuid));
  std::memcpy(own.uuid.data(), &uuid, sizeof(uuid));
  COMMFUSE_DRIVER(cuDeviceGetAttribute(&own.sm_count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device_));
  // Drivers before CUDA 12.3 do not know the question.
  int fabric = 0;
  own.has_fabric = driver().cuDeviceGetAttribute(&fabric, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, device_) ==
                       CUDA_SUCCESS &&
                   fabric != 0;
  return own;
}

void GroupCreation::require_reachable(int rank) const {
  const RankDevice& peer = devices_[static_cast<std::size_t>(rank)];
  if (peer.uuid == devices_[static_cast<std::size_t>(exchange_.rank())].uuid) return;
  int count = 0;
  COMMFUSE_DRIVER(cuDeviceGetCount(&count));
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CUdevice candidate = 0;
    COMMFUSE_DRIVER(cuDeviceGet(&candidate, ordinal));
    CUuuid uuid{};
    COMMFUSE_DRIVER(cuDeviceGetUuid(&uuid, candidate));
    if (std::memcmp(peer.uuid.data(), &uuid, sizeof(uuid)) != 0) continue;
    int can_access = 0;
    COMMFUSE_DRIVER(cuDeviceCanAccessPeer(&can_access, device_, candidate));
    if (can_access != 0) return;
    throw Error(Code::kUnsupported, fmt::format("its GPU cannot access the GPU of rank {}", rank), "",
                "Put the ranks on GPUs that are connected: 'nvidia-smi topo -p2p rw' shows which are");
  }
  // A device that this process may not see: whether it can be mapped all the same shows when it is tried.
}

}  // namespace commfuse::runtime
