// SPDX-License-Identifier: Apache-2.0
//
// What stands in a bucket's padding changes nothing. Fresh memory that is NaN (bytes_test) does not
// show it: what persists is zeroed when it is allocated, and so is a bucket that is opened. Here
// the padding of all of it is NaN afterwards, and stays so. No contract in zero/ asks for another
// value: sums of squares leave padding out, and an update goes parameter by parameter.
//
// The optimizer's states on the host side are left out, because no recorder sees their memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ops/bfloat16.h"
#include "ops/collectives/communicator.h"
#include "ops/device/device.h"
#include "ops/device/recorder.h"
#include "tests/small_run.h"

namespace zerobox {
namespace {

constexpr int kDevices = 3;
constexpr int64_t kSteps = 3;
constexpr int64_t kMicroBatches = 2;  // the first is copied to a gradient shard, the second added

struct Types {
  DType parameters, gradients;
  int64_t states;  // arrays of them
};
constexpr Types kTypes[] = {{DType::kFloat32, DType::kFloat32, 2},
                            {DType::kBFloat16, DType::kBFloat16, 3},
                            {DType::kBFloat16, DType::kFloat32, 3}};

// Buckets of the small model, padded to a multiple of 64 elements for each of 3 devices.
struct Bucket {
  int unit;
  int64_t elements, padded;
};
struct Buckets {
  int64_t most_elements;  // of a bucket that has more than one parameter
  std::vector<Bucket> buckets;
  int64_t padding;
  int64_t common_padding;  // what is padding in all buckets of a unit that are as long
};

// A model's ends, unit 0, and two equal blocks, units 1 and 2.
std::vector<Bucket> EndsAndBlocks(const std::vector<Bucket>& ends, std::vector<Bucket> block) {
  std::vector<Bucket> buckets = ends;
  for (const int unit : {1, 2}) {
    for (Bucket& bucket : block) bucket.unit = unit;
    buckets.insert(buckets.end(), block.begin(), block.end());
  }
  return buckets;
}

// A parameter each: in order, those of the ends and of a block. Of a vector of 33, the second and
// the third rank own padding alone.
const std::vector<Bucket> kEnds = {{0, 3333, 3456}, {0, 561, 576}, {0, 33, 192}, {0, 33, 192}};
const std::vector<Bucket> kBlock = {{1, 33, 192},    {1, 33, 192},  {1, 3267, 3456}, {1, 99, 192},
                                    {1, 1089, 1152}, {1, 33, 192},  {1, 33, 192},    {1, 33, 192},
                                    {1, 4356, 4416}, {1, 132, 192}, {1, 4356, 4416}, {1, 33, 192}};

const Buckets kBuckets[] = {
    // A unit each.
    {100'000, EndsAndBlocks({{0, 3960, 4032}}, {{1, 13497, 13632}}), 72 + 2 * 135, 72 + 2 * 135},
    // A block cut before each matrix of the MLP.
    {5'000, EndsAndBlocks({{0, 3960, 4032}}, {{1, 4620, 4800}, {1, 4488, 4608}, {1, 4389, 4416}}),
     72 + 2 * (180 + 120 + 27), 72 + 2 * (180 + 120 + 27)},
    // A block's vectors have 33, 99 or 132 elements, and are all 192 long.
    {1, EndsAndBlocks(kEnds, kBlock),
     123 + 15 + 2 * 159 + 2 * (189 + 63 + 2 * 60 + 6 * 159 + 93 + 60),
     123 + 15 + 2 * 159 + 2 * (189 + 63 + 2 * 60 + 8 * 60)}};

// Bytes that read as NaN in every float type.
void SetNan(const Buffer& elements) { std::memset(elements.data, 0xFF, elements.bytes()); }

bool IsNan(const Buffer& element) {
  return std::isnan(element.dtype == DType::kBFloat16 ? ToFloat(*element.As<BFloat16>())
                                                      : *element.As<float>());
}

// The elements of padding in an array of all buckets, or of a rank's thirds of them.
std::vector<Buffer> PaddingOf(const Buckets& buckets, const Buffer& array, int rank) {
  int64_t all = 0;
  for (const Bucket& bucket : buckets.buckets) all += bucket.padded;
  const bool whole = array.elements == all;
  EXPECT_TRUE(whole || array.elements == all / kDevices) << array.elements << " elements";
  std::vector<Buffer> padding;
  int64_t begin = 0;  // of a bucket's part in the array
  for (const Bucket& bucket : buckets.buckets) {
    const int64_t part = whole ? bucket.padded : bucket.padded / kDevices;
    const int64_t first = whole ? 0 : rank * part;  // its first element in the bucket
    for (int64_t i = 0; i < part && begin + i < array.elements; ++i) {
      if (first + i >= bucket.elements) padding.push_back(array.Slice(begin + i, 1));
    }
    begin += part;
  }
  return padding;
}

// Numbers of elements, of all ranks together.
struct Counts {
  std::atomic<int64_t> parameters{0}, gradients{0}, states{0};
  std::atomic<int64_t>* Of(Category category) {
    switch (category) {
      case Category::kParameters:
        return &parameters;
      case Category::kGradients:
        return &gradients;
      case Category::kOptimizerStates:
        return &states;
      default:
        return nullptr;
    }
  }
};

// Makes the padding of what persists NaN before the run, and that of each bucket's gradient before
// it is reduced: from stage 2 on that one is made anew for every micro-batch.
class PaddingPoison final : public Recorder {
 public:
  explicit PaddingPoison(const Buckets& buckets) : buckets_(buckets) {}

  TrainHooks Hooks() {
    TrainHooks hooks;
    hooks.recorder = this;
    hooks.after_setup = [this](int rank, Device&) {
      ForEachPadding(rank, [this](Category category, const Buffer& element) {
        SetNan(element);
        ++*poisoned.Of(category);
      });
    };
    hooks.communicator = [this](Communicator& real) {
      return std::make_unique<PoisonedGradients>(real, *this);
    };
    // As a step begins, no stream works and no other rank writes here.
    hooks.loss_scale = [this](int rank, int64_t step) {
      if (step == kSteps) {
        ForEachPadding(rank, [this](Category category, const Buffer& element) {
          *still_nan.Of(category) += IsNan(element) ? 1 : 0;
        });
      }
      return 1.0;
    };
    return hooks;
  }

  void OnAllocate(int rank, Region region, Category category, std::string_view,
                  const Buffer& buffer) override {
    if (region == Region::kPersistent && poisoned.Of(category) != nullptr) {
      arrays_[rank].push_back({category, buffer});
    }
  }
  void OnFree(int, const Buffer&) override {}
  void OnEnqueue(int, StreamId, std::string_view, int64_t) override {}
  void OnBegin(int, StreamId, std::string_view, int64_t) override {}
  void OnEnd(int, StreamId, std::string_view, int64_t) override {}

  Counts poisoned;   // of what persists, before the run
  Counts still_nan;  // of that, before the last step
  std::atomic<int64_t> poisoned_before_reduction{0};

 private:
  class PoisonedGradients final : public Communicator {
   public:
    PoisonedGradients(Communicator& real, PaddingPoison& poison) : real_(real), poison_(poison) {}
    int rank() const override { return real_.rank(); }
    int size() const override { return real_.size(); }
    Traffic traffic() const override { return real_.traffic(); }

   private:
    void Call(Collective collective, Buffer buffer, int root, CallLabel label) override {
      if (label.purpose == Purpose::kGradients) poison_.PoisonGradient(buffer, label.unit);
      real_.MakeCall(collective, buffer, root, label);
    }
    Communicator& real_;
    PaddingPoison& poison_;
  };

  template <typename Function>
  void ForEachPadding(int rank, const Function& function) {
    for (const auto& [category, array] : arrays_[rank]) {
      for (const Buffer& element : PaddingOf(buckets_, array, rank)) function(category, element);
    }
  }

  // The worker's thread has computed it. Which bucket it is, only its unit and length tell.
  void PoisonGradient(const Buffer& whole, int unit) {
    int64_t elements = 0;
    for (const Bucket& bucket : buckets_.buckets) {
      if (bucket.unit != unit || bucket.padded != whole.elements) continue;
      elements = std::max(elements, bucket.elements);
    }
    ASSERT_GT(elements, 0) << "no bucket of unit " << unit << " has " << whole.elements;
    SetNan(whole.Slice(elements, whole.elements - elements));
    poisoned_before_reduction += whole.elements - elements;
  }

  struct Array {
    Category category;
    Buffer buffer;
  };
  const Buckets& buckets_;
  std::array<std::vector<Array>, kDevices> arrays_;  // each of its own rank's worker only
};

// Arrays of a category, in wholes, that the ranks have between them.
int64_t Wholes(int stage, int sharded_from) { return stage < sharded_from ? kDevices : 1; }

class Padding : public testing::TestWithParam<int> {};  // stage

TEST_P(Padding, OfNanChangesNoBit) {
  const int stage = GetParam();
  for (const Types& types : kTypes) {
    for (const Buckets& buckets : kBuckets) {
      SCOPED_TRACE(testing::Message()
                   << Name(types.parameters) << ", gradients in " << Name(types.gradients)
                   << ", buckets of " << buckets.most_elements);
      TrainSettings settings = SmallSettings();
      settings.devices = kDevices;
      settings.zero_stage = stage;
      settings.dtype = types.parameters;
      settings.grad_accum_dtype = types.gradients;
      settings.bucket_bytes = buckets.most_elements * SizeOf(types.gradients);
      settings.grad_accum = kMicroBatches;
      settings.steps = kSteps;
      settings.eval_interval = 2;
      const SmallRun reference = RunSmall(settings);
      ASSERT_TRUE(reference.result.status.ok()) << reference.result.status;
      ASSERT_EQ(reference.plan.padding, buckets.padding);

      PaddingPoison poison(buckets);
      const SmallRun run = RunSmall(settings, poison.Hooks());
      ASSERT_TRUE(run.result.status.ok()) << run.result.status;
      EXPECT_EQ(Bits(run.result), Bits(reference.result));
      EXPECT_TRUE(run.parameters == reference.parameters);  // too much to print

      const int64_t padding = buckets.padding;
      EXPECT_EQ(poison.poisoned.parameters, Wholes(stage, 3) * padding);
      EXPECT_EQ(poison.poisoned.gradients, Wholes(stage, 2) * padding);
      EXPECT_EQ(poison.poisoned.states, Wholes(stage, 1) * types.states * padding);
      const int64_t reductions = kSteps * (stage < 2 ? 1 : kMicroBatches);
      EXPECT_EQ(poison.poisoned_before_reduction, kDevices * reductions * buckets.common_padding);

      EXPECT_EQ(poison.still_nan.parameters, poison.poisoned.parameters);
      EXPECT_EQ(poison.still_nan.states, poison.poisoned.states);
      // Stage 1 zeroes what its rank does not own of a gradient; later ones keep the reduced one.
      EXPECT_EQ(poison.still_nan.gradients,
                stage < 2 ? Wholes(stage, 1) * padding : buckets.common_padding);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, Padding, testing::Range(0, 4),
                         [](const auto& info) { return std::to_string(info.param); });

}  // namespace
}  // namespace zerobox
