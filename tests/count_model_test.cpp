// SPDX-License-Identifier: Apache-2.0
#include "data/count_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace zerobox {
namespace {

// Sequences of given inputs and targets, in the order given.
class FixedDataset final : public Dataset {
 public:
  struct Sequence {
    std::vector<int32_t> inputs;
    std::vector<int32_t> targets;
  };
  FixedDataset(std::vector<Sequence> train, std::vector<Sequence> validation)
      : train_(std::move(train)), validation_(std::move(validation)) {}

  int64_t train_tokens() const override { return 0; }
  int64_t train_sequences() const override { return static_cast<int64_t>(train_.size()); }
  int64_t validation_sequences() const override { return static_cast<int64_t>(validation_.size()); }
  void Train(int64_t position, std::span<int32_t> inputs,
             std::span<int32_t> targets) const override {
    Copy(train_[position], inputs, targets);
  }
  int64_t TrainTargets(int64_t) const override { return 0; }
  int64_t Epoch(int64_t) const override { return 0; }
  int64_t TrainSequence(int64_t position) const override { return position; }
  void Validation(int64_t sequence, std::span<int32_t> inputs,
                  std::span<int32_t> targets) const override {
    Copy(validation_[sequence], inputs, targets);
  }
  absl::Status status() const override { return failure; }

  absl::Status failure;

 private:
  static void Copy(const Sequence& from, std::span<int32_t> inputs, std::span<int32_t> targets) {
    std::copy(from.inputs.begin(), from.inputs.end(), inputs.begin());
    std::copy(from.targets.begin(), from.targets.end(), targets.begin());
  }

