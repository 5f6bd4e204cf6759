// SPDX-License-Identifier: Apache-2.0
//
// BatchFeed: brings batches from host memory to the device, one micro-batch ahead of the compute.
#ifndef ZEROBOX_TRAINER_BATCH_FEED_H_
#define ZEROBOX_TRAINER_BATCH_FEED_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ops/device/device.h"
#include "trainer/gpt.h"

namespace zerobox {

// Sequences (rows) of one micro-batch, in host memory.
struct HostBatch {
  int64_t positions = 0;
  std::vector<int32_t> inputs, targets;  // (B, T)
  std::vector<int64_t> samples;          // (B)
  std::span<int32_t> Inputs(int64_t row) { return Row(inputs, row); }
  std::span<int32_t> Targets(int64_t row) { return Row(targets, row); }

 private:
  std::span<int32_t> Row(std::vector<int32_t>& v, int64_t row) const {
    return std::span(v).subspan(row * positions, positions);
  }
};

// Two slots: one is filled and copied while the other is read.
class BatchFeed {
 public:
  BatchFeed(Device& device, int64_t sequences, int64_t positions);
  // The next slot's host side, free to be filled; null once the device or the run has failed, as a
  // copy may then still be reading it.
  HostBatch* Next();
  // Copies it on from_host; compute may read the returned batch, whose shape may be smaller than
  // the slot, until Done.
  Batch Upload(int64_t sequences, int64_t positions);
  // The compute enqueued so far is all that reads the latest batch.
  void Done();

 private:
  struct Slot {
    HostBatch host;
    Buffer inputs, targets, samples;
    std::unique_ptr<Event>
        uploaded;  // from_host -> compute: the batch is there; -> host: it is read
    std::unique_ptr<Event> consumed;  // compute -> from_host: the slot may be overwritten
  };
  Device& device_;
  int64_t sequences_;
  int64_t positions_;
  int current_ = 0;
  std::array<Slot, 2> slots_;
};

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_BATCH_FEED_H_
