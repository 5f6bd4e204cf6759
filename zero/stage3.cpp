// SPDX-License-Identifier: Apache-2.0
#include "zero/stage3.h"

#include <utility>

namespace zerobox {

Stage3::Stage3(Device& device, Communicator& data_parallel, const Layout& layout, StateTypes types)
    : Stage2(device, data_parallel, layout, types),
      transient_free_(device.MakeEvent("transient memory free")),
      whole_(layout.units()) {}

void Stage3::AllocateParameters() {
  parameters_ = device_.Allocate(Region::kPersistent, Category::kParameters, types_.parameters,
                                 layout_.OwnedElements(Owned()), "parameter shard");
  device_.Zero(StreamId::kCompute, parameters_);
}

void Stage3::Gather(UnitId unit) {
  if (!whole_[unit].empty()) return;
  const Range range = layout_.Unit(unit);
  whole_[unit] = device_.Allocate(Region::kTransient, Category::kCommunicationBuffers,
                                  types_.parameters, range.size(), "gathered unit");
  device_.Wait(StreamId::kCommunication, *updated_);
  device_.Wait(StreamId::kCommunication, *transient_free_);
  for (const Bucket& bucket : layout_.Buckets(unit)) {
    const Held owned = Parameters(bucket);
    const Held whole{range, whole_[unit]};
    device_.Copy(StreamId::kCommunication, whole.Slice(owned.range), owned.buffer);
    data_parallel_.AllGather(whole.Slice(bucket.range), {Purpose::kParameters, unit});
  }
  device_.Record(*gathered_[unit], StreamId::kCommunication);
}

void Stage3::Release(const Visit& visit) {
  if (!visit.needs_parameters || visit.keeps_parameters) return;
  FreeTransient(std::exchange(whole_[visit.unit], {}));
}

void Stage3::FreeTransient(const Buffer& buffer) {
  device_.Record(*transient_free_, StreamId::kCompute);
  device_.Free(buffer);
}

Held Stage3::Parameters(const Bucket& bucket) const {
  return layout_.OwnedPart(parameters_, bucket, Owned());
}

}  // namespace zerobox