  std::vector<Sequence> train_;
  std::vector<Sequence> validation_;
};

const std::vector<int64_t> kFirst = {0};

double Loss(const Dataset& dataset, int64_t T, int64_t vocabulary, int context) {
  const auto loss = CountModelLoss(dataset, T, vocabulary, context, kFirst);
  EXPECT_TRUE(loss.ok()) << loss.status();
  return loss.value_or(NAN);
}

// Trained on the targets 1 after 0, 1 after 1, 2 after 1, 0 after 2.
FixedDataset Small() { return {{{{0, 1, 1, 2}, {1, 1, 2, 0}}}, {{{1, 2, 0, 3}, {2, 0, 3, 1}}}}; }

TEST(CountModel, WithoutContextInterpolatesCountsWithTheUniformDistribution) {
  // 4 targets, 3 different ones, vocabulary 4: P(w) = (c(w) + 3 / 4) / 7.
  const double p0 = 1.75 / 7;
  const double p1 = 2.75 / 7;
  const double p2 = 1.75 / 7;
  const double p3 = 0.75 / 7;
  const double expected = -(std::log(p2) + std::log(p0) + std::log(p3) + std::log(p1)) / 4;
  EXPECT_TRUE(std::abs(Loss(Small(), 4, 4, 0) - expected) <= 1e-14);
}

TEST(CountModel, WithOneTokenInterpolatesWithTheShorterContext) {
  // After 1: tokens 1 and 2, once each. After 2: 0, once. After 0: 1, once. After 3: nothing.
  const double p2_after_1 = (1 + 2 * 1.75 / 7) / 4;
  const double p0_after_2 = (1 + 1 * 1.75 / 7) / 2;
  const double p3_after_0 = (0 + 1 * 0.75 / 7) / 2;
  const double p1_after_3 = 2.75 / 7;
  const double expected =
      -(std::log(p2_after_1) + std::log(p0_after_2) + std::log(p3_after_0) + std::log(p1_after_3)) /
      4;
  EXPECT_TRUE(std::abs(Loss(Small(), 4, 4, 1) - expected) <= 1e-14);
}

TEST(CountModel, WithTwoTokensUsesTheShorterContextAtTheBeginningOfASequence) {
  // After 1 2: token 0, once. After 2 0 and 0 3: nothing. The first target has one input before it.
  const double p2_after_1 = (1 + 2 * 1.75 / 7) / 4;
  const double p0_after_12 = (1 + 1 * (1 + 1 * 1.75 / 7) / 2) / 2;
  const double p3_after_20 = (0 + 1 * 0.75 / 7) / 2;
  const double p1_after_03 = 2.75 / 7;
  const double expected = -(std::log(p2_after_1) + std::log(p0_after_12) + std::log(p3_after_20) +
                            std::log(p1_after_03)) /
                          4;
  EXPECT_TRUE(std::abs(Loss(Small(), 4, 4, 2) - expected) <= 1e-14);
}

TEST(CountModel, LeavesOutIgnoredTargets) {
  const FixedDataset dataset({{{0, 1}, {1, -1}}, {{0, 0}, {0, 1}}}, {{{1, 0}, {-1, 1}}});
  // Three targets count, two different ones: P(1) = (2 + 2 / 2) / 5. After 0, the same three.
  const double p1 = 3.0 / 5;
  EXPECT_TRUE(std::abs(Loss(dataset, 2, 2, 0) + std::log(p1)) <= 1e-14);
  EXPECT_TRUE(std::abs(Loss(dataset, 2, 2, 1) + std::log((2 + 2 * p1) / 5)) <= 1e-14);
}

TEST(CountModel, TakesTheVocabularyOfBytes) {
  std::vector<int32_t> inputs(256);
  std::vector<int32_t> targets(256);
  for (int32_t i = 0; i < 256; ++i) {
    inputs[i] = 255 - i;
    targets[i] = (255 - i + 255) % 256;
  }
  const FixedDataset dataset({{inputs, targets}}, {{inputs, targets}});
  // Each target once, 256 different ones; each context of one or two tokens once.
  const double p0 = (1.0 + 256.0 / 256) / 512;
  const double p1 = (1 + p0) / 2;
  const double p2 = (1 + p1) / 2;
  EXPECT_TRUE(std::abs(Loss(dataset, 256, 256, 0) + std::log(p0)) <= 1e-12);
  EXPECT_TRUE(std::abs(Loss(dataset, 256, 256, 1) + std::log(p1)) <= 1e-12);
  EXPECT_TRUE(std::abs(Loss(dataset, 256, 256, 2) + (std::log(p1) + 255 * std::log(p2)) / 256) <=
              1e-12);
}

TEST(CountModel, RefusesWhatItCannotCount) {
  FixedDataset dataset = Small();
  const auto expect = [&](int64_t vocabulary, int context, std::vector<int64_t> sequences) {
    EXPECT_EQ(CountModelLoss(dataset, 4, vocabulary, context, sequences).status().code(),
              absl::StatusCode::kInvalidArgument)
        << vocabulary << " " << context;
  };
  expect(257, 2, kFirst);
  expect(4097, 1, kFirst);
  expect((1 << 24) + 1, 0, kFirst);
  expect(INT64_MAX, 2, kFirst);
  expect(0, 0, kFirst);
  expect(4, 3, kFirst);
  expect(4, -1, kFirst);
  expect(3, 1, kFirst);  // token 3 is held out
  expect(4, 1, {});
  expect(4, 1, {1});
  expect(4, 1, {-1});
  dataset.failure = absl::DataLossError("shorter");
  EXPECT_EQ(CountModelLoss(dataset, 4, 4, 1, kFirst).status().code(), absl::StatusCode::kDataLoss);
}

// Counts how often it is asked for a training sequence.
class EndlessDataset final : public Dataset {
 public:
  int64_t train_tokens() const override { return train_sequences(); }
  int64_t train_sequences() const override { return int64_t{1} << 40; }
  int64_t validation_sequences() const override { return 1; }
  void Train(int64_t position, std::span<int32_t> inputs,
             std::span<int32_t> targets) const override {
    ++reads;
    inputs[0] = static_cast<int32_t>(position % 2);
    targets[0] = 1 - inputs[0];
  }
  int64_t TrainTargets(int64_t) const override { return 1; }
  int64_t Epoch(int64_t) const override { return 0; }
  int64_t TrainSequence(int64_t position) const override { return position; }
  void Validation(int64_t, std::span<int32_t> inputs, std::span<int32_t> targets) const override {
    inputs[0] = 0;
    targets[0] = 1;
  }
  mutable int64_t reads = 0;
};

TEST(CountModel, IsFittedOnAPartOfALargeCorpus) {
  const EndlessDataset dataset;
  EXPECT_TRUE(Loss(dataset, 1, 2, 1) < 0.01);
  EXPECT_EQ(dataset.reads, 131'072);
}

}  // namespace
}  // namespace zerobox
