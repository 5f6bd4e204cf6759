// SPDX-License-Identifier: Apache-2.0
//
// PlanDevice: a device that does nothing and counts everything. Walking the real step program
// against it gives the memory plan and the predicted traffic, which therefore cannot drift from the
// run. Nothing is allocated, whatever the model's size.
#ifndef ZEROBOX_OPS_DEVICE_PLAN_DEVICE_H_
#define ZEROBOX_OPS_DEVICE_PLAN_DEVICE_H_

#include <memory>

#include "ops/device/device.h"

namespace zerobox {

class PlanDevice final : public Device {
 public:
  PlanDevice();
  ~PlanDevice() override;
  std::unique_ptr<Event> MakeEvent(std::string_view name) override;
  void Record(Event&, StreamId) override {}
  void Wait(StreamId, const Event&) override {}
  absl::Status HostWait(const Event&) override { return status_; }
  void Copy(StreamId, Buffer, Buffer) override {}
  void Zero(StreamId, Buffer) override {}
  void CopyToHost(StreamId, void*, Buffer from) override { copied_.to_host += from.bytes(); }
  void CopyFromHost(StreamId, Buffer to, const void*) override { copied_.from_host += to.bytes(); }
  CopiedBytes copied() const override { return copied_; }
  Ops& ops() override { return *ops_; }
  MemoryPool& memory() override { return memory_; }
  Ops& host_ops() override { return *ops_; }
  MemoryPool& host_memory() override { return host_memory_; }
  void Fail(absl::Status error) override { status_.Update(error); }
  absl::Status status() const override { return status_; }

 private:
  MemoryPool memory_;
  MemoryPool host_memory_;
  std::unique_ptr<Ops> ops_;
  CopiedBytes copied_;
  absl::Status status_;
};

}  // namespace zerobox

#endif  // ZEROBOX_OPS_DEVICE_PLAN_DEVICE_H_
