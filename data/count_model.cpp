// SPDX-License-Identifier: Apache-2.0
//
// Interpolation by method C of Witten and Bell, "The zero-frequency problem: estimating the
// probabilities of novel events in adaptive text compression" (IEEE Transactions on Information
// Theory 37, 1991), in the recursive form of Chen and Goodman, "An empirical study of smoothing
// techniques for language modeling" (1998), section 2.4. With c(h w) how often token w followed the
// context h in training, c(h) the sum over w, t(h) how many different tokens followed h, and h' the
// context h without its oldest token:
//
//   P(w | h) = (c(h w) + t(h) P(w | h')) / (c(h) + t(h))
//
// The empty context interpolates with 1 / V; a context never seen takes the shorter one's answer.
#include "data/count_model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace zerobox {
namespace {

constexpr int kMaxContext = 2;
constexpr int64_t kMaxCounts = int64_t{1} << 24;
constexpr int64_t kMaxFitted = int64_t{1} << 17;  // sequences; each is a read from the file

// The counts of one length of context. A context is a number: its tokens as digits to base V.
class Counts {
 public:
  Counts(int64_t contexts, int64_t vocabulary)
      : vocabulary_(vocabulary),
        counts_(contexts * vocabulary),
        totals_(contexts),
        types_(contexts) {}

  void Add(int64_t context, int64_t token) {
    types_[context] += counts_[context * vocabulary_ + token]++ == 0 ? 1 : 0;
    ++totals_[context];
  }

  double Interpolate(int64_t context, int64_t token, double shorter) const {
    if (totals_[context] == 0) return shorter;
    const auto types = static_cast<double>(types_[context]);
    return (static_cast<double>(counts_[context * vocabulary_ + token]) + types * shorter) /
           (static_cast<double>(totals_[context]) + types);
  }

 private:
  int64_t vocabulary_;
  std::vector<uint32_t> counts_;  // [contexts, V]
  std::vector<int64_t> totals_;   // [contexts]
  std::vector<int32_t> types_;    // [contexts]
};

class CountModel {
 public:
  CountModel(int64_t vocabulary, int context) : vocabulary_(vocabulary) {
    int64_t contexts = 1;
    for (int length = 0; length <= context; ++length) {
      orders_.emplace_back(contexts, vocabulary);
      contexts *= vocabulary;
    }
  }

  void Fit(std::span<const int32_t> inputs, std::span<const int32_t> targets) {
    for (size_t t = 0; t < targets.size(); ++t) {
      if (targets[t] < 0) continue;
      for (size_t length = 0; length < Orders(t); ++length) {
        orders_[length].Add(Context(inputs, t, length), targets[t]);
      }
    }
  }

  // -log P(target), in nats.
  double Loss(std::span<const int32_t> inputs, size_t t, int32_t target) const {
    double probability = 1.0 / static_cast<double>(vocabulary_);
    for (size_t length = 0; length < Orders(t); ++length) {
      probability = orders_[length].Interpolate(Context(inputs, t, length), target, probability);
    }
    return -std::log(probability);
  }

 private:
  // Target t has t + 1 inputs before it in its sequence.
  size_t Orders(size_t t) const { return std::min(orders_.size(), t + 2); }

  int64_t Context(std::span<const int32_t> inputs, size_t t, size_t length) const {
    int64_t context = 0;
    for (size_t i = length; i-- > 0;) context = context * vocabulary_ + inputs[t - i];
    return context;
  }

  int64_t vocabulary_;
  std::vector<Counts> orders_;
};

absl::Status CheckVocabulary(int64_t vocabulary, int context) {
  if (context < 0 || context > kMaxContext) {
    return absl::InvalidArgumentError(
        absl::StrCat("a count model's context is 0 to ", kMaxContext, " tokens; found ", context));
  }
  int64_t counts = 1;
  for (int i = 0; i <= context; ++i) {
    if (vocabulary < 1 || vocabulary > kMaxCounts / counts) {
      return absl::InvalidArgumentError(
          absl::StrCat("a count model with a context of ", context, " tokens keeps V^", context + 1,
                       " counts, at most ", kMaxCounts, "; the vocabulary V is ", vocabulary));
    }
    counts *= vocabulary;
  }
  return absl::OkStatus();
}

absl::Status CheckTokens(std::span<const int32_t> tokens, int64_t vocabulary) {
  for (const int32_t token : tokens) {
    if (token >= vocabulary) {
      return absl::InvalidArgumentError(
          absl::StrCat("the dataset holds token ", token, " and the vocabulary is ", vocabulary));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<double> CountModelLoss(const Dataset& dataset, int64_t sequence_length,
                                      int64_t vocabulary, int context,
                                      std::span<const int64_t> validation_sequences) {
  if (absl::Status status = CheckVocabulary(vocabulary, context); !status.ok()) return status;
  CountModel model(vocabulary, context);
  std::vector<int32_t> inputs(sequence_length);
  std::vector<int32_t> targets(sequence_length);
  const auto check = [&] {
    absl::Status status = CheckTokens(inputs, vocabulary);
    status.Update(CheckTokens(targets, vocabulary));
    return status;
  };
  // The first epoch holds each training sequence once, in random order: a part of it is a sample.
  const int64_t sequences = std::min(
      {dataset.train_sequences(), kMaxFitted, std::max<int64_t>(1, kMaxCounts / sequence_length)});
  for (int64_t position = 0; position < sequences; ++position) {
    dataset.Train(position, inputs, targets);
    if (absl::Status status = check(); !status.ok()) return status;
    model.Fit(inputs, targets);
  }
  double sum = 0;
  int64_t count = 0;
  for (const int64_t sequence : validation_sequences) {
    if (sequence < 0 || sequence >= dataset.validation_sequences()) {
      return absl::InvalidArgumentError(absl::StrCat("there are ", dataset.validation_sequences(),
                                                     " held-out sequences; sequence ", sequence,
                                                     " is not one of them"));
    }
    dataset.Validation(sequence, inputs, targets);
    if (absl::Status status = check(); !status.ok()) return status;
    for (size_t t = 0; t < targets.size(); ++t) {
      if (targets[t] < 0) continue;
      sum += model.Loss(inputs, t, targets[t]);
      ++count;
    }
  }
  if (absl::Status status = dataset.status(); !status.ok()) return status;
  if (count == 0) return absl::InvalidArgumentError("no held-out target was given");
  return sum / static_cast<double>(count);
}

}  // namespace zerobox
