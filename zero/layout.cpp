// SPDX-License-Identifier: Apache-2.0
#include "zero/layout.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace zerobox {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 60;

absl::Status CheckSpecs(const std::vector<ParameterSpec>& parameters) {
  UnitId unit = 0;
  int64_t total = 0;
  for (const ParameterSpec& spec : parameters) {
    if (spec.unit != unit && spec.unit != unit + 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          spec.name, " is in unit ", spec.unit, ", wanted ", unit, " or ", unit + 1,
          ": parameters are listed in order of their units, which are numbered from 0"));
    }
    unit = spec.unit;
    int64_t elements = 1;
    for (const int64_t dimension : spec.shape) {
      if (dimension < 1 || elements > kMaxElements / dimension) {
        return absl::InvalidArgumentError(
            absl::StrCat(spec.name, " has a dimension of ", dimension,
                         ", wanted at least 1 and at most 2^60 elements in all"));
      }
      elements *= dimension;
    }
    if (total > kMaxElements - elements) {
      return absl::InvalidArgumentError("the model has more than 2^60 parameters");
    }
    total += elements;
  }
  return absl::OkStatus();
}

}  // namespace

int64_t ParameterSpec::elements() const {
  int64_t elements = 1;
  for (const int64_t dimension : shape) elements *= dimension;
  return elements;
}

Range Intersection(Range a, Range b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

absl::StatusOr<Layout> Layout::Make(std::vector<ParameterSpec> parameters, int shards,
                                    int64_t bucket_bytes, DType gradient) {
  if (shards < 1 || bucket_bytes < 1 || parameters.empty() || parameters[0].unit != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a layout wants at least one parameter (in unit 0), one shard and one byte a bucket; "
        "found ",
        parameters.size(), " parameters, ", shards, " shards, ", bucket_bytes, " bytes"));
  }
  if (absl::Status status = CheckSpecs(parameters); !status.ok()) return status;

  Layout layout;
  layout.parameters_ = std::move(parameters);
  layout.shards_ = shards;
  const int64_t bucket_elements = bucket_bytes / SizeOf(gradient);
  Bucket bucket;
  for (ParameterId id = 0; id < static_cast<int>(layout.parameters_.size()); ++id) {
    const ParameterSpec& spec = layout.parameters_[id];
    const int64_t elements = spec.elements();
    const bool new_unit = spec.unit != bucket.unit;
    if (bucket.parameters > 0 && (new_unit || bucket.elements + elements > bucket_elements)) {
      layout.CloseBucket(bucket);
      bucket = {
          .unit = spec.unit, .range = {layout.padded_, layout.padded_}, .first_parameter = id};
    }
    const int64_t begin = bucket.range.begin + bucket.elements;
    layout.ranges_.push_back({begin, begin + elements});
    layout.bucket_of_.push_back(static_cast<int>(layout.buckets_.size()));
    bucket.elements += elements;
    ++bucket.parameters;
  }
  layout.CloseBucket(bucket);
  layout.first_bucket_.push_back(static_cast<int>(layout.buckets_.size()));
  return layout;
}

void Layout::CloseBucket(Bucket& bucket) {
  const int64_t multiple = shards_ * kShardAlignment;
  const int64_t padded = (bucket.elements + multiple - 1) / multiple * multiple;
  bucket.range.end = bucket.range.begin + padded;
  if (bucket.unit == units()) {
    first_bucket_.push_back(static_cast<int>(buckets_.size()));
    units_.push_back(bucket.range);
  }
  units_.back().end = bucket.range.end;
  bucket.id = static_cast<BucketId>(buckets_.size());
  buckets_.push_back(bucket);
  elements_ += bucket.elements;
  padded_ = bucket.range.end;
}

std::span<const Bucket> Layout::Buckets(UnitId unit) const {
  return std::span(buckets_).subspan(first_bucket_[unit],
                                     first_bucket_[unit + 1] - first_bucket_[unit]);
}

Range Layout::Owned(const Bucket& bucket, OwnedShards owned) const {
  const int64_t part = bucket.range.size() / shards_;
  return {bucket.range.begin + owned.first * part,
          bucket.range.begin + (owned.first + owned.count) * part};
}

Held Layout::OwnedPart(const Buffer& all, const Bucket& bucket, OwnedShards owned) const {
  if (all.empty()) return {};
  const Range range = Owned(bucket, owned);
  return {range, all.Slice(bucket.range.begin / shards_ * owned.count, range.size())};
}

}  // namespace zerobox
