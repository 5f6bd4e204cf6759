// SPDX-License-Identifier: Apache-2.0
//
// A call on rank r, in its worker's thread:
//   1. It records its event "call ready" on its communication stream: when that has happened its
//      buffer is there. It posts both and arrives.
//   2. The last to arrive checks that all make the same call, lets its communication stream wait
//      for the others' "call ready", puts all copies and sums of the call there, for all ranks, and
//      records its event "call done" behind them. Then it wakes the others.
//   3. They let their communication streams wait for "call done".
// So each thread uses streams of its own device alone, and sleeps only until the last has arrived.
//
// A rank records an event again while streams may not yet have come to the wait for its record of
// before. That is safe: a wait is for what was recorded when it was enqueued. "Call ready" of the
// next call is recorded when this rank has been woken, hence after the last to arrive has enqueued
// its waits; "call done" when all ranks have arrived at a later call, hence after each has enqueued
// its wait for this one.
//
// What is enqueued waits for nothing but what has been enqueued too. No stream waits on the GPU for
// a rank that does not come, so what a rank waits for is known without asking the GPU.
#include "ops/cuda/virtual_group.h"

#include <cassert>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "ops/collectives/posted_call.h"
#include "ops/cuda/cuda_device.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/status.h"

namespace zerobox::cuda {
namespace {

constexpr StreamId kCommunication = StreamId::kCommunication;

// ---- what a call does, on one stream ----

absl::Status CopyTo(cudaStream_t stream, const Buffer& to, const Buffer& from) {
  if (from.empty()) return absl::OkStatus();
  return ToStatus(cudaMemcpyAsync(to.data, from.data, static_cast<size_t>(from.bytes()),
                                  cudaMemcpyDeviceToDevice, stream),
                  "cudaMemcpyAsync");
}

template <typename T>
absl::Status SumAs(cudaStream_t stream, const std::vector<Buffer>& to,
                   const std::vector<Buffer>& from) {
  std::vector<T*> results;
  std::vector<const T*> operands;
  results.reserve(to.size());
  operands.reserve(from.size());
  for (const Buffer& buffer : to) results.push_back(reinterpret_cast<T*>(buffer.data));
  for (const Buffer& buffer : from) operands.push_back(reinterpret_cast<const T*>(buffer.data));
  return ToStatus(SumRanks<T>(stream, results, operands, from[0].elements), "cudaLaunchKernelExC");
}

absl::Status Sum(cudaStream_t stream, const std::vector<Buffer>& to,
                 const std::vector<Buffer>& from) {
  switch (from[0].dtype) {
    case DType::kFloat32:
      return SumAs<float>(stream, to, from);
    case DType::kBFloat16:
      return SumAs<BFloat16>(stream, to, from);
    case DType::kFloat64:
      return SumAs<double>(stream, to, from);
    case DType::kInt32:
      return SumAs<uint32_t>(stream, to, from);
    case DType::kInt64:
      return SumAs<uint64_t>(stream, to, from);
  }
  return absl::OkStatus();
}

// Part `rank` of each.
std::vector<Buffer> PartsOf(const std::vector<Buffer>& buffers, int rank) {
  std::vector<Buffer> parts;
  parts.reserve(buffers.size());
  for (const Buffer& buffer : buffers) {
    parts.push_back(PartOf(buffer, rank, static_cast<int>(buffers.size())));
  }
  return parts;
}

absl::Status GatherAll(cudaStream_t stream, const std::vector<Buffer>& buffers) {
  const int size = static_cast<int>(buffers.size());
  for (int r = 0; r < size; ++r) {
    const std::vector<Buffer> parts = PartsOf(buffers, r);
    for (int i = 1; i < size; ++i) {
      const Buffer& to = parts[static_cast<size_t>((r + i) % size)];
      absl::Status status = CopyTo(stream, to, parts[static_cast<size_t>(r)]);
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

absl::Status ReduceScatterAll(cudaStream_t stream, const std::vector<Buffer>& buffers) {
  for (size_t r = 0; r < buffers.size(); ++r) {
    const std::vector<Buffer> parts = PartsOf(buffers, static_cast<int>(r));
    absl::Status status = Sum(stream, {parts[r]}, parts);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status BroadcastAll(cudaStream_t stream, const std::vector<Buffer>& buffers, int root) {
  for (size_t r = 0; r < buffers.size(); ++r) {
    if (static_cast<int>(r) == root) continue;
    absl::Status status = CopyTo(stream, buffers[r], buffers[static_cast<size_t>(root)]);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Perform(cudaStream_t stream, const std::vector<PostedCall>& calls) {
  std::vector<Buffer> buffers;
  buffers.reserve(calls.size());
  for (const PostedCall& call : calls) buffers.push_back(call.buffer);
  switch (calls[0].collective) {
    case Collective::kAllGather:
      return GatherAll(stream, buffers);
    case Collective::kReduceScatter:
      return ReduceScatterAll(stream, buffers);
    case Collective::kAllReduce:
      return Sum(stream, buffers, buffers);
    case Collective::kBroadcast:
      return BroadcastAll(stream, buffers, calls[0].root);
  }
  return absl::OkStatus();
}

// ---- where the ranks meet ----

class VirtualGroup final : public Group {
 public:
  VirtualGroup(int size, CallHook hook, Abort& abort)
      : abort_(abort),
        hook_(std::move(hook)),
        point_(abort),
        posts_(static_cast<size_t>(size)),
        events_(static_cast<size_t>(size)) {
    assert(size >= 1 && size <= kMostSummedRanks);
  }
  std::unique_ptr<Communicator> Join(int rank, Device& device) override;

  // One call of one rank. Nothing is left to do where it fails.
  void Call(CudaDevice& device, int rank, const PostedCall& call);

  int size() const { return static_cast<int>(posts_.size()); }

 private:
  // They outlive the rank, for whose latest call others may still have to enqueue a wait.
  struct Events {
    std::unique_ptr<Event> ready, done;
  };
  enum class Place : uint8_t { kNone, kLast, kAnother };

  // The last rank's is kLast, at once; that of the others kAnother, when the last has enqueued the
  // call. kNone: the run has failed.
  Place Arrive(size_t rank, const PostedCall& call);
  void EnqueueForAll(CudaDevice& device, size_t rank);

  Abort& abort_;
  const CallHook hook_;
  WaitPoint point_;
  // Each rank's own until it arrives, then the last's until it wakes the others.
  std::vector<PostedCall> posts_;
  std::vector<Events> events_;
  int arrived_ = 0;       // guarded by point_
  int64_t enqueued_ = 0;  // calls; guarded by point_
  size_t last_ = 0;       // the rank that enqueued the latest; guarded by point_
};

class VirtualRank final : public Communicator {
 public:
  VirtualRank(VirtualGroup& group, int rank, CudaDevice& device)
      : group_(group), rank_(rank), device_(device) {}
  int rank() const override { return rank_; }
  int size() const override { return group_.size(); }

  Traffic traffic() const override { return traffic_; }

 private:
  void Call(Collective collective, Buffer buffer, int root, CallLabel label) override {
    Count(traffic_, collective, label, BytesSent(collective, buffer, rank_, size(), root));
    group_.Call(device_, rank_, {next_number_++, collective, buffer, root, label});
  }

  VirtualGroup& group_;
  const int rank_;
  CudaDevice& device_;
  int64_t next_number_ = 0;
  Traffic traffic_;
};

std::unique_ptr<Communicator> VirtualGroup::Join(int rank, Device& device) {
  assert(rank >= 0 && rank < size());
  if (size() > 1) {
    Events& events = events_[static_cast<size_t>(rank)];
    events.ready = device.MakeEvent("call ready");
    events.done = device.MakeEvent("call done");
  }
  return std::make_unique<VirtualRank>(*this, rank, static_cast<CudaDevice&>(device));
}

void VirtualGroup::Call(CudaDevice& device, int rank, const PostedCall& call) {
  if (abort_.failed()) return;
  const CallInfo info = InfoOf(rank, call);
  if (absl::Status status = Ask(hook_, info); !status.ok()) return device.Fail(std::move(status));
  const auto own = static_cast<size_t>(rank);
  device.Record(*events_[own].ready, kCommunication);
  device.SetWaitingFor(kCommunication, Describe(info));
  const Place place = Arrive(own, call);
  if (place == Place::kNone) return;
  if (place == Place::kLast) {
    EnqueueForAll(device, own);
  } else {
    device.Wait(kCommunication, *events_[last_].done);
  }
  device.SetWaitingFor(kCommunication, "");
}

VirtualGroup::Place VirtualGroup::Arrive(size_t rank, const PostedCall& call) {
  bool has_arrived = false;
  bool is_last = false;
  int64_t number = 0;
  // Arrives in the first look at the condition: only the last wakes the others.
  const bool met = point_.WaitUntil([&] {
    if (abort_.failed()) return false;  // its own record may be missing
    if (!has_arrived) {
      has_arrived = true;
      posts_[rank] = call;
      number = enqueued_;
      is_last = ++arrived_ == size();
    }
    return is_last || enqueued_ > number;
  });
  if (!met) return Place::kNone;
  return is_last ? Place::kLast : Place::kAnother;
}

// Without the lock, since failing takes it. The others sleep, so all that is here is this rank's.
void VirtualGroup::EnqueueForAll(CudaDevice& device, size_t rank) {
  if (absl::Status status = CheckSameCall(posts_); !status.ok()) {
    return device.Fail(std::move(status));
  }
  for (size_t r = 0; r < events_.size(); ++r) {
    if (r != rank) device.Wait(kCommunication, *events_[r].ready);
  }
  device.Enqueue(kCommunication, Name(posts_[rank].collective),
                 [this](cudaStream_t stream) { return Perform(stream, posts_); });
  device.Record(*events_[rank].done, kCommunication);
  if (abort_.failed()) return;
  point_.Notify([&] {
    arrived_ = 0;
    ++enqueued_;
    last_ = rank;
  });
}

}  // namespace

std::unique_ptr<Group> MakeVirtualGroup(int size, CallHook hook, Abort& abort) {
  return std::make_unique<VirtualGroup>(size, std::move(hook), abort);
}

}  // namespace zerobox::cuda
