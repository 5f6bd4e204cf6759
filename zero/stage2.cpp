// SPDX-License-Identifier: Apache-2.0
#include "zero/stage2.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace zerobox {

Stage2::Stage2(Device& device, Communicator& data_parallel, const Layout& layout, StateTypes types)
    : Stage1(device, data_parallel, layout, types), buffers_(layout.buckets().size()) {
  for (size_t bucket = 0; bucket < buffers_.size(); ++bucket) {
    bucket_reduced_.push_back(device.MakeEvent("bucket reduced"));
  }
}

void Stage2::AllocateGradients() {
  states_->AllocateGradients();
  std::vector<int> visits(layout_.units());
  for (const Visit& visit : *training_) visits[visit.unit] += visit.pass == Pass::kBackward ? 1 : 0;
  for (const int count : visits) visited_twice_.push_back(count > 1);
  for (const Bucket& bucket : layout_.buckets()) {
    if (visited_twice_[bucket.unit]) continue;
    constant_size_ = std::max(constant_size_, bucket.range.size());
  }
}

Buffer Stage2::Gradient(ParameterId parameter) {
  const Bucket& bucket = layout_.bucket(layout_.BucketOf(parameter));
  if (buffers_[bucket.id].empty()) OpenBucket(bucket);
  return Held{bucket.range, buffers_[bucket.id]}.Slice(layout_.Parameter(parameter));
}

void Stage2::OpenBucket(const Bucket& bucket) {
  int64_t elements = bucket.range.size();
  if (!visited_twice_[bucket.unit]) {
    while (open_buckets_ == 2) RetireOldest();
    ++open_buckets_;
    elements = constant_size_;
  }
  buffers_[bucket.id] = device_.Allocate(Region::kTransient, Category::kCommunicationBuffers,
                                         types_.gradients, elements, "gradient bucket");
  device_.Zero(StreamId::kCompute, buffers_[bucket.id].Slice(0, bucket.range.size()));
}

void Stage2::ReduceBucket(const Bucket& bucket) {
  HandToCommunication();
  data_parallel_.ReduceScatterSum(buffers_[bucket.id].Slice(0, bucket.range.size()),
                                  {Purpose::kGradients, bucket.unit});
  device_.Record(*bucket_reduced_[bucket.id], StreamId::kCommunication);
  states_->Offer(bucket, Reduced(bucket));
  in_flight_.push_back(bucket.id);
}

ReducedGradient Stage2::Reduced(const Bucket& bucket) const {
  const Held whole{bucket.range, buffers_[bucket.id]};
  return {whole.Slice(layout_.Owned(bucket, Owned())), *bucket_reduced_[bucket.id],
          /*add=*/!micro_batch_.first};
}

// The bucket's memory goes back as soon as its owned part is safe.
void Stage2::RetireOldest() {
  assert(!in_flight_.empty() && "three buckets are being filled at once");
  const Bucket& bucket = layout_.bucket(in_flight_.front());
  in_flight_.pop_front();
  states_->Take(bucket, Reduced(bucket));
  FreeTransient(std::exchange(buffers_[bucket.id], {}));
  if (!visited_twice_[bucket.unit]) --open_buckets_;
}

void Stage2::JoinReductions() {
  while (!in_flight_.empty()) RetireOldest();
}

void Stage2::FreeTransient(const Buffer& buffer) { device_.Free(buffer); }

}  // namespace zerobox
