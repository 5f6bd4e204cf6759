// SPDX-License-Identifier: Apache-2.0
//
// Communicator: collectives over one group of ranks. One object per worker and group.
//
// Calls are enqueued on the communication stream of the worker's device, in the same order on every
// rank of the group. With one rank every call does nothing. Sums are taken in rank order with fp32
// accumulation (fp64 for fp64), whatever the timing; but NCCL's, see ops/cuda/nccl_group.h.
#ifndef ZEROBOX_OPS_COLLECTIVES_COMMUNICATOR_H_
#define ZEROBOX_OPS_COLLECTIVES_COMMUNICATOR_H_

#include <array>
#include <cassert>
#include <cstdint>
#include <string_view>

#include "ops/device/buffer.h"

namespace zerobox {

enum class Collective : uint8_t { kAllGather, kReduceScatter, kAllReduce, kBroadcast };
inline constexpr int kCollectives = 4;
std::string_view Name(Collective collective);

// What a call is for: it names the call in messages and decides where it is counted.
enum class Purpose : uint8_t { kParameters, kGradients, kScalars };
std::string_view Name(Purpose purpose);
struct CallLabel {
  Purpose purpose;
  int unit = -1;  // -1: none
};

// Calls, and bytes that this rank sent to others: for a buffer of S bytes on N ranks (N-1)/N S in
// an all-gather or a reduce-scatter, twice that in an all-reduce; in a broadcast S from the root
// only, to each of the others.
struct CollectiveCount {
  int64_t calls = 0;
  int64_t bytes_sent = 0;
  friend bool operator==(const CollectiveCount&, const CollectiveCount&) = default;
};
struct Traffic {
  std::array<CollectiveCount, kCollectives> collectives{};  // without scalars
  CollectiveCount scalars;                                  // Purpose::kScalars, of every kind
  friend bool operator==(const Traffic&, const Traffic&) = default;
};
Traffic operator-(const Traffic& a, const Traffic& b);

// What `rank` of `size` sends in a call. Where ranks' parts are not equally long, part r is
// elements [r S / N, (r + 1) S / N), rounded down.
int64_t BytesSent(Collective collective, const Buffer& buffer, int rank, int size, int root = 0);
// Adds a call of one rank.
void Count(Traffic& traffic, Collective collective, CallLabel label, int64_t bytes_sent);

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;  // in this group; neither the world rank nor a device index
  virtual int size() const = 0;

  // Element-wise sum over the ranks of the group; every rank ends with the whole sum.
  void AllReduceSum(Buffer whole, CallLabel label) {
    MakeCall(Collective::kAllReduce, whole, 0, label);
  }
  // In place: this rank's 1/size of `whole` ends as the sum; the rest stays as it was. `elements`
  // is a multiple of size.
  void ReduceScatterSum(Buffer whole, CallLabel label) {
    assert(whole.elements % size() == 0);
    MakeCall(Collective::kReduceScatter, whole, 0, label);
  }
  // In place: this rank's 1/size of `whole` is its contribution.
  void AllGather(Buffer whole, CallLabel label) {
    assert(whole.elements % size() == 0);
    MakeCall(Collective::kAllGather, whole, 0, label);
  }
  void Broadcast(Buffer buffer, int root, CallLabel label) {
    assert(root >= 0 && root < size());
    MakeCall(Collective::kBroadcast, buffer, root, label);
  }
  // One of these, for whoever passes calls on. `root` is that of a broadcast.
  void MakeCall(Collective collective, Buffer buffer, int root, CallLabel label) {
    if (size() > 1) Call(collective, buffer, root, label);
  }

  // On host devices counted where bytes are copied, on GPUs what each call comes to. Exact once the
  // calls of every rank that it asks about are known to be done (by an event recorded behind them
  // and waited for).
  virtual Traffic traffic() const = 0;

  // When the worker has enqueued its last call, before Device::StopStreams. In a failed run, gives
  // up the calls that may never end.
  virtual void Stop() {}

 protected:
  // Of several ranks. `root` is that of a broadcast.
  virtual void Call(Collective collective, Buffer buffer, int root, CallLabel label) = 0;
};

}  // namespace zerobox

#endif  // ZEROBOX_OPS_COLLECTIVES_COMMUNICATOR_H_
