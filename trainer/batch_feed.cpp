// SPDX-License-Identifier: Apache-2.0
#include "trainer/batch_feed.h"

namespace zerobox {

BatchFeed::BatchFeed(Device& device, int64_t sequences, int64_t positions)
    : device_(device), sequences_(sequences), positions_(positions) {
  for (Slot& slot : slots_) {
    const auto allocate = [&](DType dtype, int64_t elements, const char* label) {
      return device.Allocate(Region::kPersistent, Category::kWorkspace, dtype, elements, label);
    };
    slot.inputs = allocate(DType::kInt32, sequences * positions, "batch inputs");
    slot.targets = allocate(DType::kInt32, sequences * positions, "batch targets");
    slot.samples = allocate(DType::kInt64, sequences, "batch sample numbers");
    slot.uploaded = device.MakeEvent("batch uploaded");
    slot.consumed = device.MakeEvent("batch consumed");
  }
}

HostBatch* BatchFeed::Next() {
  Slot& slot = slots_[1 - current_];
  // An error here is returned where the step's result is waited for, too.
  if (!device_.HostWait(*slot.uploaded).ok()) return nullptr;
  if (slot.host.inputs.empty()) {
    slot.host.positions = positions_;
    slot.host.inputs.resize(sequences_ * positions_);
    slot.host.targets.resize(sequences_ * positions_);
    slot.host.samples.resize(sequences_);
  }
  return &slot.host;
}

Batch BatchFeed::Upload(int64_t sequences, int64_t positions) {
  current_ = 1 - current_;
  Slot& slot = slots_[current_];
  device_.Wait(StreamId::kFromHost, *slot.consumed);
  const Batch batch{.inputs = slot.inputs.Slice(0, sequences * positions),
                    .targets = slot.targets.Slice(0, sequences * positions),
                    .samples = slot.samples.Slice(0, sequences),
                    .sequences = sequences,
                    .positions = positions};
  device_.CopyFromHost(StreamId::kFromHost, batch.inputs, slot.host.inputs.data());
  device_.CopyFromHost(StreamId::kFromHost, batch.targets, slot.host.targets.data());
  device_.CopyFromHost(StreamId::kFromHost, batch.samples, slot.host.samples.data());
  device_.Record(*slot.uploaded, StreamId::kFromHost);
  device_.Wait(StreamId::kCompute, *slot.uploaded);
  return batch;
}

void BatchFeed::Done() { device_.Record(*slots_[current_].consumed, StreamId::kCompute); }

}  // namespace zerobox
