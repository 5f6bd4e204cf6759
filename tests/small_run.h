// SPDX-License-Identifier: Apache-2.0
//
// Small training runs for tests: synthetic data, a model with odd sizes, and everything that two
// runs can be compared by.
#ifndef ZEROBOX_TESTS_SMALL_RUN_H_
#define ZEROBOX_TESTS_SMALL_RUN_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "trainer/results.h"
#include "trainer/settings.h"
#include "trainer/train.h"

namespace zerobox {

// Sequences of tokens with some structure, made from a seed; nothing is stored.
class SyntheticDataset final : public Dataset {
 public:
  SyntheticDataset(int64_t sequence_length, int64_t vocabulary);
  int64_t train_tokens() const override { return train_sequences() * sequence_length_; }
  int64_t train_sequences() const override { return 1000; }
  int64_t validation_sequences() const override { return 10; }
  void Train(int64_t position, std::span<int32_t> inputs,
             std::span<int32_t> targets) const override;
  int64_t TrainTargets(int64_t position) const override;
  int64_t Epoch(int64_t position) const override { return position / train_sequences(); }
  int64_t TrainSequence(int64_t position) const override { return position % train_sequences(); }
  void Validation(int64_t sequence, std::span<int32_t> inputs,
                  std::span<int32_t> targets) const override;
  // Targets for which this returns true are ignored. Set before the run.
  void IgnoreTargets(std::function<bool(int64_t position, int64_t t)> ignored);

 private:
  int32_t Token(int64_t sequence, int64_t t) const;
  int64_t sequence_length_;
  int64_t vocabulary_;
  std::function<bool(int64_t, int64_t)> ignored_;
};

// Width 33, 3 heads, vocabulary 101, 2 blocks, 17 positions: nothing is a power of two. 30 steps,
// dropout 0.1, and a clipping threshold that some steps reach and others do not.
TrainSettings SmallSettings();

struct SmallRun {
  RunPlan plan;
  RunResult result;
  std::map<std::string, std::vector<float>> parameters;  // trained
};
// Plans and trains; the result's status says how it went.
SmallRun RunSmall(const TrainSettings& settings, TrainHooks hooks = {});
SmallRun RunSmall(const TrainSettings& settings, const Dataset& dataset, TrainHooks hooks);

// Every third target or so is ignored, by position and place only.
bool RandomlyIgnored(int64_t position, int64_t t);

// The losses, norms and clipping of every step, and the losses of every evaluation, to the bit.
std::vector<uint64_t> Bits(const RunResult& result);

int64_t LiveBytes(const SmallRun& run, int rank, Category category);
const CollectiveCount& Counted(const SmallRun& run, int rank, Collective collective);

}  // namespace zerobox

#endif  // ZEROBOX_TESTS_SMALL_RUN_H_
