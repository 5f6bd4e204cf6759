// SPDX-License-Identifier: Apache-2.0
#include "zero/stage1.h"

namespace zerobox {

Stage1::Stage1(Device& device, Communicator& data_parallel, const Layout& layout, StateTypes types)
    : Stage0(device, data_parallel, layout, types),
      updated_(device.MakeEvent("parameters updated")),
      stale_(layout.units()) {
  for (UnitId unit = 0; unit < layout.units(); ++unit) {
    gathered_.push_back(device.MakeEvent("unit gathered"));
  }
}

Buffer Stage1::Acquire(const Visit& visit) {
  if (!visit.needs_parameters) return {};
  Gather(visit.unit);
  const size_t next = visit.index + 1;
  if (next < program_->size() && (*program_)[next].needs_parameters) {
    Gather((*program_)[next].unit);  // one unit ahead, behind this visit's compute
  }
  device_.Wait(StreamId::kCompute, *gathered_[visit.unit]);
  return Whole(visit.unit);
}

void Stage1::Gather(UnitId unit) {
  if (!stale_[unit]) return;
  stale_[unit] = false;
  device_.Wait(StreamId::kCommunication, *updated_);
  for (const Bucket& bucket : layout_.Buckets(unit)) {
    data_parallel_.AllGather(Parameters(bucket).buffer, {Purpose::kParameters, unit});
  }
  device_.Record(*gathered_[unit], StreamId::kCommunication);
}

Buffer Stage1::Whole(UnitId unit) const {
  const Range range = layout_.Unit(unit);
  return parameters_.Slice(range.begin, range.size());
}

void Stage1::ReduceBucket(const Bucket& bucket) {
  if (!micro_batch_.last) return;
  HandToCommunication();
  const Held whole{bucket.range, WholeGradient(bucket)};
  data_parallel_.ReduceScatterSum(whole.buffer, {Purpose::kGradients, bucket.unit});
  const Range owned = layout_.Owned(bucket, Owned());
  // What is left of the others' parts is of no use; the next step adds to zeros.
  device_.Zero(StreamId::kCommunication, whole.Slice({bucket.range.begin, owned.begin}));
  device_.Zero(StreamId::kCommunication, whole.Slice({owned.end, bucket.range.end}));
  device_.Record(*reduced_, StreamId::kCommunication);
  states_->Keep(bucket, {whole.Slice(owned), *reduced_});
}

void Stage1::ParametersChanged() {
  ParametersSet();
  stale_.assign(stale_.size(), true);
}

void Stage1::ParametersSet() { device_.Record(*updated_, StreamId::kCompute); }

}  // namespace zerobox
