// SPDX-License-Identifier: Apache-2.0
#include "zero/layout.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/gpt.h"

namespace zerobox {
namespace {

// Three units of odd sizes: 7 + 2600, 1, and 64 + 130 + 4096 + 5 elements.
std::vector<ParameterSpec> OddParameters() {
  return {{"a", {7}, 0, false},      {"b", {26, 100}, 0, true}, {"c", {}, 1, false},
          {"d", {64}, 2, false},     {"e", {2, 65}, 2, true},   {"f", {16, 16, 16}, 2, true},
          {"g", {1, 5, 1}, 2, false}};
}
constexpr int64_t kOddElements = 7 + 2600 + 1 + 64 + 130 + 4096 + 5;

struct Case {
  int shards;
  int64_t bucket_bytes;
  DType gradient;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const int shards : {1, 2, 3, 4, 7, 8, 64}) {
    for (const int64_t bucket_bytes : {1, 200, 800, 17000, 1 << 20}) {
      for (const DType gradient : {DType::kFloat32, DType::kBFloat16}) {
        cases.push_back({shards, bucket_bytes, gradient});
      }
    }
  }
  return cases;
}

std::string Describe(const Case& c) {
  return testing::PrintToString(c.shards) + " shards, " + testing::PrintToString(c.bucket_bytes) +
         " bytes of " + std::string(Name(c.gradient));
}

// Calls check(layout, case) for every case.
template <typename Check>
void ForEachLayout(const Check& check) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(Describe(c));
    const absl::StatusOr<Layout> layout =
        Layout::Make(OddParameters(), c.shards, c.bucket_bytes, c.gradient);
    ASSERT_TRUE(layout.ok()) << layout.status();
    check(*layout, c);
  }
}

TEST(Layout, GivesEveryElementToExactlyOneShard) {
  ForEachLayout([](const Layout& layout, const Case& c) {
    std::vector<int> owners(layout.padded());
    for (const Bucket& bucket : layout.buckets()) {
      for (int shard = 0; shard < c.shards; ++shard) {
        const Range owned = layout.Owned(bucket, {shard, 1});
        EXPECT_EQ(owned.size() * c.shards, bucket.range.size());
        ASSERT_GE(owned.begin, 0);
        ASSERT_LE(owned.end, layout.padded());
        for (int64_t i = owned.begin; i < owned.end; ++i) ++owners[i];
      }
    }
    EXPECT_EQ(owners, std::vector<int>(layout.padded(), 1));
  });
}

TEST(Layout, PutsEveryParameterIntoOnePlaceOfItsOwn) {
  ForEachLayout([](const Layout& layout, const Case&) {
    std::vector<int> uses(layout.padded());
    for (ParameterId id = 0; id < 7; ++id) {
      const Range range = layout.Parameter(id);
      EXPECT_EQ(range.size(), OddParameters()[id].elements());
      EXPECT_EQ(layout.spec(id).name, OddParameters()[id].name);
      const Bucket& bucket = layout.bucket(layout.BucketOf(id));
      EXPECT_EQ(bucket.unit, OddParameters()[id].unit);
      EXPECT_GE(id, bucket.first_parameter);
      EXPECT_LT(id, bucket.first_parameter + bucket.parameters);
      EXPECT_GE(range.begin, bucket.range.begin);
      EXPECT_LE(range.end, bucket.range.begin + bucket.elements) << "padding stands at the end";
      for (int64_t i = range.begin; i < range.end; ++i) ++uses[i];
    }
    int64_t used = 0;
    for (const int n : uses) {
      EXPECT_LE(n, 1);
      used += n;
    }
    EXPECT_EQ(used, kOddElements);
    EXPECT_EQ(layout.parameters(), kOddElements);
    EXPECT_EQ(layout.padding(), layout.padded() - kOddElements);
  });
}

TEST(Layout, CutsBucketsAtParameterBoundariesAndFillsThem) {
  ForEachLayout([](const Layout& layout, const Case& c) {
    const std::vector<ParameterSpec> specs = OddParameters();
    ParameterId next = 0;
    for (const Bucket& bucket : layout.buckets()) {
      EXPECT_EQ(bucket.first_parameter, next);
      ASSERT_GE(bucket.parameters, 1);
      int64_t elements = 0;
      for (int i = 0; i < bucket.parameters; ++i) {
        EXPECT_EQ(specs[next].unit, bucket.unit);
        elements += specs[next++].elements();
      }
      EXPECT_EQ(bucket.elements, elements);
      const int64_t width = c.gradient == DType::kBFloat16 ? 2 : 4;
      EXPECT_TRUE(bucket.parameters == 1 || elements * width <= c.bucket_bytes);
      // What comes next would not have fitted.
      if (next < 7 && specs[next].unit == bucket.unit) {
        EXPECT_GT((elements + specs[next].elements()) * width, c.bucket_bytes);
      }
    }
    EXPECT_EQ(next, 7) << "every parameter is in a bucket";
  });
}

