#include "sim/kernels/run.hpp"

#include "sim/ptx.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "commfuse/workspace.hpp"
#include "device/params.cuh"
#include "runtime/pattern.hpp"

namespace commfuse::sim {
namespace {

using reference::Bytes;
using reference::Case;
using reference::TensorId;

using Pointers = std::array<std::uint8_t*, reference::kTensorCount>;

/// One rank's workspace and streams of calls, in simulated memory.
struct Rank {
  std::uint8_t* buffers = nullptr;
  device::Control* control = nullptr;
  device::HostMailbox* mailbox = nullptr;
  Pointers reused{};  ///< SimulatedCall::reuses_tensors
};

struct PlacedCall {
  Case data;
  std::vector<Pointers> pointers;  ///< by rank: what the host writes and reads
  std::vector<Pointers> passed;    ///< by rank: what the kernel is given
};

/// A kernel of the engine's: copies words.
struct CopyParams {
  const device::u32* from;
  device::u32* to;
  device::u32 words;
};
void copy_words(const CopyParams& params) {
  device::ptx::wait_for_predecessors();
  for (device::u32 i = device::ptx::thread_index(); i < params.words; i += device::ptx::thread_count()) {
    device::ptx::store_weak(params.to + i, device::ptx::load_weak(params.from + i));
  }
}

constexpr bool is_reused(TensorId id) noexcept { return id == TensorId::kIn || is_output(id); }
constexpr std::size_t memory_of(std::size_t bytes) noexcept {
  return std::max<std::size_t>((bytes + 15) / 16 * 16, 16);
}

std::vector<std::int64_t> rows_of(const SimulatedCall& call) {
  return call.rows_of_ranks.empty() ? reference::balanced_rows(call.tokens, call.spec.world_size) : call.rows_of_ranks;
}
std::int64_t longest_run(const SimulatedCall& call) {
  const std::vector<std::int64_t> rows = rows_of(call);
  return *std::max_element(rows.begin(), rows.end());
}

unsigned teams_of(const SimulatedCall& call) {
  if (call.teams != 0) return call.teams;
  const KernelSpec& spec = call.spec;
  const bool own_rows_only = spec.op == Op::kReduceScatter || spec.algorithm != Algorithm::kOneShot;
  const std::int64_t rows = own_rows_only ? longest_run(call) : call.tokens;
  const std::int64_t vectors = rows * spec.hidden_size * size_of(spec.dtype) / 16;
  const bool flat = spec.pattern == Pattern::kReduceScatter ||
                    (spec.pattern == Pattern::kAllReduce && spec.algorithm == Algorithm::kOneShot);
  return static_cast<unsigned>(std::max<std::int64_t>(1, flat ? (vectors + spec.threads - 1) / spec.threads : rows));
}

/// Of the balanced call that needs as much room.
std::int64_t tokens_to_size(const SimulatedCall& call) {
  return call.rows_of_ranks.empty() ? call.tokens : longest_run(call) * call.spec.world_size;
}

class Run {
 public:
  Run(const std::vector<SimulatedCall>& calls, const Options& options)
      : calls_(calls), options_(options), world_(static_cast<std::uint32_t>(calls.front().spec.world_size), options) {
    for (const SimulatedCall& call : calls) {
      rotation_bytes_ = std::max(rotation_bytes_, required_rotation_bytes(call.spec, tokens_to_size(call)));
    }
    rotation_bytes_ = (std::max<std::uint64_t>(rotation_bytes_, 1) + 255) / 256 * 256;
    for (std::uint32_t rank = 0; rank < world_.ranks(); ++rank) {
      Rank made;
      const std::uint64_t shared = rotation_bytes_ * 3 + sizeof(device::PeerSignals);
      made.buffers = world_.allocate<std::uint8_t>(rank, shared, "rotation buffers");
      world_.memset(made.buffers, 0xff, shared);
      made.control = world_.allocate<device::Control>(rank, 1, "control");
      world_.memset(made.control, 0, sizeof(device::Control));
      made.mailbox = world_.allocate_host<device::HostMailbox>(1, "mailbox");
      ranks_.push_back(made);
    }
  }

