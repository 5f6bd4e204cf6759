// SPDX-License-Identifier: Apache-2.0
//
// OffloadedStates: the optimizer on the host side (ZeRO-Offload, arXiv:2101.06840, section 4.1).
//
// The difference to OptimizerStates: gradient shard, m, v and master weights (in fp32 training too)
// are in host memory. A bucket's owned gradient goes down as soon as it is reduced, while backward
// goes on; AdamW runs on the host's threads, bucket by bucket, and a bucket's parameters go up
// while the next one is updated. All host-side work is on to_host, behind the copies that bring it
// its operands.
//
//   to_host   | grad 2 | grad 1 | grad 0 | squares |      | AdamW 0 | AdamW 1 | AdamW 2 |
//   from_host |                                    | sums |         | param 0 | param 1 | param 2 |
#ifndef ZEROBOX_ZERO_OFFLOADED_STATES_H_
#define ZEROBOX_ZERO_OFFLOADED_STATES_H_

#include <array>
#include <memory>
#include <vector>

#include "zero/optimizer_states.h"

namespace zerobox {

class OffloadedStates final : public OptimizerStates {
 public:
  OffloadedStates(Device& device, const Layout& layout, OwnedShards owned, StateTypes types,
                  const OptimizerSettings& settings);
  void Allocate() override;
  void AllocateGradients() override;  // Allocate has the shard; this takes landing_

  void Keep(const Bucket& bucket, const ReducedGradient& gradient) override;
  void Offer(const Bucket& bucket, const ReducedGradient& gradient) override;
  void Take(const Bucket& bucket, const ReducedGradient& gradient) override;

  void SumSquares(Buffer sums) override;
  void Prepare(Buffer sums) override;
  void Update(const Bucket& bucket, const Held& parameters) override;
  void Finish() override;
  Ops& ops() override;

 private:
  // Room for the largest owned part of a bucket.
  Buffer AllocateBuffer(DType dtype, const char* label);
  // Copies a bucket's updated parameters to the device.
  void SendUp(const Held& from, const Held& to);

  Buffer landing_;  // where a gradient lands that is then added to the shard
  // bf16 parameters on their way up: one is written while the other is copied.
  struct Staging {
    Buffer parameters;
    std::unique_ptr<Event> free;  // from_host -> to_host
  };
  std::array<Staging, 2> staging_;
  int next_ = 0;
  Buffer host_sums_, host_state_;
  std::vector<std::unique_ptr<Event>>
      landed_;                             // to_host -> compute: the gradient may be overwritten
  std::unique_ptr<Event> squares_summed_;  // to_host -> from_host
  std::unique_ptr<Event> squares_up_;      // from_host -> compute
  // compute -> to_host: the step state is final, and nothing reads the old parameters any more.
  std::unique_ptr<Event> step_prepared_;
  std::unique_ptr<Event> bucket_updated_;  // to_host -> from_host
  std::unique_ptr<Event> parameters_up_;   // from_host -> compute
};

}  // namespace zerobox

#endif  // ZEROBOX_ZERO_OFFLOADED_STATES_H_
