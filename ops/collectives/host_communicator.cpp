// SPDX-License-Identifier: Apache-2.0
//
// A call on rank r, in the communication thread of its device:
//   1. It posts its buffer and meets the others: now all buffers are there and may be used.
//   2. It does its share, which touches only what is its own to write (part r everywhere in an
//      all-gather; part r of its own buffer in a reduce-scatter).
//   3. It meets the others again: now nobody uses its buffer any more.
// An all-reduce is the shares of a reduce-scatter and of an all-gather with a meeting between.
#include "ops/collectives/host_communicator.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/collectives/reduce.h"

namespace zerobox {
namespace {

absl::string_view View(std::string_view s) { return {s.data(), s.size()}; }

// Bytes that are copied to every rank while they are in the cache.
constexpr int64_t kCopyChunk = 256 << 10;

struct Post {
  int64_t number = 0;
  Collective collective = Collective::kAllGather;
  Buffer buffer;
  int root = 0;
  CallLabel label{};
};

bool SameCall(const Post& a, const Post& b) {
  return a.number == b.number && a.collective == b.collective &&
         a.buffer.elements == b.buffer.elements && a.buffer.dtype == b.buffer.dtype &&
         a.root == b.root && a.label.purpose == b.label.purpose && a.label.unit == b.label.unit;
}

// "all-gather number 17 (parameters, unit 3)"
std::string Describe(const Post& post) {
  std::string name(Name(post.collective));
  std::replace(name.begin(), name.end(), '_', '-');
  const std::string unit = post.label.unit < 0 ? "" : absl::StrCat(", unit ", post.label.unit);
  return absl::StrCat(name, " number ", post.number, " (", View(Name(post.label.purpose)), unit,
                      ")");
}

std::string DescribeFully(const Post& post) {
  const std::string root =
      post.collective == Collective::kBroadcast ? absl::StrCat(" from rank ", post.root) : "";
  return absl::StrCat(Describe(post), " of ", post.buffer.elements, " ",
                      View(Name(post.buffer.dtype)), " elements", root);
}

}  // namespace

struct HostGroup::Meeting {
  Meeting(int size, Abort& run) : abort(run), point(run), posts(Size(size)), traffic(Size(size)) {}
  static size_t Size(int n) { return static_cast<size_t>(n); }

  int size() const { return static_cast<int>(posts.size()); }

  // What rank r has sent; those who take it from r add to it.
  struct RankTraffic {
    std::array<std::atomic<int64_t>, kCollectives> calls{};
    std::array<std::atomic<int64_t>, kCollectives> bytes{};
    std::atomic<int64_t> scalar_calls{0};
    std::atomic<int64_t> scalar_bytes{0};
  };

  Abort& abort;
  CallHook hook;
  WaitPoint point;
  std::vector<Post> posts;  // each rank writes its own before a meeting and reads all behind it
  int arrived = 0;          // guarded by point
  int64_t meetings = 0;     // guarded by point
  // Ranks that are between Enter and Leave; raised under point's lock.
  std::atomic<int> sharing{0};
  std::vector<RankTraffic> traffic;
};

class HostGroup::Member final : public Communicator {
 public:
  Member(Meeting& meeting, int rank, HostDevice& device)
      : meeting_(meeting), rank_(rank), device_(device) {}

  int rank() const override { return rank_; }
  int size() const override { return meeting_.size(); }

  void AllReduceSum(Buffer whole, CallLabel label) override {
    Call(Collective::kAllReduce, whole, 0, label);
  }
  void ReduceScatterSum(Buffer whole, CallLabel label) override {
    assert(whole.elements % size() == 0);
    Call(Collective::kReduceScatter, whole, 0, label);
  }
  void AllGather(Buffer whole, CallLabel label) override {
    assert(whole.elements % size() == 0);
    Call(Collective::kAllGather, whole, 0, label);
  }
  void Broadcast(Buffer buffer, int root, CallLabel label) override {
    assert(root >= 0 && root < size());
    Call(Collective::kBroadcast, buffer, root, label);
  }
  Traffic traffic() const override;

 private:
  void Call(Collective collective, Buffer buffer, int root, CallLabel label);
  absl::Status Perform(const Post& post);
  absl::Status Meet(const Post& post, bool first);
  absl::Status CheckPosts() const;
  bool Enter(const Post& post);
  void Leave();
  void WaitForSharing() const;

  Buffer Part(const Buffer& whole, int rank) const;
  void ReduceOwnPart(const Post& post);
  void SendToAll(const Post& post, Buffer from, int64_t begin);
  void CountSent(int rank, const Post& post, int64_t bytes);

  Meeting& meeting_;
  const int rank_;
  HostDevice& device_;
  int64_t next_number_ = 0;  // the worker's
  int64_t meetings_ = 0;     // the communication thread's: meetings of this rank so far
};

HostGroup::HostGroup(int size, Abort& abort) : meeting_(std::make_unique<Meeting>(size, abort)) {}
HostGroup::~HostGroup() = default;

std::unique_ptr<Communicator> HostGroup::Join(int rank, HostDevice& device) {
  assert(rank >= 0 && rank < meeting_->size());
  return std::make_unique<Member>(*meeting_, rank, device);
}

void HostGroup::set_call_hook(CallHook hook) { meeting_->hook = std::move(hook); }

void HostGroup::Member::Call(Collective collective, Buffer buffer, int root, CallLabel label) {
  if (size() == 1) return;
  const Post post{next_number_++, collective, buffer, root, label};
  device_.Enqueue(StreamId::kCommunication, Name(collective), [this, post]() -> absl::Status {
    if (meeting_.hook) {
      absl::Status status =
          meeting_.hook(CallInfo{rank_, post.number, post.collective, post.label});
      if (!status.ok()) return status;
    }
    return Perform(post);
  });
}
