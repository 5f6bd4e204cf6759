// SPDX-License-Identifier: Apache-2.0
#include "zero/stage2.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "ops/ops.h"

namespace zerobox {

Stage2::Stage2(Device& device, Communicator& data_parallel, const Layout& layout)
    : Stage1(device, data_parallel, layout), buffers_(layout.buckets().size()) {
  for (size_t bucket = 0; bucket < buffers_.size(); ++bucket) {
    bucket_reduced_.push_back(device.MakeEvent("bucket reduced"));
  }
}

void Stage2::AllocateGradients() {
  gradients_ = device_.Allocate(Region::kPersistent, Category::kGradients, DType::kFloat32,
                                owned_elements(), "gradient shard");
}

Buffer Stage2::Gradient(ParameterId parameter) {
  const BucketId id = layout_.BucketOf(parameter);
  if (FirstUse(id)) OpenBucket(id);
  const Range range = layout_.Parameter(parameter);
  return buffers_[id].Slice(range.begin - layout_.bucket(id).range.begin, range.size());
}

void Stage2::OpenBucket(BucketId id) {
  const Bucket& bucket = layout_.bucket(id);
  int64_t elements = bucket.range.size();
  if (!VisitedTwice(bucket.unit)) {
    while (open_buckets_ == 2) RetireOldest();
    ++open_buckets_;
    if (constant_size_ == 0) constant_size_ = LargestBucket();
    elements = constant_size_;
  }
  buffers_[id] = device_.Allocate(Region::kTransient, Category::kCommunicationBuffers,
                                  DType::kFloat32, elements, "gradient bucket");
  device_.Zero(StreamId::kCompute, buffers_[id].Slice(0, bucket.range.size()));
}

void Stage2::ReduceBucket(BucketId id) {
  const Bucket& bucket = layout_.bucket(id);
  HandToCommunication();
  data_parallel_.ReduceScatterSum(buffers_[id].Slice(0, bucket.range.size()),
                                  {Purpose::kGradients, bucket.unit});
  device_.Record(*bucket_reduced_[id], StreamId::kCommunication);
  in_flight_.push_back(id);
}

// The bucket's memory goes back as soon as its owned part is safe.
void Stage2::RetireOldest() {
  assert(!in_flight_.empty() && "three buckets are being filled at once");
  const BucketId id = in_flight_.front();
  in_flight_.pop_front();
  const Bucket& bucket = layout_.bucket(id);
  const Range owned = layout_.Owned(bucket, Owned().first, Owned().count);
  const Buffer sum = buffers_[id].Slice(owned.begin - bucket.range.begin, owned.size());
  const Buffer shard = Gradients(bucket).buffer;
  device_.Wait(StreamId::kCompute, *bucket_reduced_[id]);
  if (micro_batch_.first) {
    device_.Copy(StreamId::kCompute, shard, sum);
  } else {
    device_.ops().Add(shard, sum);
  }
  FreeTransient(std::exchange(buffers_[id], {}));
  if (!VisitedTwice(bucket.unit)) --open_buckets_;
}

void Stage2::JoinReductions() {
  while (!in_flight_.empty()) RetireOldest();
}

void Stage2::FreeTransient(const Buffer& buffer) { device_.Free(buffer); }

Held Stage2::Gradients(const Bucket& bucket) const { return OwnedPart(gradients_, bucket); }

Held Stage2::OwnedPart(Buffer shards, const Bucket& bucket) const {
  const Range owned = layout_.Owned(bucket, Owned().first, Owned().count);
  return {owned, shards.Slice(bucket.range.begin / layout_.shards(), owned.size())};
}

bool Stage2::VisitedTwice(UnitId unit) const {
  return std::count_if(program_->begin(), program_->end(), [unit](const Visit& visit) {
           return visit.pass == Pass::kBackward && visit.unit == unit;
         }) > 1;
}

int64_t Stage2::LargestBucket() const {
  int64_t largest = 0;
  for (const Bucket& bucket : layout_.buckets()) {
    if (!VisitedTwice(bucket.unit)) largest = std::max(largest, bucket.range.size());
  }
  return largest;
}

}  // namespace zerobox
