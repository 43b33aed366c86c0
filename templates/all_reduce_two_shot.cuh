// All-reduce in two shots: the owner of a token (partition.cuh) receives its row from every rank, adds, normalises, and
// sends what the others need of the finished row (finished_rows.cuh) to every rank. Both phases wait on the data
// itself, not on flags. A "team" is a block, or the blocks of a cluster, that handles one row at a time.
//
// Bytes per rank (N ranks, M tokens, rows of R bytes): read M R, send and receive (N - 1)/N M R twice.
// Order of work of a team, w counting its rows: push the rows of w + 1 to their owners, reduce and send its own row w,
// receive the rows w - 1 of all owners: what it waits for was sent a whole step ago. It cannot deadlock: pushing waits
// for nobody, reducing waits only for pushes of row w, which every team does before it reduces its row w, and receiving
// only for reductions. (All teams of all ranks must be resident together: planner.)
//
// The direct form (Config::kDirect) reaches into tensors that the ranks have registered (direct.cuh), each tensor by
// itself: a registered input is not pushed but read by the owner, a registered output is written by the owner, and rows
// are sent only if some output is not registered. With everything registered, bytes per rank are: read M R of inputs,
// write M R for each output; nothing is staged.
#pragma once

#include "device/direct.cuh"
#include "device/epilogue.cuh"
#include "device/finished_rows.cuh"
#include "device/gather.cuh"

namespace commfuse::device {

template <class Config>
class TwoShot {
 public:
  using Epilogue = device::Epilogue<Config>;
  using Access = DirectAccess<Config::kWorldSize>;

  COMMFUSE_DEVICE TwoShot(const AllReduceParams& params, Epilogue& epilogue, const Access* access, Call& call)
      : params_(params),
        epilogue_(epilogue),
        access_(access),
        call_(call),
        rotation_(params, call),
        partition_(params.tokens) {
    COMMFUSE_UNROLL
    for (u32 k = 0; k < kCount; ++k) has_[k] = Map::has(k);
  }

  /// Pushes inputs to their owners and receives finished rows; what the direct form does not need.
  COMMFUSE_DEVICE bool pushes() const { return !Config::kDirect || !access_->has(Direct::kIn); }
  COMMFUSE_DEVICE bool receives() const { return !Config::kDirect || (params_.direct & kShared) != kShared; }

  COMMFUSE_DEVICE void clear_previous() const { rotation_.clear_previous(call_); }

  /// All of this team's work, after its first rows have been pushed.
  COMMFUSE_DEVICE void run(u32 team, u32 teams) {
    const u32 rows = partition_.longest();
    u32 before = rows;
    if (!pushes()) {
      Pulled next;
      if (kPullsAhead) pull(team, next);
      for (u32 row = team; row < rows; row += teams) {
        Pulled pulled;
        if (kPullsAhead) {
          pulled = next;
          pull(row + teams, next);
        } else {
          pull(row, pulled);
        }
        reduce_pulled(row, pulled);
        if (before < rows) receive_finished(before);
        before = row;
      }
      if (before < rows) receive_finished(before);
      return;
    }
    for (u32 row = team; row < rows; row += teams) {
      if (row + teams < rows) push_contributions(row + teams);
      reduce_own(row);
      if (before < rows) receive_finished(before);
      before = row;
    }
    if (before < rows) receive_finished(before);
  }

  COMMFUSE_DEVICE void push_contributions(u32 row) const {
    if (!pushes() || row >= partition_.longest()) return;
    COMMFUSE_NO_UNROLL
    for (u32 step = 1; step < kRanks; ++step) {
      const u32 owner = rotation_.peer<kRanks>(step);
      if (row >= partition_.count(owner)) continue;
      Vec16* slot = rotation_.slot(owner, contribution(Rotation::sender_index(params_.rank, owner), row));
      COMMFUSE_UNROLL
      for (u32 k = 0; k < kCount; ++k) {
        if (has_[k])
          ptx::store_relaxed_sys(slot + Map::vector(k),
                                 sendable(epilogue_.contribution(partition_.begin(owner) + row, k)));
      }
    }
  }