  void make_calls() {
    for (std::size_t i = 0; i < calls_.size(); ++i) place(calls_[i], options_.seed * 131 + i);
    world_.run();
  }

  std::vector<device::HostMailbox> without_rank(std::uint32_t absent, std::uint64_t timeout_ns) {
    absent_ = absent;
    timeout_ns_ = timeout_ns;
    make_calls();
    std::vector<device::HostMailbox> mailboxes;
    for (const Rank& rank : ranks_) mailboxes.push_back(*rank.mailbox);
    return mailboxes;
  }

  std::string operator()() {
    make_calls();
    std::string report;
    for (std::size_t i = 0; i < calls_.size() && report.empty(); ++i) report = check(i);
    return report.empty() ? report : report + " (" + describe(options_) + ")";
  }

 private:
  void place(const SimulatedCall& call, std::uint64_t seed) {
    placed_.push_back({reference::make_case(call.spec, rows_of(call), call.values, seed, seed % 2 == 1), {}, {}});
    PlacedCall& placed = placed_.back();
    for (std::uint32_t rank = 0; rank < world_.ranks(); ++rank) {
      placed.pointers.push_back(tensors_of(call, placed.data, rank));
      placed.passed.push_back(call.reuses_tensors ? reused_tensors(placed, rank) : placed.pointers.back());
    }
    for (std::uint32_t rank = 0; rank < world_.ranks(); ++rank) {
      if (rank == absent_) continue;
      if (call.reuses_tensors) copy_reused(placed, rank, false);
      launch(call, placed, rank, seed % 2 == 1);
      if (call.reuses_tensors) copy_reused(placed, rank, true);
    }
  }

  /// The tensors that all calls share, made by the first call: the first must be the largest.
  Pointers reused_tensors(const PlacedCall& placed, std::uint32_t rank) {
    Pointers pointers = placed.pointers[rank];
    for (int i = 0; i < reference::kTensorCount; ++i) {
      const auto id = static_cast<TensorId>(i);
      const reference::CaseTensor& tensor = placed.data.tensor(static_cast<int>(rank), id);
      if (!tensor.used || !is_reused(id)) continue;
      std::uint8_t*& reused = ranks_[rank].reused[static_cast<std::size_t>(i)];
      if (reused == nullptr) {
        const std::size_t bytes = memory_of(tensor.bytes.size());
        reused = world_.allocate<std::uint8_t>(rank, bytes, to_string(id));
        world_.memset(reused, reference::kPoison, bytes);
      }
      pointers[static_cast<std::size_t>(i)] = reused;
    }
    return pointers;
  }
  void copy_reused(const PlacedCall& placed, std::uint32_t rank, bool outputs) {
    for (int i = 0; i < reference::kTensorCount; ++i) {
      const auto id = static_cast<TensorId>(i);
      const reference::CaseTensor& tensor = placed.data.tensor(static_cast<int>(rank), id);
      if (!tensor.used || !is_reused(id) || is_output(id) != outputs) continue;
      auto* host = reinterpret_cast<device::u32*>(placed.pointers[rank][static_cast<std::size_t>(i)]);
      auto* reused = reinterpret_cast<device::u32*>(placed.passed[rank][static_cast<std::size_t>(i)]);
      const CopyParams params{outputs ? reused : host, outputs ? host : reused,
                              static_cast<device::u32>((tensor.bytes.size() + 3) / 4)};
      world_.launch(rank, copy_words, params, {.blocks = 1, .threads = 64, .name = "copy"});
    }
  }