TEST(Layout, PadsEveryBucketToShardsTimes64ElementsAndNoMore) {
  ForEachLayout([](const Layout& layout, const Case& c) {
    int64_t begin = 0;
    int64_t padding = 0;
    for (const Bucket& bucket : layout.buckets()) {
      EXPECT_EQ(bucket.range.begin, begin) << "buckets stand one behind the other";
      begin = bucket.range.end;
      EXPECT_EQ(bucket.range.size() % (c.shards * 64), 0);
      EXPECT_GE(bucket.range.size(), bucket.elements);
      EXPECT_LT(bucket.range.size() - bucket.elements, c.shards * 64);
      padding += bucket.range.size() - bucket.elements;
    }
    EXPECT_EQ(layout.padded(), begin);
    EXPECT_EQ(layout.padding(), padding);
  });
}

TEST(Layout, NumbersTheBucketsOfAUnitWithoutGaps) {
  ForEachLayout([](const Layout& layout, const Case&) {
    ASSERT_EQ(layout.units(), 3);
    int64_t begin = 0;
    BucketId first = 0;
    for (UnitId unit = 0; unit < 3; ++unit) {
      EXPECT_EQ(layout.Unit(unit).begin, begin);
      ASSERT_FALSE(layout.Buckets(unit).empty());
      EXPECT_EQ(&layout.Buckets(unit)[0], &layout.bucket(first));
      for (const Bucket& bucket : layout.Buckets(unit)) {
        EXPECT_EQ(bucket.unit, unit);
        EXPECT_EQ(bucket.range.begin, begin);
        begin = bucket.range.end;
        ++first;
      }
      EXPECT_EQ(layout.Unit(unit).end, begin);
    }
    EXPECT_EQ(begin, layout.padded());
    EXPECT_EQ(first, static_cast<int>(layout.buckets().size()));
  });
}

TEST(Layout, OwnsSeveralShardsAsOneContiguousRange) {
  ForEachLayout([](const Layout& layout, const Case& c) {
    for (const Bucket& bucket : layout.buckets()) {
      for (int first = 0; first < c.shards; ++first) {
        const int count = (c.shards - first + 1) / 2;
        const Range several = layout.Owned(bucket, {first, count});
        EXPECT_EQ(several.begin, layout.Owned(bucket, {first, 1}).begin);
        EXPECT_EQ(several.end, layout.Owned(bucket, {first + count - 1, 1}).end);
        EXPECT_EQ(several.size(), count * layout.Owned(bucket, {first, 1}).size());
      }
      EXPECT_EQ(layout.Owned(bucket, {0, c.shards}), bucket.range);
    }
  });
}

TEST(Layout, IsTheOneOfThisExample) {
  // 2 shards, at most 200 fp32 elements a bucket: d + e are 194; b and f are larger than that.
  const Layout layout = *Layout::Make(OddParameters(), 2, 800, DType::kFloat32);
  struct {
    UnitId unit;
    Range range;
    int64_t elements;
  } expected[] = {{0, {0, 128}, 7},       {0, {128, 2816}, 2600},  {1, {2816, 2944}, 1},
                  {2, {2944, 3200}, 194}, {2, {3200, 7296}, 4096}, {2, {7296, 7424}, 5}};
  ASSERT_EQ(layout.buckets().size(), 6u);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(layout.bucket(i).unit, expected[i].unit);
    EXPECT_EQ(layout.bucket(i).range, expected[i].range);
    EXPECT_EQ(layout.bucket(i).elements, expected[i].elements);
  }
  EXPECT_EQ(layout.Parameter(4), (Range{3008, 3138}));
  EXPECT_EQ(layout.Owned(layout.bucket(3), {1, 1}), (Range{3072, 3200}));
  EXPECT_EQ(layout.padded(), 7424);
  EXPECT_EQ(layout.padding(), 7424 - 6903);
}

TEST(Layout, HalvesTheElementsOfABucketWhenTheGradientIsTwiceAsWide) {
  const std::vector<ParameterSpec> specs = {{"a", {100}, 0, false}, {"b", {100}, 0, false}};
  EXPECT_EQ(Layout::Make(specs, 1, 400, DType::kBFloat16)->buckets().size(), 1u);
  EXPECT_EQ(Layout::Make(specs, 1, 400, DType::kFloat32)->buckets().size(), 2u);
  EXPECT_EQ(Layout::Make(specs, 1, 399, DType::kBFloat16)->buckets().size(), 2u);
  EXPECT_EQ(Layout::Make(specs, 1, 800, DType::kFloat32)->buckets().size(), 1u);
}

void ExpectRefused(std::vector<ParameterSpec> specs, int shards, int64_t bucket_bytes,
                   const std::string& word) {
  const absl::StatusOr<Layout> layout =
      Layout::Make(std::move(specs), shards, bucket_bytes, DType::kFloat32);
  ASSERT_FALSE(layout.ok()) << word;
  EXPECT_EQ(layout.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(layout.status().message()).find(word), std::string::npos)
      << layout.status();
}