 private:
  using Map = typename Epilogue::Map;
  using Rows = FinishedRows<Config, Epilogue>;
  static constexpr u32 kRanks = Config::kWorldSize;
  static constexpr u32 kCount = Epilogue::kCount;
  /// The outputs that every rank has all rows of.
  static constexpr u32 kShared =
      (Config::kResidual && !Config::kResidualScattered ? bit_of(Direct::kResidualOut) : 0) |
      (Config::kNorm == Norm::kNone || Config::kNorm == Norm::kLatent ? bit_of(Direct::kOut) : 0) |
      (Config::kNormOut ? bit_of(Direct::kNormOut) : 0) | (Epilogue::kQuantizes ? bit_of(Direct::kQuantOut) : 0) |
      (Epilogue::kQuantizes && Config::kQuantizer != Quantizer::kFp8Tensor ? bit_of(Direct::kScaleOut) : 0);

  // Where the two phases lie in a rotation buffer, in vectors: contribution of the sender to row `row` of the
  // receiver's run, and finished row `row` of the sender's run.
  COMMFUSE_DEVICE u64 contribution(u32 sender_index, u32 row) const {
    return (static_cast<u64>(sender_index) * partition_.longest() + row) * Epilogue::kRowVectors;
  }
  COMMFUSE_DEVICE u64 finished(u32 sender_index, u32 row) const {
    const u64 rows = partition_.longest();
    return (kRanks - 1) * rows * Epilogue::kRowVectors + (sender_index * rows + row) * Rows::kSentVectors;
  }

  /// Adds up this rank's row number `row` and finishes it. Inputs that were pushed.
  COMMFUSE_DEVICE void reduce_own(u32 row) {
    if (row >= partition_.count(params_.rank)) return;
    const u32 token = partition_.begin(params_.rank) + row;
    const typename Epilogue::Prefetched fetched = epilogue_.prefetch(token);
    Vec16 own[kCount];
    COMMFUSE_UNROLL
    for (u32 k = 0; k < kCount; ++k) own[k] = sendable(epilogue_.contribution(token, k));
    Vec16 y[kCount];
    gather_sum<Config, kCount>(
        params_.rank, has_, own,
        [&](u32 from, u32 k) {
          return rotation_.own_slot(contribution(Rotation::sender_index(from, params_.rank), row) + Map::vector(k));
        },
        call_, token, true, y);
    finish_own(row, token, fetched, y);
  }

  /// Inputs that are read where they lie. With few ranks the next row's loads are under way while this one is worked
  /// on; with more, one row has loads enough, and there are no registers for two.
  static constexpr bool kPullsAhead = kRanks * kCount <= 6;
  struct Pulled {
    PulledRow<Config, kCount> row;
    typename Epilogue::Prefetched fetched;
  };
  COMMFUSE_DEVICE void pull(u32 row, Pulled& pulled) const {
    if (row >= partition_.count(params_.rank)) return;
    const u32 token = partition_.begin(params_.rank) + row;
    pulled.row.load(0, has_, [&](u32 from, u32 k) { return access_->in_of(epilogue_.input(token, k), from); });
    pulled.fetched = epilogue_.prefetch(token);
  }
  COMMFUSE_DEVICE void reduce_pulled(u32 row, Pulled& pulled) {
    if (row >= partition_.count(params_.rank)) return;
    const u32 token = partition_.begin(params_.rank) + row;
    Vec16 y[kCount];
    pull_sum<Config, kCount>(
        pulled.row, has_, [&](u32 from, u32 k) { return access_->in_of(epilogue_.input(token, k), from); },
        [&](u32 from, u32 k, const Vec16& in) {
          return from == params_.rank ? epilogue_.with_own_residual(token, k, in) : in;
        },
        y);
    finish_own(row, token, pulled.fetched, y);
  }

