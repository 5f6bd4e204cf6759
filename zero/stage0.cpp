// SPDX-License-Identifier: Apache-2.0
#include "zero/stage0.h"

namespace zerobox {

Stage0::Stage0(Device& device, Communicator& data_parallel, const Layout& layout, StateTypes types)
    : device_(device),
      data_parallel_(data_parallel),
      layout_(layout),
      types_(types),
      reduced_(device.MakeEvent("gradients reduced")),
      remaining_(layout.buckets().size()),
      bucket_full_(device.MakeEvent("bucket full")),
      squares_ready_(device.MakeEvent("squares ready")),
      squares_known_(device.MakeEvent("squares known")) {
  sums_ = device.Allocate(Region::kPersistent, Category::kWorkspace, DType::kFloat64,
                          layout.shards(), "squares of the gradient, by owner");
}

void Stage0::AllocateParameters() {
  parameters_ = device_.Allocate(Region::kPersistent, Category::kParameters, types_.parameters,
                                 layout_.padded(), "parameters");
  device_.Zero(StreamId::kCompute, parameters_);
}

void Stage0::PrepareTraining(OptimizerStates& states, const StepProgram& training) {
  states_ = &states;
  training_ = &training;
  AllocateGradients();
}

void Stage0::AllocateGradients() {
  gradients_ = device_.Allocate(Region::kPersistent, Category::kGradients, types_.gradients,
                                layout_.padded(), "gradients");
  device_.Zero(StreamId::kCompute, gradients_);
}

void Stage0::Begin(const StepProgram& program, MicroBatch micro_batch) {
  program_ = &program;
  micro_batch_ = micro_batch;
  for (const Bucket& bucket : layout_.buckets()) remaining_[bucket.id] = bucket.parameters;
  remaining_buckets_ = static_cast<int>(remaining_.size());
}

Buffer Stage0::Acquire(const Visit& visit) {
  const Range unit = layout_.Unit(visit.unit);
  return parameters_.Slice(unit.begin, unit.size());
}

Buffer Stage0::Gradient(ParameterId parameter) {
  const Range range = layout_.Parameter(parameter);
  return gradients_.Slice(range.begin, range.size());
}

void Stage0::Reduce(ParameterId parameter) {
  const BucketId bucket = layout_.BucketOf(parameter);
  if (--remaining_[bucket] > 0) return;
  ReduceBucket(layout_.bucket(bucket));
  if (--remaining_buckets_ == 0) JoinReductions();
}

void Stage0::ReduceBucket(const Bucket& bucket) {
  if (!micro_batch_.last) return;
  HandToCommunication();
  data_parallel_.AllReduceSum(WholeGradient(bucket), {Purpose::kGradients, bucket.unit});
  device_.Record(*reduced_, StreamId::kCommunication);
  states_->Keep(bucket, {WholeGradient(bucket), *reduced_});
}

void Stage0::JoinReductions() { device_.Wait(StreamId::kCompute, *reduced_); }

void Stage0::HandToCommunication() {
  device_.Record(*bucket_full_, StreamId::kCompute);
  device_.Wait(StreamId::kCommunication, *bucket_full_);
}

void Stage0::Step() {
  device_.Announce(Activity::kNorm);
  SumSquares();
  states_->Prepare(sums_);
  for (const Bucket& bucket : layout_.buckets()) {
    device_.Announce(Activity::kUpdate, bucket.unit);
    states_->Update(bucket, Parameters(bucket));
  }
  states_->Finish();
  ParametersChanged();
}

// N partial sums of squares, one for each owner. From stage 1 on rank r fills slot r and leaves 0
// in the others, so the all-reduce adds no two numbers: it hands everyone all N. At stage 0 every
// rank owns everything and has all N already. So a gradient has the same norm, to the bit, at every
// stage.
void Stage0::SumSquares() {
  states_->SumSquares(sums_);
  if (Owned().count == layout_.shards()) return;
  device_.Record(*squares_ready_, StreamId::kCompute);
  device_.Wait(StreamId::kCommunication, *squares_ready_);
  data_parallel_.AllReduceSum(sums_, {Purpose::kScalars});
  device_.Record(*squares_known_, StreamId::kCommunication);
  device_.Wait(StreamId::kCompute, *squares_known_);
}

Held Stage0::Parameters(const Bucket& bucket) const {
  return {bucket.range, parameters_.Slice(bucket.range.begin, bucket.range.size())};
}

Buffer Stage0::WholeGradient(const Bucket& bucket) const {
  return gradients_.Slice(bucket.range.begin, bucket.range.size());
}

}  // namespace zerobox
