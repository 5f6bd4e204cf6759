// SPDX-License-Identifier: Apache-2.0
//
// A call on rank r, in the communication thread of its device:
//   1. It posts its buffer and meets the others: now all buffers are there and may be used.
//   2. It does its share: rank r alone reads and writes part r, in the buffers of all. So an
//      all-reduce needs no meeting between its two halves. In a broadcast each rank takes its copy.
//   3. It meets the others again: now nobody uses its buffer any more.
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

#include "ops/collectives/posted_call.h"
#include "ops/collectives/reduce.h"
#include "ops/device/thread_sanitizer.h"

namespace zerobox {
namespace {

// Bytes that are copied to every rank while they are in the cache.
constexpr int64_t kCopyChunk = 256 << 10;

}  // namespace

struct HostGroup::Meeting {
  Meeting(int size, Abort& run)
      : abort(run),
        point(run),
        posts(static_cast<size_t>(size)),
        traffic(static_cast<size_t>(size)) {}

  int size() const { return static_cast<int>(posts.size()); }

  // What one rank has sent; those who take it add to it.
  struct RankTraffic {
    struct Counter {
      std::atomic<int64_t> calls{0};
      std::atomic<int64_t> bytes{0};
      CollectiveCount Get() const { return {calls.load(), bytes.load()}; }
    };
    std::array<Counter, kCollectives> collectives;
    Counter scalars;

    void Add(const PostedCall& post, int64_t calls, int64_t bytes) {
      const auto c = static_cast<size_t>(post.collective);
      Counter& counter = post.label.purpose == Purpose::kScalars ? scalars : collectives[c];
      counter.calls += calls;
      counter.bytes += bytes;
    }
    Traffic Get() const {
      Traffic traffic;
      for (size_t c = 0; c < kCollectives; ++c) traffic.collectives[c] = collectives[c].Get();
      traffic.scalars = scalars.Get();
      return traffic;
    }
  };

  Abort& abort;
  CallHook hook;
  WaitPoint point;
  std::vector<PostedCall> posts;  // of the ranks that have arrived; guarded by point
  int arrived = 0;                // guarded by point
  int64_t meetings = 0;           // that were complete; guarded by point
  std::atomic<int> sharing{0};    // ranks between Enter and Leave; raised under point's lock
  std::vector<RankTraffic> traffic;
};

// One rank, as its communication thread sees it. Shared with every call in the queue.
class HostGroup::Party {
 public:
  Party(std::shared_ptr<Meeting> meeting, int rank, HostDevice& device)
      : meeting_(std::move(meeting)), rank_(rank), device_(device) {}
  // Whoever leaves it last comes after every call: the thread sanitizer does not see it by the
  // streams' own bookkeeping.
  ~Party() { Follow(this); }
  Party(const Party&) = delete;
  Party& operator=(const Party&) = delete;

  absl::Status Run(const PostedCall& post);
  int rank() const { return rank_; }
  int size() const { return meeting_->size(); }
  Traffic traffic() const { return meeting_->traffic[static_cast<size_t>(rank_)].Get(); }

 private:
  void Perform(const PostedCall& post);

  // Meets the others. True: all are there, buffers_ are theirs, and this rank may use them until it
  // calls Leave. False: the run has failed, and nobody uses this rank's buffer any more.
  bool Enter(const PostedCall& post);
  void Leave();

  Buffer OwnPartOf(const Buffer& whole) const { return PartOf(whole, rank_, size()); }
  void ReduceOwnPart(const PostedCall& post);
  void SendOwnPart(const PostedCall& post);
  void TakeFromRoot(const PostedCall& post);
  void Count(int rank, const PostedCall& post, int64_t calls, int64_t bytes);

  const std::shared_ptr<Meeting> meeting_;
  const int rank_;
  HostDevice& device_;
  int64_t meetings_ = 0;         // this rank has arrived at so many
  std::vector<Buffer> buffers_;  // of all ranks, in this call
};

// One rank, as its worker sees it.
class HostGroup::Member final : public Communicator {
 public:
  Member(std::shared_ptr<Meeting> meeting, int rank, HostDevice& device)
      : party_(std::make_shared<Party>(std::move(meeting), rank, device)), device_(device) {}

  int rank() const override { return party_->rank(); }
  int size() const override { return party_->size(); }

  Traffic traffic() const override { return party_->traffic(); }

 private:
  void Call(Collective collective, Buffer buffer, int root, CallLabel label) override {
    const PostedCall post{next_number_++, collective, buffer, root, label};
    device_.Enqueue(StreamId::kCommunication, Name(collective), [party = party_, post] {
      absl::Status status = party->Run(post);
      Publish(party.get());
      return status;
    });
  }

