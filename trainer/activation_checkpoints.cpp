// SPDX-License-Identifier: Apache-2.0
#include "trainer/activation_checkpoints.h"

#include <algorithm>
#include <utility>

namespace zerobox {

int64_t ElementsOf(BlockTensor tensor, const ModelConfig& model, int64_t tokens) {
  const BlockTensorSpec& spec = kBlockTensorSpecs[tensor];
  return tokens * (spec.channels * model.n_embd + spec.heads * model.n_head + spec.ones);
}

bool InCheckpoint(ActivationCheckpointing mode, BlockTensor tensor) {
  switch (mode) {
    case ActivationCheckpointing::kNone:
      return false;
    case ActivationCheckpointing::kSelective:
      return kBlockTensorSpecs[tensor].selective;
    case ActivationCheckpointing::kFull:
      return kBlockTensorSpecs[tensor].full;
  }
  return false;
}

ActivationCheckpoints::ActivationCheckpoints(Device& device, const TrainSettings& settings)
    : device_(device),
      model_(settings.model),
      dtype_(settings.dtype),
      mode_(settings.activation_checkpointing),
      written_(device.MakeEvent("checkpoint written")),
      slot_free_(device.MakeEvent("checkpoint slot free")) {
  if (mode_ == ActivationCheckpointing::kNone) return;
  const auto blocks = static_cast<size_t>(model_.n_layer);
  slots_.resize(settings.offload_activations ? std::min<size_t>(kOffloadSlots, blocks) : blocks);
  for (Slot& slot : slots_) {
    slot.left = device.MakeEvent("checkpoint left");
    slot.is_back = device.MakeEvent("checkpoint back");
  }
  const int64_t tokens = settings.micro_batch * model_.seq_len;
  for (size_t block = 0; block + slots_.size() < blocks; ++block) {
    const auto allocate = [&](DType dtype, bool statistics) {
      return device.AllocateOnHost(Category::kActivationCheckpoints, dtype,
                                   Elements(tokens, statistics), "offloaded checkpoint");
    };
    on_host_.push_back({allocate(dtype_, false), allocate(DType::kFloat32, true)});
  }
}

int64_t ActivationCheckpoints::Elements(int64_t tokens, bool statistics) const {
  int64_t elements = 0;
  for (int i = 0; i < kBlockTensors; ++i) {
    const auto tensor = static_cast<BlockTensor>(i);
    if (InCheckpoint(mode_, tensor) && IsStatistic(tensor) == statistics) {
      elements += ElementsOf(tensor, model_, tokens);
    }
  }
  return elements;
}

void ActivationCheckpoints::Open(int block, int64_t tokens, BlockTensors& tensors) {
  Checkpoint& checkpoint = SlotOf(block).checkpoint;
  if (block < std::ssize(slots_)) {
    const auto allocate = [&](DType dtype, bool statistics) {
      return device_.Allocate(Region::kCheckpoints, Category::kActivationCheckpoints, dtype,
                              Elements(tokens, statistics), "checkpoint");
    };
    checkpoint.values = allocate(dtype_, false);
    checkpoint.statistics = allocate(DType::kFloat32, true);
  }
  int64_t values = 0;
  int64_t statistics = 0;
  for (int i = 0; i < kBlockTensors; ++i) {
    const auto tensor = static_cast<BlockTensor>(i);
    if (!InCheckpoint(mode_, tensor)) continue;
    const Buffer& all = IsStatistic(tensor) ? checkpoint.statistics : checkpoint.values;
    int64_t& taken = IsStatistic(tensor) ? statistics : values;
    tensors[i] = all.Slice(taken, ElementsOf(tensor, model_, tokens));
    taken += tensors[i].elements;
  }
}

void ActivationCheckpoints::AwaitSlot(int block) {
  // Only then was a checkpoint there before, in this micro-batch.
  if (block >= std::ssize(slots_)) device_.Wait(StreamId::kCompute, *SlotOf(block).left);
}

void ActivationCheckpoints::Written(int block) {
  if (!Leaves(block)) return;
  const Slot& slot = SlotOf(block);
  device_.Record(*written_, StreamId::kCompute);
  device_.Wait(StreamId::kToHost, *written_);
  const auto copy = [this](const Buffer& to, const Buffer& from) {
    if (!from.empty()) device_.CopyToHost(StreamId::kToHost, to.data, from);
  };
  copy(on_host_[block].values, slot.checkpoint.values);
  copy(on_host_[block].statistics, slot.checkpoint.statistics);
  device_.Record(*slot.left, StreamId::kToHost);
}

void ActivationCheckpoints::Fetch(int block) {
  if (!Leaves(block)) return;
  const Slot& slot = SlotOf(block);
  device_.Wait(StreamId::kFromHost, *slot_free_);
  const auto copy = [this](const Buffer& to, const Buffer& from) {
    if (!to.empty()) device_.CopyFromHost(StreamId::kFromHost, to, from.data);
  };
  copy(slot.checkpoint.values, on_host_[block].values);
  copy(slot.checkpoint.statistics, on_host_[block].statistics);
  device_.Record(*slot.is_back, StreamId::kFromHost);
}

void ActivationCheckpoints::Await(int block) {
  if (Leaves(block)) device_.Wait(StreamId::kCompute, *SlotOf(block).is_back);
}

void ActivationCheckpoints::Release(int block) {
  if (block < std::ssize(slots_)) {  // no other block comes back to the slot
    const Checkpoint checkpoint = std::exchange(SlotOf(block).checkpoint, {});
    device_.Free(checkpoint.statistics);
    device_.Free(checkpoint.values);
  } else {
    device_.Record(*slot_free_, StreamId::kCompute);
  }
}

}  // namespace zerobox
