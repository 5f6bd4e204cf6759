// SPDX-License-Identifier: Apache-2.0
#include "data/dataset.h"

#include <algorithm>
#include <cassert>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "data/token_file.h"

namespace zerobox {
namespace {

constexpr int64_t kHeldOutShare = 10;  // one sequence of so many
constexpr int32_t kIgnored = -1;

absl::Status WithFlag(const absl::Status& status, const char* flag) {
  return absl::Status(status.code(), absl::StrCat(flag, ": ", status.message()));
}

// Files cut into sequences, numbered through. Sequence s of a file reads its tokens s T to
// s T + T, both included: the last is only a target, and the first input of sequence s + 1.
class Corpus {
 public:
  static absl::StatusOr<Corpus> Open(const std::string& pattern, const DataSettings& settings);

  int64_t sequences() const { return first_sequences_.back(); }

  absl::Status Read(int64_t sequence, std::span<int32_t> inputs, std::span<int32_t> targets) const {
    const auto [file, index] = Find(sequence);
    const int64_t begin = index * sequence_length_;
    absl::Status status = files_[file].Read(begin, inputs);
    if (!status.ok()) return status;
    std::copy(inputs.begin() + 1, inputs.end(), targets.begin());
    return files_[file].Read(begin + sequence_length_, targets.last(1));
  }

  // Whether the last target of `sequence` is the first input of the next.
  bool SharesTokenWithNext(int64_t sequence) const {
    return sequence + 1 < sequences() && Find(sequence).first == Find(sequence + 1).first;
  }

 private:
  // Which file, and which of its sequences.
  std::pair<size_t, int64_t> Find(int64_t sequence) const {
    assert(sequence >= 0 && sequence < sequences());
    const auto next = std::upper_bound(first_sequences_.begin(), first_sequences_.end(), sequence);
    const size_t file = next - first_sequences_.begin() - 1;
    return {file, sequence - first_sequences_[file]};
  }

  int64_t sequence_length_ = 0;
  std::vector<TokenFile> files_;
  std::vector<int64_t> first_sequences_ = {0};  // of each file, then the number of all
};

absl::StatusOr<Corpus> Corpus::Open(const std::string& pattern, const DataSettings& settings) {
  absl::StatusOr<std::vector<std::string>> paths = FindFiles(pattern);
  if (!paths.ok()) return paths.status();
  Corpus corpus;
  corpus.sequence_length_ = settings.sequence_length;
  // What is cheap to find is reported before anything is read in full.
  for (const std::string& path : *paths) {
    absl::StatusOr<TokenFile> file = TokenFile::Open(path, settings.vocabulary);
    if (!file.ok()) return file.status();
    const int64_t sequences = (file->tokens() - 1) / settings.sequence_length;
    if (sequences == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, " holds ", file->tokens(), " tokens, and a sequence takes ",
          settings.sequence_length, " and the one that follows; lower --seq_len or ",
          paths->size() == 1 ? "name a longer file" : "leave this file out of the pattern"));
    }
    corpus.first_sequences_.push_back(corpus.sequences() + sequences);
    corpus.files_.push_back(*std::move(file));
  }
  int64_t all = 0, read = 0;
  for (const TokenFile& file : corpus.files_) all += file.bytes_to_check();
  const auto on_read = [&](int64_t bytes) {
    read += bytes;
    if (settings.on_read) settings.on_read(read, all);
  };
  for (const TokenFile& file : corpus.files_) {
    if (absl::Status status = file.CheckTokens(on_read); !status.ok()) return status;
  }
  return corpus;
}

class FileDataset final : public Dataset {
 public:
  // Held out: the sequences of `validation`, or those of `train` from `train_sequences` on.
  FileDataset(const DataSettings& settings, Corpus train, std::unique_ptr<Corpus> validation,
              int64_t train_sequences)
      : sequence_length_(settings.sequence_length),
        seed_(settings.seed),
        train_(std::move(train)),
        validation_(std::move(validation)),
        train_sequences_(train_sequences),
        last_touches_held_out_(train_.SharesTokenWithNext(train_sequences - 1)) {}

