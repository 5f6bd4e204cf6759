// SPDX-License-Identifier: Apache-2.0
#include "zero/optimizer_states.h"

#include "ops/ops.h"

namespace zerobox {

OptimizerStates::OptimizerStates(Device& device, const Layout& layout, OwnedShards owned,
                                 StateTypes types, const OptimizerSettings& settings)
    : device_(device),
      layout_(layout),
      owned_(owned),
      types_(types),
      settings_(settings),
      gradients_(layout.buckets().size()),
      state_(device.Allocate(Region::kPersistent, Category::kWorkspace, DType::kInt64,
                             sizeof(StepState) / SizeOf(DType::kInt64), "step state")) {
  device.Zero(StreamId::kCompute, state_);
}

void OptimizerStates::Allocate() {
  const auto allocate = [this](const char* label) {
    const Buffer buffer = device_.Allocate(Region::kPersistent, Category::kOptimizerStates,
                                           DType::kFloat32, layout_.OwnedElements(owned_), label);
    device_.Zero(StreamId::kCompute, buffer);
    return buffer;
  };
  if (types_.mixed()) master_ = allocate("master weights");
  m_ = allocate("AdamW m");
  v_ = allocate("AdamW v");
}

void OptimizerStates::AllocateGradients() {
  KeepGradientsIn(device_.Allocate(Region::kPersistent, Category::kGradients, types_.gradients,
                                   layout_.OwnedElements(owned_), "gradient shard"));
}

void OptimizerStates::KeepGradientsIn(Buffer shard) {
  for (const Bucket& bucket : layout_.buckets()) {
    gradients_[bucket.id] = OwnedPart(shard, bucket);
  }
}

void OptimizerStates::Keep(const Bucket& bucket, const ReducedGradient& gradient) {
  gradients_[bucket.id] = {OwnedRange(bucket), gradient.part};
}

void OptimizerStates::Take(const Bucket& bucket, const ReducedGradient& gradient) {
  const Buffer shard = gradients_[bucket.id].buffer;
  device_.Wait(StreamId::kCompute, gradient.reduced);
  if (gradient.add) {
    device_.ops().Add(shard, gradient.part);
  } else {
    device_.Copy(StreamId::kCompute, shard, gradient.part);
  }
}

void OptimizerStates::SumSquares(Buffer sums) {
  device_.Zero(StreamId::kCompute, sums);
  AddSquares(device_.ops(), sums);
}

void OptimizerStates::AddSquares(Ops& ops, Buffer sums) const {
  for (int shard = owned_.first; shard < owned_.first + owned_.count; ++shard) {
    for (const Bucket& bucket : layout_.buckets()) {
      const Range used{bucket.range.begin, bucket.range.begin + bucket.elements};
      const Range part = Intersection(layout_.Owned(bucket, {shard, 1}), used);
      if (part.size() == 0) continue;
      ops.AccumulateSquares(sums.Slice(shard, 1), gradients_[bucket.id].Slice(part));
    }
  }
}

void OptimizerStates::Prepare(Buffer sums) { device_.ops().PrepareStep(state_, sums, settings_); }

void OptimizerStates::Update(const Bucket& bucket, const Held& parameters) {
  UpdateOwned(device_.ops(), bucket, parameters, Master(bucket), state_);
}

void OptimizerStates::UpdateOwned(Ops& ops, const Bucket& bucket, const Held& parameters,
                                  const Held& master, Buffer state) const {
  const Held gradient = gradients_[bucket.id];
  const Held m = OwnedPart(m_, bucket);
  const Held v = OwnedPart(v_, bucket);
  for (int i = 0; i < bucket.parameters; ++i) {
    const ParameterId parameter = bucket.first_parameter + i;
    const Range part = Intersection(layout_.Parameter(parameter), OwnedRange(bucket));
    if (part.size() == 0) continue;
    ops.AdamW(parameters.Slice(part), master.Slice(part), gradient.Slice(part), m.Slice(part),
              v.Slice(part), layout_.spec(parameter).decay, state, settings_);
  }
}

Ops& OptimizerStates::ops() { return device_.ops(); }

Range OptimizerStates::OwnedRange(const Bucket& bucket) const {
  return layout_.Owned(bucket, owned_);
}

Held OptimizerStates::OwnedPart(const Buffer& all, const Bucket& bucket) const {
  return layout_.OwnedPart(all, bucket, owned_);
}

}  // namespace zerobox