  /// For each tensor: how far it is from a rank's tensor to each peer's.
  const device::u64* offsets_of(const PlacedCall& placed, std::uint32_t rank) {
    constexpr std::array kIds = {TensorId::kIn,      TensorId::kOut,      TensorId::kResidualOut,
                                 TensorId::kNormOut, TensorId::kQuantOut, TensorId::kScaleOut};
    static_assert(kIds.size() == device::kDirectTensors);
    std::array<device::u64, kIds.size() * device::kMaxWorldSize> offsets{};
    for (std::size_t range = 0; range < kIds.size(); ++range) {
      const auto id = static_cast<std::size_t>(kIds[range]);
      for (std::uint32_t peer = 0; peer < world_.ranks(); ++peer) {
        offsets[range * device::kMaxWorldSize + peer] = reinterpret_cast<device::u64>(placed.passed[peer][id]) -
                                                        reinterpret_cast<device::u64>(placed.passed[rank][id]);
      }
    }
    auto* memory = world_.allocate<device::u64>(rank, offsets.size(), "peer offsets");
    world_.write(memory, offsets.data(), sizeof(offsets));
    return memory;
  }

  Pointers tensors_of(const SimulatedCall& call, const Case& data, std::uint32_t rank) {
    Pointers pointers{};
    for (int i = 0; i < reference::kTensorCount; ++i) {
      const auto id = static_cast<TensorId>(i);
      const reference::CaseTensor& tensor = data.tensor(static_cast<int>(rank), id);
      if (!tensor.used) continue;
      const bool like_in = call.spec.op == Op::kAllReduce;  // in a reduce-scatter `in` has more rows than the outputs
      if (call.in_place && like_in && (id == TensorId::kOut || id == TensorId::kNormOut)) {
        pointers[static_cast<std::size_t>(i)] = pointers[static_cast<std::size_t>(TensorId::kIn)];
        continue;
      }
      if (call.in_place && id == TensorId::kResidualOut) {
        pointers[static_cast<std::size_t>(i)] = pointers[static_cast<std::size_t>(TensorId::kResidualIn)];
        continue;
      }
      const std::size_t bytes = memory_of(tensor.bytes.size());
      auto* memory = world_.allocate<std::uint8_t>(rank, bytes, to_string(id));
      if (is_output(id) || call.reuses_tensors) world_.memset(memory, reference::kPoison, bytes);
      if (!is_output(id)) {
        world_.write(memory, tensor.bytes.data(), tensor.bytes.size());
      }
      pointers[static_cast<std::size_t>(i)] = memory;
    }
    return pointers;
  }

  void launch(const SimulatedCall& call, const PlacedCall& placed, std::uint32_t rank, bool zero_padding) {
    const Pointers& tensors = placed.passed[rank];
    const auto at = [&](TensorId id) { return tensors[static_cast<std::size_t>(id)]; };
    const auto vectors = [&](TensorId id) { return reinterpret_cast<device::Vec16*>(at(id)); };
    const auto floats = [&](TensorId id) { return reinterpret_cast<const float*>(at(id)); };
    device::AllReduceParams params{};
    for (std::uint32_t peer = 0; peer < world_.ranks(); ++peer) {
      params.peer_buffer[peer] = reinterpret_cast<device::u64>(ranks_[peer].buffers);
    }
    params.rotation_bytes = rotation_bytes_;
    params.control = ranks_[rank].control;
    params.mailbox = ranks_[rank].mailbox;
    params.timeout_ns = timeout_ns_;
    params.in = vectors(TensorId::kIn);
    params.residual_in = vectors(TensorId::kResidualIn);
    params.gamma = at(TensorId::kGamma);
    params.gamma_before = at(TensorId::kGammaBefore);
    params.out = vectors(TensorId::kOut);
    params.residual_out = vectors(TensorId::kResidualOut);
    params.norm_out = vectors(TensorId::kNormOut);
    params.partial_norm_out = vectors(TensorId::kPartialNormOut);
    params.quant_out = at(TensorId::kQuantOut);
    params.scale_out = at(TensorId::kScaleOut);
    params.scale_factor = floats(TensorId::kScaleFactor);
    params.mixture_max = floats(TensorId::kMixtureMax);
    params.mixture_sum = floats(TensorId::kMixtureSum);
    params.mixture = floats(TensorId::kMixture);
    params.score_weight = at(TensorId::kScoreWeight);
    params.mixture_gamma = at(TensorId::kMixtureGamma);
    params.scale_stride = static_cast<device::u64>(placed.data.scale_strides[rank]);
    params.rank = rank;
    params.add_in = vectors(TensorId::kAddIn);
    params.tokens = static_cast<device::u32>(placed.data.tokens);
    params.flags = (call.dependent ? device::kTriggerEarly : 0U) | (zero_padding ? device::kZeroScalePadding : 0U);
    params.operation = runtime::operation_word(call.spec.op, call.spec.pattern);
    if (call.direct != 0) {
      params.direct = call.direct;
      const device::u64* offsets = offsets_of(placed, rank);
      for (auto& tensor : params.peer_offset) tensor = std::exchange(offsets, offsets + device::kMaxWorldSize);
    }
    params.eps = placed.data.eps;
    switch (call.spec.op) {
      case Op::kAllReduce:
        return launch(call, params, rank);
      case Op::kReduceScatter: {
        device::ReduceScatterParams scatter{};
        scatter.common = params;
        scatter.common.tokens = static_cast<device::u32>(placed.data.rows[rank].count);
        scatter.longest = static_cast<device::u32>(longest_run(call));
        for (std::size_t i = 0; i < placed.data.rows.size(); ++i) {
          scatter.row_begin[i] = static_cast<device::u32>(placed.data.rows[i].begin);
          scatter.row_begin[i + 1] = scatter.row_begin[i] + static_cast<device::u32>(placed.data.rows[i].count);
        }
        return launch(call, scatter, rank);
      }
    }
  }