  int64_t train_tokens() const override { return train_sequences_ * sequence_length_; }
  int64_t train_sequences() const override { return train_sequences_; }
  int64_t validation_sequences() const override {
    return validation_ ? validation_->sequences() : train_.sequences() - train_sequences_;
  }

  void Train(int64_t position, std::span<int32_t> inputs,
             std::span<int32_t> targets) const override {
    Read(train_, TrainSequence(position), inputs, targets);
    if (LastIsHeldOut(position)) targets.back() = kIgnored;
  }

  int64_t TrainTargets(int64_t position) const override {
    return sequence_length_ - (LastIsHeldOut(position) ? 1 : 0);
  }

  int64_t Epoch(int64_t position) const override {
    assert(position >= 0);
    return position / train_sequences_;
  }

  int64_t TrainSequence(int64_t position) const override {
    return PermutedIndex(position % train_sequences_, train_sequences_, seed_, Epoch(position));
  }

  void Validation(int64_t sequence, std::span<int32_t> inputs,
                  std::span<int32_t> targets) const override {
    if (validation_) {
      Read(*validation_, sequence, inputs, targets);
    } else {
      Read(train_, train_sequences_ + sequence, inputs, targets);
    }
  }

  absl::Status status() const override {
    const std::lock_guard lock(mutex_);
    return status_;
  }

 private:
  void Read(const Corpus& corpus, int64_t sequence, std::span<int32_t> inputs,
            std::span<int32_t> targets) const {
    assert(static_cast<int64_t>(inputs.size()) == sequence_length_);
    assert(static_cast<int64_t>(targets.size()) == sequence_length_);
    const absl::Status status = corpus.Read(sequence, inputs, targets);
    if (status.ok()) return;
    std::fill(inputs.begin(), inputs.end(), 0);
    std::fill(targets.begin(), targets.end(), kIgnored);
    const std::lock_guard lock(mutex_);
    status_.Update(status);
  }

  // Whether the last target of that sample is the first token that is held out.
  bool LastIsHeldOut(int64_t position) const {
    return last_touches_held_out_ && TrainSequence(position) == train_sequences_ - 1;
  }

  const int64_t sequence_length_;
  const uint64_t seed_;
  const Corpus train_;
  const std::unique_ptr<const Corpus> validation_;
  const int64_t train_sequences_;
  const bool last_touches_held_out_;
  mutable std::mutex mutex_;
  mutable absl::Status status_;  // the first failure to read
};

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> Dataset::Open(const DataSettings& settings) {
  if (settings.sequence_length < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--seq_len must be at least 1; it is ", settings.sequence_length));
  }
  if (settings.vocabulary < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--vocab_size must be at least 1; it is ", settings.vocabulary));
  }
  absl::StatusOr<Corpus> train = Corpus::Open(settings.train, settings);
  if (!train.ok()) return WithFlag(train.status(), "--data");
  int64_t train_sequences = train->sequences();
  std::unique_ptr<Corpus> validation;
  if (!settings.validation.empty()) {
    absl::StatusOr<Corpus> corpus = Corpus::Open(settings.validation, settings);
    if (!corpus.ok()) return WithFlag(corpus.status(), "--val_data");
    validation = std::make_unique<Corpus>(*std::move(corpus));
  } else if (train_sequences < 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--data: ", settings.train, " holds a single sequence of ", settings.sequence_length,
        " tokens, and one to train on and one to hold out are wanted; lower --seq_len, name a ",
        "longer file, or name what to evaluate on with --val_data"));
  } else {
    train_sequences -= std::max<int64_t>(1, train_sequences / kHeldOutShare);
  }
  return std::make_unique<FileDataset>(settings, *std::move(train), std::move(validation),
                                       train_sequences);
}

}  // namespace zerobox