  const std::shared_ptr<Party> party_;
  HostDevice& device_;
  int64_t next_number_ = 0;
};

HostGroup::HostGroup(int size, Abort& abort) : meeting_(std::make_shared<Meeting>(size, abort)) {}
HostGroup::~HostGroup() = default;

std::unique_ptr<Communicator> HostGroup::Join(int rank, Device& device) {
  assert(rank >= 0 && rank < meeting_->size());
  return std::make_unique<Member>(meeting_, rank, static_cast<HostDevice&>(device));
}

void HostGroup::set_call_hook(CallHook hook) { meeting_->hook = std::move(hook); }

absl::Status HostGroup::Party::Run(const PostedCall& post) {
  absl::Status status = Ask(meeting_->hook, InfoOf(rank_, post));
  if (status.ok()) Perform(post);
  return status;
}

void HostGroup::Party::Perform(const PostedCall& post) {
  if (!Enter(post)) return;
  switch (post.collective) {
    case Collective::kAllGather:
      SendOwnPart(post);
      break;
    case Collective::kReduceScatter:
      ReduceOwnPart(post);
      break;
    case Collective::kAllReduce:
      ReduceOwnPart(post);
      SendOwnPart(post);
      break;
    case Collective::kBroadcast:
      TakeFromRoot(post);
      break;
  }
  Leave();
  if (!Enter(post)) return;
  Leave();
  Count(rank_, post, 1, 0);
}

bool HostGroup::Party::Enter(const PostedCall& post) {
  device_.SetWaitingFor(StreamId::kCommunication, Describe(InfoOf(rank_, post)));
  const int64_t meeting = meetings_++;
  bool arrived = false;
  bool last = false;
  bool entered = false;
  absl::Status mismatch;
  // Arrives in the first look at the condition: only the last rank needs to wake the others.
  meeting_->point.WaitUntil([&] {
    if (!arrived) {
      arrived = true;
      meeting_->posts[static_cast<size_t>(rank_)] = post;
      last = ++meeting_->arrived == size();
      if (last) mismatch = CheckSameCall(meeting_->posts);
      if (!mismatch.ok()) return true;
      if (last) {
        meeting_->arrived = 0;
        ++meeting_->meetings;
      }
    }
    if (meeting_->meetings == meeting) return false;
    entered = !meeting_->abort.failed();
    if (entered) {
      ++meeting_->sharing;
      buffers_.clear();
      for (const PostedCall& other : meeting_->posts) buffers_.push_back(other.buffer);
    }
    return true;
  });
  if (!mismatch.ok()) {
    device_.Fail(std::move(mismatch));
  } else if (last) {
    meeting_->point.Notify([] {});
  }
  if (entered) {
    device_.SetWaitingFor(StreamId::kCommunication, "");
    return true;
  }
  // The worker may give its memory back when this call ends, so it waits for those who are still
  // using it. They do not wait for anything, and nobody enters after a failure.
  for (int n = meeting_->sharing.load(); n != 0; n = meeting_->sharing.load()) {
    meeting_->sharing.wait(n);
  }
  return false;
}

void HostGroup::Party::Leave() {
  if (--meeting_->sharing == 0) meeting_->sharing.notify_all();
}

void HostGroup::Party::ReduceOwnPart(const PostedCall& post) {
  std::vector<Buffer> parts;
  for (const Buffer& buffer : buffers_) parts.push_back(OwnPartOf(buffer));
  const Buffer own = parts[static_cast<size_t>(rank_)];
  SumInOrder(own, parts);
  for (int r = 0; r < size(); ++r) {
    if (r != rank_) Count(r, post, 0, own.bytes());
  }
}

void HostGroup::Party::SendOwnPart(const PostedCall& post) {
  const Buffer own = OwnPartOf(post.buffer);
  for (int64_t begin = 0; begin < own.bytes(); begin += kCopyChunk) {
    const auto bytes = static_cast<size_t>(std::min(kCopyChunk, own.bytes() - begin));
    for (int i = 1; i < size(); ++i) {
      const Buffer& to = buffers_[static_cast<size_t>((rank_ + i) % size())];
      std::memcpy(OwnPartOf(to).data + begin, own.data + begin, bytes);
    }
  }
  Count(rank_, post, 0, (size() - 1) * own.bytes());
}

void HostGroup::Party::TakeFromRoot(const PostedCall& post) {
  if (rank_ == post.root || post.buffer.empty()) return;
  const Buffer& from = buffers_[static_cast<size_t>(post.root)];
  std::memcpy(post.buffer.data, from.data, static_cast<size_t>(from.bytes()));
  Count(post.root, post, 0, from.bytes());
}

void HostGroup::Party::Count(int rank, const PostedCall& post, int64_t calls, int64_t bytes) {
  meeting_->traffic[static_cast<size_t>(rank)].Add(post, calls, bytes);
}

}  // namespace zerobox