  /// The rest of an own row, from its sum.
  COMMFUSE_DEVICE void finish_own(u32 row, u32 token, const typename Epilogue::Prefetched& fetched,
                                  Vec16 (&y)[kCount]) {
    const Vec16 facts = epilogue_.complete_row(token, fetched, y);
    typename Epilogue::Finished finished_row[kCount];
    COMMFUSE_UNROLL
    for (u32 k = 0; k < kCount; ++k) finished_row[k] = epilogue_.finish(token, k, y[k], facts);
    // A thread that gave up sends nothing: its peers then miss its vectors and give up too, instead of taking a row
    // made of what memory happened to hold for a result.
    if (receives()) {
      Rows::send(finished_row, facts, !call_.gave_up(), [&](u32 step) {
        const u32 to = rotation_.peer<kRanks>(step);
        return rotation_.slot(to, finished(Rotation::sender_index(params_.rank, to), row));
      });
    }
    COMMFUSE_UNROLL
    for (u32 k = 0; k < kCount; ++k) {
      if constexpr (Config::kDirect) {
        epilogue_.store(token, k, finished_row[k], EveryRanksTensors<kRanks>(*access_, params_.rank));
      } else {
        epilogue_.store(token, k, finished_row[k], OwnTensors{});
      }
    }
  }

  COMMFUSE_DEVICE void receive_finished(u32 row) {
    if (!receives()) return;
    const auto peer = [&](u32 step) { return rotation_.peer<kRanks>(step); };
    const auto slot = [&](u32 step) -> Vec16* {
      const u32 owner = peer(step);
      if (row >= partition_.count(owner)) return nullptr;
      return rotation_.own_slot(finished(Rotation::sender_index(owner, params_.rank), row));
    };
    const auto token = [&](u32 step) { return partition_.begin(peer(step)) + row; };
    if constexpr (Config::kDirect) {
      Rows::receive_row_of_each(epilogue_, call_, slot, token, peer, OrdinaryTensors<kRanks>(*access_));
    } else {
      Rows::receive_row_of_each(epilogue_, call_, slot, token, peer, OwnTensors{});
    }
  }

  const AllReduceParams& params_;
  Epilogue& epilogue_;
  const Access* access_;  ///< null unless direct
  Call& call_;
  Rotation rotation_;
  Partition<kRanks> partition_;
  bool has_[kCount];
};

template <bool kDirect, class Epilogue, class Access>
struct TwoShotShared {
  typename Epilogue::Shared row;
};
template <class Epilogue, class Access>
struct TwoShotShared<true, Epilogue, Access> {
  typename Epilogue::Shared row;
  typename Access::Shared access;
};

template <class Config>
COMMFUSE_DEVICE void all_reduce_two_shot(const AllReduceParams& params) {
  static_assert(Config::kHiddenSize % Elements<Config::kType>::kPerVector == 0, "rows are multiples of 16 bytes");
  static_assert(!Config::kDirect || Config::kCluster == 1, "blocks leave a failed direct call one by one");
  using Epilogue = device::Epilogue<Config>;
  using Access = DirectAccess<Config::kWorldSize>;
  begin_kernel(params);
  const u32 team = ptx::block_index() / Config::kCluster;
  const u32 teams = ptx::block_count() / Config::kCluster;
  auto& shared = ptx::shared_memory<TwoShotShared<Config::kDirect, Epilogue, Access>>();
  Epilogue epilogue(params, shared.row);
  Call call;
  if (!call.begin(params)) return;
  if constexpr (Config::kDirect) {
    Access access(params, shared.access);
    access.announce_start(call);
    TwoShot<Config> two_shot(params, epilogue, &access, call);
    two_shot.push_contributions(team);
    two_shot.clear_previous();
    epilogue.write_padding();
    if (access.wait_for_start(call)) two_shot.run(team, teams);
    access.finish(call);
  } else {
    TwoShot<Config> two_shot(params, epilogue, nullptr, call);
    two_shot.push_contributions(team);
    two_shot.clear_previous();
    epilogue.write_padding();
    ptx::block_barrier();
    if (ptx::thread_index() == 0) call.arrive();
    two_shot.run(team, teams);
    if (ptx::thread_index() == 0) call.finish(0);
  }
}

}  // namespace commfuse::device