TEST(Layout, RefusesWhatMakesNoLayout) {
  ExpectRefused({}, 2, 100, "0 parameters");
  ExpectRefused(OddParameters(), 0, 100, "0 shards");
  ExpectRefused(OddParameters(), -1, 100, "-1 shards");
  ExpectRefused(OddParameters(), 2, 0, "0 bytes");
  ExpectRefused({{"x", {4}, 1, false}}, 2, 100, "unit 0");
  ExpectRefused({{"x", {4}, 0, false}, {"gap", {4}, 2, false}}, 2, 100, "gap is in unit 2");
  ExpectRefused({{"x", {4}, 0, false}, {"y", {4}, 1, false}, {"back", {4}, 0, false}}, 2, 100,
                "back is in unit 0");
  ExpectRefused({{"x", {4}, 0, false}, {"below", {4}, -1, false}}, 2, 100, "below is in unit -1");
  ExpectRefused({{"empty", {4, 0}, 0, false}}, 2, 100, "empty has a dimension of 0");
  ExpectRefused({{"negative", {4, -4}, 0, false}}, 2, 100, "negative has a dimension of -4");
  ExpectRefused({{"huge", {int64_t{1} << 40, int64_t{1} << 40}, 0, false}}, 2, 100, "2^60");
  const ParameterSpec most{"most", {int64_t{1} << 60}, 0, false};
  ExpectRefused({most, {"one more", {1}, 0, false}}, 2, 100, "2^60");
}

TEST(Range, IntersectsToWhatBothHold) {
  EXPECT_EQ(Intersection({0, 10}, {5, 20}), (Range{5, 10}));
  EXPECT_EQ(Intersection({5, 20}, {0, 10}), (Range{5, 10}));
  EXPECT_EQ(Intersection({0, 10}, {2, 3}), (Range{2, 3}));
  EXPECT_EQ(Intersection({0, 10}, {10, 20}).size(), 0);
  EXPECT_EQ(Intersection({0, 10}, {15, 20}).size(), 0);
}

// Psi = V h + s h + L (12 h^2 + 13 h) + 2 h, the head tied to the token embedding.
TEST(GptParameters, CountGpt2AsPublished) {
  struct {
    ModelConfig model;
    int64_t psi;
  } models[] = {{{12, 12, 768, 1024, 50257}, 124439808},
                {{24, 16, 1024, 1024, 50257}, 354823168},
                {{36, 20, 1280, 1024, 50257}, 774030080},
                {{48, 25, 1600, 1024, 50257}, 1557611200}};
  for (const auto& [model, psi] : models) {
    const int64_t h = model.n_embd;
    EXPECT_EQ(psi, model.vocab_size * h + model.seq_len * h +
                       model.n_layer * (12 * h * h + 13 * h) + 2 * h);
    const absl::StatusOr<Layout> layout =
        Layout::Make(GptParameters(model), 8, int64_t{25} << 20, DType::kFloat32);
    ASSERT_TRUE(layout.ok()) << layout.status();
    EXPECT_EQ(layout->parameters(), psi);
    EXPECT_EQ(layout->units(), model.n_layer + 1);
    EXPECT_EQ(GptParameters(model).size(), static_cast<size_t>(4 + 12 * model.n_layer));
    // Padding is a rounding error: less than 8 x 64 elements a bucket.
    EXPECT_LT(layout->padding(), 512 * static_cast<int64_t>(layout->buckets().size()));
  }
}

TEST(GptParameters, AreNamedAndShapedLikeThePublishedOnes) {
  const std::vector<ParameterSpec> specs = GptParameters({2, 2, 6, 5, 11});
  ASSERT_EQ(specs.size(), 28u);
  const std::vector<ParameterSpec> ends(specs.begin(), specs.begin() + 4);
  EXPECT_EQ(ends[0].name, "wte.weight");
  EXPECT_EQ(ends[0].shape, (std::vector<int64_t>{11, 6}));
  EXPECT_EQ(ends[1].name, "wpe.weight");
  EXPECT_EQ(ends[1].shape, (std::vector<int64_t>{5, 6}));
  EXPECT_EQ(ends[2].name, "ln_f.weight");
  EXPECT_EQ(ends[3].name, "ln_f.bias");
  const ParameterSpec& qkv = specs[4 + 12 + 2];
  EXPECT_EQ(qkv.name, "h.1.attn.c_attn.weight");
  EXPECT_EQ(qkv.shape, (std::vector<int64_t>{6, 18}));
  EXPECT_EQ(qkv.unit, 2);
  for (const ParameterSpec& spec : specs) {
    EXPECT_EQ(spec.decay, spec.shape.size() == 2) << spec.name << ": decay is for matrices";
  }
}

}  // namespace
}  // namespace zerobox