  template <typename Params>
  void launch(const SimulatedCall& call, const Params& params, std::uint32_t rank) {
    const auto cluster = static_cast<std::uint32_t>(call.spec.cluster);
    const SimulatedKernel kernel = call.kernel != nullptr ? call.kernel : find_kernel(call.spec);
    if (kernel == nullptr) {
      throw Failure(FailureKind::kUsage, "the simulator was compiled without kernel " + call.spec.name());
    }
    world_.launch(rank, [kernel, params] { kernel(&params); },
                  {.blocks = teams_of(call) * cluster,
                   .threads = static_cast<std::uint32_t>(call.spec.threads),
                   .cluster = cluster,
                   .dependent = call.dependent,
                   .name = call.spec.name()});
  }

  std::string check(std::size_t index) {
    const PlacedCall& placed = placed_[index];
    for (std::uint32_t rank = 0; rank < world_.ranks(); ++rank) {
      if (ranks_[rank].mailbox->status != 0) return "a kernel reported a failure";
      for (int i = 0; i < reference::kTensorCount; ++i) {
        const auto id = static_cast<TensorId>(i);
        const reference::CaseTensor& tensor = placed.data.tensor(static_cast<int>(rank), id);
        if (!tensor.used || !is_output(id)) continue;
        const std::vector<std::uint8_t> actual =
            world_.read(placed.pointers[rank][static_cast<std::size_t>(i)], tensor.bytes.size());
        const std::string report = check_output(placed.data, static_cast<int>(rank), id, actual);
        if (!report.empty()) return "call " + std::to_string(index) + ": " + report;
      }
    }
    return {};
  }

  const std::vector<SimulatedCall>& calls_;
  Options options_;
  World world_;
  std::uint64_t rotation_bytes_ = 0;
  std::uint32_t absent_ = device::kMaxWorldSize;  ///< no rank
  std::uint64_t timeout_ns_ = 1'000'000'000'000;
  std::vector<Rank> ranks_;
  std::vector<PlacedCall> placed_;
};

}  // namespace

std::vector<device::HostMailbox> run_without_rank(const std::vector<SimulatedCall>& calls, std::uint32_t absent,
                                                  std::uint64_t timeout_ns, const Options& options) {
  return Run(calls, options).without_rank(absent, timeout_ns);
}

std::string run_calls(const std::vector<SimulatedCall>& calls, const Options& options) { return Run(calls, options)(); }

}  // namespace commfuse::sim
