// SPDX-License-Identifier: Apache-2.0
#include "zero/stage0.h"

#include "ops/ops.h"

namespace zerobox {

Stage0::Stage0(Device& device, Communicator& data_parallel, const Layout& layout)
    : device_(device),
      data_parallel_(data_parallel),
      layout_(layout),
      in_use_(layout.buckets().size()),
      remaining_(layout.buckets().size()),
      bucket_full_(device.MakeEvent("bucket full")),
      squares_ready_(device.MakeEvent("squares ready")),
      reduced_(device.MakeEvent("gradients reduced")),
      squares_known_(device.MakeEvent("squares known")) {
  sums_ = device.Allocate(Region::kPersistent, Category::kWorkspace, DType::kFloat64,
                          layout.shards(), "squares of the gradient, by owner");
}

void Stage0::AllocateParameters() {
  parameters_ = device_.Allocate(Region::kPersistent, Category::kParameters, DType::kFloat32,
                                 layout_.padded(), "parameters");
}

void Stage0::AllocateGradients() {
  gradients_ = device_.Allocate(Region::kPersistent, Category::kGradients, DType::kFloat32,
                                layout_.padded(), "gradients");
}

void Stage0::Begin(const StepProgram& program, MicroBatch micro_batch) {
  program_ = &program;
  micro_batch_ = micro_batch;
  for (size_t bucket = 0; bucket < remaining_.size(); ++bucket) {
    in_use_[bucket] = false;
    remaining_[bucket] = layout_.buckets()[bucket].parameters;
  }
  remaining_buckets_ = static_cast<int>(remaining_.size());
}

Buffer Stage0::Acquire(const Visit& visit) {
  const Range unit = layout_.Unit(visit.unit);
  return parameters_.Slice(unit.begin, unit.size());
}

Buffer Stage0::Gradient(ParameterId parameter) {
  const BucketId bucket = layout_.BucketOf(parameter);
  const Held gradient = Gradients(layout_.bucket(bucket));
  if (FirstUse(bucket) && micro_batch_.first) device_.Zero(StreamId::kCompute, gradient.buffer);
  return gradient.Slice(layout_.Parameter(parameter));
}

bool Stage0::FirstUse(BucketId bucket) {
  const bool first = !in_use_[bucket];
  in_use_[bucket] = true;
  return first;
}

void Stage0::Reduce(ParameterId parameter) {
  const BucketId bucket = layout_.BucketOf(parameter);
  if (--remaining_[bucket] > 0) return;
  ReduceBucket(bucket);
  if (--remaining_buckets_ == 0) JoinReductions();
}

void Stage0::ReduceBucket(BucketId bucket) {
  if (!micro_batch_.last) return;
  const Bucket& b = layout_.bucket(bucket);
  HandToCommunication();
  data_parallel_.AllReduceSum(Gradients(b).buffer, {Purpose::kGradients, b.unit});
}

void Stage0::JoinReductions() {
  device_.Record(*reduced_, StreamId::kCommunication);
  device_.Wait(StreamId::kCompute, *reduced_);
}

void Stage0::HandToCommunication() {
  device_.Record(*bucket_full_, StreamId::kCompute);
  device_.Wait(StreamId::kCommunication, *bucket_full_);
}

void Stage0::Step(OptimizerStates& states) {
  SumSquares();
  states.Prepare(sums_);
  for (const Bucket& bucket : layout_.buckets()) UpdateBucket(bucket, states);
  for (UnitId unit = 0; unit < layout_.units(); ++unit) ParametersChanged(unit);
}

// The squared gradient norm as one partial sum for each owner, in bucket order, padding left out;
// whoever computes an owner's sum computes the same bits. Owners whose gradient is not here have
// done theirs, and an all-reduce in which every slot has one non-zero contribution copies it.
void Stage0::SumSquares() {
  device_.Zero(StreamId::kCompute, sums_);
  const Shards owned = Owned();
  for (int shard = owned.first; shard < owned.first + owned.count; ++shard) {
    for (const Bucket& bucket : layout_.buckets()) {
      const Range used{bucket.range.begin, bucket.range.begin + bucket.elements};
      const Range part = Intersection(layout_.Owned(bucket, shard, 1), used);
      if (part.size() > 0) {
        device_.ops().AccumulateSquares(sums_.Slice(shard, 1), Gradients(bucket).Slice(part));
      }
    }
  }
  if (owned.count == layout_.shards()) return;
  device_.Record(*squares_ready_, StreamId::kCompute);
  device_.Wait(StreamId::kCommunication, *squares_ready_);
  data_parallel_.AllReduceSum(sums_, {Purpose::kScalars});
  device_.Record(*squares_known_, StreamId::kCommunication);
  device_.Wait(StreamId::kCompute, *squares_known_);
}

void Stage0::UpdateBucket(const Bucket& bucket, OptimizerStates& states) {
  const Range owned = OwnedRange(bucket);
  // m and v stand without gaps: this many of every N elements are owned.
  const int64_t states_begin = bucket.range.begin / layout_.shards() * Owned().count;
  for (int i = 0; i < bucket.parameters; ++i) {
    const ParameterId parameter = bucket.first_parameter + i;
    const Range part = Intersection(layout_.Parameter(parameter), owned);
    if (part.size() == 0) continue;
    states.Update(Parameters(bucket).Slice(part), Gradients(bucket).Slice(part),
                  states_begin + part.begin - owned.begin, layout_.spec(parameter).decay);
  }
}

int64_t Stage0::owned_elements() const {
  return layout_.padded() / layout_.shards() * Owned().count;
}

Held Stage0::Parameters(const Bucket& bucket) const {
  return {bucket.range, parameters_.Slice(bucket.range.begin, bucket.range.size())};
}

Held Stage0::Gradients(const Bucket& bucket) const {
  return {bucket.range, gradients_.Slice(bucket.range.begin, bucket.range.size())};
}

Range Stage0::OwnedRange(const Bucket& bucket) const {
  return layout_.Owned(bucket, Owned().first, Owned().count);
}

}  // namespace zerobox
