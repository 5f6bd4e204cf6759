// SPDX-License-Identifier: Apache-2.0
//
// Dataset: files -> tokens -> sequences, and the one global order in which a run sees them.
//
// A file is read as bytes (a token a byte) unless it begins with the header of llm.c's token files:
// 256 int32 (20240520, 1, number of tokens, ...), then uint16 tokens. Files that begin with the
// number of llm.c's other files (another day of 2024) are refused rather than read as bytes. A
// pattern may be a glob; its files are taken in name order, and no sequence crosses from one file
// into the next.
//
// A sequence is T inputs and the T tokens that follow them; the next begins T tokens further on.
// Training sequences and held-out sequences share no token, targets included: where the file is
// cut, the last target of the last training sequence is held out and so ignored.
#ifndef ZEROBOX_DATA_DATASET_H_
#define ZEROBOX_DATA_DATASET_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace zerobox {

// Told how many bytes have been read, of how many.
using ReadingObserver = std::function<void(int64_t bytes, int64_t all)>;

struct DataSettings {
  std::string train;            // file or glob
  std::string validation;       // "": the last 10% of the sequences of `train`, at least one
  int64_t sequence_length = 0;  // T
  int64_t vocabulary = 0;       // a token at or beyond it is an error
  uint64_t seed = 0;            // of the order
  // Where a token could be outside the vocabulary, Open reads the files in full, which can take
  // long: it then calls this after every few kilobytes, for `train` and then for `validation`.
  ReadingObserver on_read = nullptr;
};

class Dataset {
 public:
  // Errors name the file, what was wanted, what was found and what to do: missing, empty, not a
  // regular file, bad token file (magic, version, count, odd size), token >= vocabulary (file and
  // position), fewer tokens than one sequence.
  static absl::StatusOr<std::unique_ptr<Dataset>> Open(const DataSettings& settings);
  virtual ~Dataset() = default;

  virtual int64_t train_tokens() const = 0;          // inputs of one epoch
  virtual int64_t train_sequences() const = 0;       // in one epoch
  virtual int64_t validation_sequences() const = 0;  // >= 1

  // The sample at `position` of the run, a counter that only grows: epoch position / sequences, and
  // in it a permutation that depends on (seed, epoch) only. `inputs` and `targets` hold T each;
  // target -1 is ignored by the loss.
  virtual void Train(int64_t position, std::span<int32_t> inputs,
                     std::span<int32_t> targets) const = 0;
  // How many targets of that sample count.
  virtual int64_t TrainTargets(int64_t position) const = 0;
  virtual int64_t Epoch(int64_t position) const = 0;
  // Which sequence of the corpus the sample is, in [0, train_sequences()).
  virtual int64_t TrainSequence(int64_t position) const = 0;

  virtual void Validation(int64_t sequence, std::span<int32_t> inputs,
                          std::span<int32_t> targets) const = 0;

  // The first failure to read since Open, such as a file that another program made shorter. The
  // samples concerned hold zeros and no target. Any thread may ask, say after each step.
  virtual absl::Status status() const { return absl::OkStatus(); }
};

// A pseudo-random permutation of [0, size) that needs no memory: where `index` of `epoch` goes.
int64_t PermutedIndex(int64_t index, int64_t size, uint64_t seed, uint64_t epoch);

}  // namespace zerobox

#endif  // ZEROBOX_DATA_DATASET_H_
