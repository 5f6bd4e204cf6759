// SPDX-License-Identifier: Apache-2.0
#include "zero/offloaded_states.h"

#include <algorithm>

#include "ops/ops.h"

namespace zerobox {

OffloadedStates::OffloadedStates(Device& device, const Layout& layout, OwnedShards owned,
                                 StateTypes types, const OptimizerSettings& settings)
    : OptimizerStates(device, layout, owned, types, settings),
      squares_summed_(device.MakeEvent("squares summed")),
      squares_up_(device.MakeEvent("squares up")),
      step_prepared_(device.MakeEvent("step prepared")),
      bucket_updated_(device.MakeEvent("bucket updated")),
      parameters_up_(device.MakeEvent("parameters up")) {
  for (Staging& staging : staging_) staging.free = device.MakeEvent("staging free");
  for (size_t bucket = 0; bucket < layout.buckets().size(); ++bucket) {
    landed_.push_back(device.MakeEvent("gradient landed"));
  }
}

void OffloadedStates::Allocate() {
  const int64_t owned = layout_.OwnedElements(owned_);
  const auto states = [&](const char* label) {
    const Buffer buffer =
        device_.AllocateOnHost(Category::kOptimizerStates, DType::kFloat32, owned, label);
    ops().Fill(buffer, 0);
    return buffer;
  };
  master_ = states("master weights");
  m_ = states("AdamW m");
  v_ = states("AdamW v");
  KeepGradientsIn(
      device_.AllocateOnHost(Category::kGradients, types_.gradients, owned, "gradient shard"));
  if (types_.mixed()) {
    for (Staging& staging : staging_) {
      staging.parameters = AllocateBuffer(types_.parameters, "parameters on their way up");
    }
  }
  host_sums_ = device_.AllocateOnHost(Category::kWorkspace, DType::kFloat64, layout_.shards(),
                                      "squares of the gradient, by owner");
  host_state_ = device_.AllocateOnHost(Category::kWorkspace, DType::kInt64,
                                       sizeof(StepState) / SizeOf(DType::kInt64), "step state");
}

void OffloadedStates::AllocateGradients() {
  landing_ = AllocateBuffer(types_.gradients, "gradient that is to be added");
}

Buffer OffloadedStates::AllocateBuffer(DType dtype, const char* label) {
  int64_t largest = 0;
  for (const Bucket& bucket : layout_.buckets()) {
    largest = std::max(largest, OwnedRange(bucket).size());
  }
  return device_.AllocateOnHost(Category::kCommunicationBuffers, dtype, largest, label);
}

void OffloadedStates::Keep(const Bucket& bucket, const ReducedGradient& gradient) {
  device_.Wait(StreamId::kToHost, gradient.reduced);
  device_.CopyToHost(StreamId::kToHost, gradients_[bucket.id].buffer.data, gradient.part);
  device_.Zero(StreamId::kToHost, gradient.part);  // AdamW, which does so, only sees the copy
}

void OffloadedStates::Offer(const Bucket& bucket, const ReducedGradient& gradient) {
  const Buffer shard = gradients_[bucket.id].buffer;
  device_.Wait(StreamId::kToHost, gradient.reduced);
  if (gradient.add) {
    const Buffer landed = landing_.Slice(0, gradient.part.elements);
    device_.CopyToHost(StreamId::kToHost, landed.data, gradient.part);
    ops().Add(shard, landed);
  } else {
    device_.CopyToHost(StreamId::kToHost, shard.data, gradient.part);
  }
  device_.Record(*landed_[bucket.id], StreamId::kToHost);
}

void OffloadedStates::Take(const Bucket& bucket, const ReducedGradient&) {
  device_.Wait(StreamId::kCompute, *landed_[bucket.id]);
}

void OffloadedStates::SumSquares(Buffer sums) {
  ops().Fill(host_sums_, 0);
  AddSquares(ops(), host_sums_);
  device_.Record(*squares_summed_, StreamId::kToHost);
  device_.Wait(StreamId::kFromHost, *squares_summed_);
  device_.CopyFromHost(StreamId::kFromHost, sums, host_sums_.data);
  device_.Record(*squares_up_, StreamId::kFromHost);
  device_.Wait(StreamId::kCompute, *squares_up_);
}

void OffloadedStates::Prepare(Buffer sums) {
  device_.ops().PrepareStep(state_, sums, settings_);
  device_.Record(*step_prepared_, StreamId::kCompute);
  device_.Wait(StreamId::kToHost, *step_prepared_);
  device_.CopyToHost(StreamId::kToHost, host_state_.data, state_);
}

void OffloadedStates::Update(const Bucket& bucket, const Held& parameters) {
  const Held master = Master(bucket);
  if (!types_.mixed()) {
    UpdateOwned(ops(), bucket, master, /*master=*/{}, host_state_);
    SendUp(master, parameters);
    return;
  }
  Staging& staging = staging_[next_];
  next_ = 1 - next_;
  const Held rounded{master.range, staging.parameters.Slice(0, master.range.size())};
  device_.Wait(StreamId::kToHost, *staging.free);
  UpdateOwned(ops(), bucket, rounded, master, host_state_);
  const Range padding{std::max(master.range.begin, bucket.range.begin + bucket.elements),
                      master.range.end};
  if (padding.size() > 0) ops().Fill(rounded.Slice(padding), 0);
  SendUp(rounded, parameters);
  device_.Record(*staging.free, StreamId::kFromHost);
}

void OffloadedStates::SendUp(const Held& from, const Held& to) {
  device_.Record(*bucket_updated_, StreamId::kToHost);
  device_.Wait(StreamId::kFromHost, *bucket_updated_);
  device_.CopyFromHost(StreamId::kFromHost, to.Slice(from.range), from.buffer.data);
}

void OffloadedStates::Finish() {
  device_.Record(*parameters_up_, StreamId::kFromHost);
  device_.Wait(StreamId::kCompute, *parameters_up_);
}

Ops& OffloadedStates::ops() { return device_.host_ops(); }

}  // namespace zerobox
