// SPDX-License-Identifier: Apache-2.0
//
// Layout: the only owner of "who keeps which element".
//
// All parameters stand one after the other in one flat space. A unit is a run of parameters that
// are gathered together; it is cut into buckets at parameter boundaries, each of at most
// `bucket_bytes` of gradient, or one parameter where that is larger. A bucket is padded to a
// multiple of shards * kShardAlignment elements, and shard r owns its r-th part, so that every
// collective is one contiguous call in place:
//
//   flat space   | unit 0                          | unit 1              | ...
//   buckets      | bucket 0       | bucket 1       | bucket 2            |
//   2 shards     | 0000000 1111111| 0000000 1111111| 000000000 111111111 |
//
// All ZeRO stages use the same layout, stage 0 too.
#ifndef ZEROBOX_ZERO_LAYOUT_H_
#define ZEROBOX_ZERO_LAYOUT_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/device/buffer.h"
#include "zero/step_program.h"

namespace zerobox {

// Elements that a shard's part of a bucket is a multiple of: 128 bytes of bf16.
inline constexpr int64_t kShardAlignment = 64;

struct ParameterSpec {
  std::string name;
  std::vector<int64_t> shape;
  UnitId unit = 0;
  bool decay = false;  // weight decay applies
  int64_t elements() const;
};

// Elements [begin, end) of the flat space.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end > begin ? end - begin : 0; }
  friend bool operator==(const Range&, const Range&) = default;
};
Range Intersection(Range a, Range b);

// A stretch of the flat space and the memory that holds it on this rank.
struct Held {
  Range range;
  Buffer buffer;
  // Of an empty one: empty.
  Buffer Slice(Range part) const {
    return buffer.empty() ? Buffer{} : buffer.Slice(part.begin - range.begin, part.size());
  }
};

// Shards [first, first + count): those that a rank updates.
struct OwnedShards {
  int first = 0;
  int count = 1;
};

using BucketId = int;
struct Bucket {
  BucketId id = 0;
  UnitId unit = 0;
  Range range;           // padded
  int64_t elements = 0;  // without padding; the padding stands at the end
  ParameterId first_parameter = 0;
  int parameters = 0;
};

class Layout {
 public:
  // `parameters` are in order of their units, which are numbered from 0 without gaps.
  // InvalidArgument otherwise, for a dimension below 1, or when the flat space would not fit 2^60
  // elements.
  static absl::StatusOr<Layout> Make(std::vector<ParameterSpec> parameters, int shards,
                                     int64_t bucket_bytes, DType gradient);

  const ParameterSpec& spec(ParameterId parameter) const { return parameters_[parameter]; }
  Range Parameter(ParameterId parameter) const { return ranges_[parameter]; }
  BucketId BucketOf(ParameterId parameter) const { return bucket_of_[parameter]; }

  const std::vector<Bucket>& buckets() const { return buckets_; }
  const Bucket& bucket(BucketId bucket) const { return buckets_[bucket]; }
  // The buckets of a unit are numbered without gaps.
  std::span<const Bucket> Buckets(UnitId unit) const;

  int units() const { return static_cast<int>(units_.size()); }
  Range Unit(UnitId unit) const { return units_[unit]; }

  int shards() const { return shards_; }
  // What these shards own of a bucket, padding included.
  Range Owned(const Bucket& bucket, OwnedShards owned) const;
  // An array of all owned parts without gaps: its size, and a bucket's part in it (empty if the
  // array is).
  int64_t OwnedElements(OwnedShards owned) const { return padded_ / shards_ * owned.count; }
  Held OwnedPart(const Buffer& all, const Bucket& bucket, OwnedShards owned) const;

  int64_t parameters() const { return elements_; }  // Psi
  int64_t padded() const { return padded_; }        // the flat space
  int64_t padding() const { return padded_ - elements_; }

 private:
  void CloseBucket(Bucket& bucket);

  std::vector<ParameterSpec> parameters_;
  std::vector<Range> ranges_;
  std::vector<BucketId> bucket_of_;
  std::vector<Bucket> buckets_;
  std::vector<BucketId> first_bucket_;  // of each unit; one more at the end
  std::vector<Range> units_;
  int shards_ = 1;
  int64_t elements_ = 0;
  int64_t padded_ = 0;
};

}  // namespace zerobox

#endif  // ZEROBOX_ZERO_LAYOUT_H_
