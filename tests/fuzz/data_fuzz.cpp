// SPDX-License-Identifier: Apache-2.0
//
// A file to train on: plain bytes, or llm.c's tokens. The first bytes of an input are the settings.
// What is accepted gives the tokens of the file, each below the vocabulary; an epoch has every
// training sequence once, and no token that is held out.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "data/count_model.h"
#include "data/dataset.h"
#include "tests/fuzz/target.h"

namespace zerobox::fuzz {
namespace {

constexpr size_t kSettings = 4, kHeader = 1024;
constexpr int32_t kMagic = 20240520;

// The tokens of a file that was accepted.
std::vector<int32_t> TokensOf(std::string_view file) {
  std::vector<int32_t> tokens;
  int32_t first = 0;
  if (file.size() >= sizeof(first)) std::memcpy(&first, file.data(), sizeof(first));
  if (first != kMagic) {
    for (const unsigned char byte : file) tokens.push_back(byte);
    return tokens;
  }
  for (size_t i = kHeader; i + 1 < file.size(); i += 2) {
    uint16_t token = 0;
    std::memcpy(&token, file.data() + i, sizeof(token));
    tokens.push_back(token);
  }
  return tokens;
}

// That `inputs` are the tokens from `begin` on, and `targets` those one further, or -1.
void ExpectTokens(const std::vector<int32_t>& tokens, int64_t begin,
                  const std::vector<int32_t>& inputs, const std::vector<int32_t>& targets) {
  for (size_t t = 0; t < inputs.size(); ++t) {
    Expect(inputs[t] == tokens.at(begin + t), "an input is the file's token");
    Expect(targets[t] == -1 || targets[t] == tokens.at(begin + t + 1), "a target follows it");
  }
}

void CheckEpoch(const Dataset& dataset, const std::vector<int32_t>& tokens, int64_t T,
                bool held_out) {
  std::vector<int32_t> inputs(T), targets(T);
  const int64_t sequences = dataset.train_sequences();
  std::vector<bool> seen(sequences);
  for (int64_t position = 0; position < sequences; ++position) {
    const int64_t sequence = dataset.TrainSequence(position);
    Expect(sequence >= 0 && sequence < sequences && !seen[sequence],
           "an epoch has every sequence once");
    seen[sequence] = true;
    dataset.Train(position, inputs, targets);
    ExpectTokens(tokens, sequence * T, inputs, targets);
    const bool touches = held_out && sequence == sequences - 1;
    Expect((targets.back() == -1) == touches, "the first held-out token is no target");
    Expect(dataset.TrainTargets(position) == T - (touches ? 1 : 0), "all others are targets");
  }
  const int64_t first = held_out ? sequences : 0;
  for (int64_t sequence = 0; sequence < dataset.validation_sequences(); ++sequence) {
    dataset.Validation(sequence, inputs, targets);
    ExpectTokens(tokens, (first + sequence) * T, inputs, targets);
  }
}

std::string TokenFileText(int32_t count, std::string_view tokens) {
  const int32_t numbers[] = {kMagic, 1, count};
  std::string text(kHeader, '\0');
  std::memcpy(text.data(), numbers, sizeof(numbers));
  return text.append(tokens);
}

}  // namespace

void Check(std::string_view input) {
  if (input.size() < kSettings) return;
  const auto setting = [&](size_t i) { return static_cast<unsigned char>(input[i]); };
  const MemoryFile file(input.substr(kSettings));
  const bool apart = setting(3) % 2 != 0;  // the held-out data are another file
  const DataSettings settings = {.train = file.path(),
                                 .validation = apart ? file.path() : "",
                                 .sequence_length = 1 + setting(0),
                                 .vocabulary = 1 + setting(1) + 256 * setting(2),
                                 .seed = setting(3)};
  const absl::StatusOr<std::unique_ptr<Dataset>> dataset = Dataset::Open(settings);
  if (!dataset.ok()) return ExpectRefused(dataset.status());
  const std::vector<int32_t> tokens = TokensOf(input.substr(kSettings));
  for (const int32_t token : tokens) Expect(token < settings.vocabulary, "tokens are known");
  CheckEpoch(**dataset, tokens, settings.sequence_length, !apart);
  Expect((*dataset)->status().ok(), "everything could be read");

  std::vector<int64_t> sequences((*dataset)->validation_sequences());
  std::iota(sequences.begin(), sequences.end(), 0);
  const int context = settings.vocabulary <= 256 ? 1 : 0;
  const absl::StatusOr<double> loss =
      CountModelLoss(**dataset, settings.sequence_length, settings.vocabulary, context, sequences);
  Expect(loss.ok() && std::isfinite(*loss) && *loss >= 0, "counting gives a loss");
}

std::vector<std::string> Seeds() {
  const std::string bytes("\3\xff\0\0", kSettings);
  const std::string tokens("\1\xff\xff\0", kSettings);
  return {bytes + "a text of some sequences",
          std::string("\3\xff\0\1", kSettings) + "a text",
          tokens + TokenFileText(6, std::string("\1\0\2\0\xff\xff\3\0\4\0\5\0", 12)),
          tokens + TokenFileText(-1, ""),
          tokens + TokenFileText(0, ""),
          tokens + TokenFileText(2, "abc")};
}

std::vector<std::string> Words() {
  // The number of token files, and it the other way round; and of llm.c's weights.
  return {std::string("\x88\xd8\x34\x01", 4), std::string("\x01\x34\xd8\x88", 4),
          std::string("\xc6\xd7\x34\x01", 4), std::string("\1\0\0\0", 4)};
}

}  // namespace zerobox::fuzz
