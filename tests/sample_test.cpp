// SPDX-License-Identifier: Apache-2.0
//
// Sampling from saved models: one that a run has trained, and models whose logits are known because
// their final norm puts out its bias alone, (1, 0, 0, ...), so that the logit of a token is the
// first number of its embedding; or that go on with their last token.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/bfloat16.h"
#include "tests/process.h"
#include "tests/small_run.h"
#include "trainer/gpt.h"
#include "trainer/model_file.h"
#include "trainer/train.h"

namespace zerobox {
namespace {

// `fill` sets what is not zero of a parameter.
void WriteModel(const std::string& folder, size_t vocabulary, DType dtype,
                const std::function<void(const std::string& name, std::vector<float>&)>& fill) {
  const ModelConfig config = {.n_layer = 1,
                              .n_head = 1,
                              .n_embd = 4,
                              .seq_len = 3,
                              .vocab_size = static_cast<int64_t>(vocabulary)};
  auto writer = CreateModelFile(folder, config, dtype);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const ParameterSpec& spec : GptParameters(config)) {
    std::vector<float> values(spec.elements());
    fill(spec.name, values);
    std::vector<BFloat16> rounded;
    for (const float value : values) rounded.push_back(ToBFloat16(value));
    ASSERT_TRUE((*writer)
                    ->Write(dtype == DType::kBFloat16 ? std::as_bytes(std::span(rounded))
                                                      : std::as_bytes(std::span(values)))
                    .ok());
  }
  ASSERT_TRUE((*writer)->Finish().ok());
}

void WriteModel(const std::string& folder, const std::vector<float>& logits,
                DType dtype = DType::kFloat32) {
  WriteModel(folder, logits.size(), dtype,
             [&](const std::string& name, std::vector<float>& values) {
               if (name == "ln_f.bias") values[0] = 1;
               if (name != "wte.weight") return;
               for (size_t token = 0; token < logits.size(); ++token)
                 values[4 * token] = logits[token];
             });
}

// A model that goes on with its last token if that is one of these, at most three, else with 0:
// their embeddings are orthogonal and of mean 0, and all others 0.
void WriteEchoModel(const std::string& folder, size_t vocabulary,
                    const std::vector<size_t>& tokens) {
  constexpr float kEmbeddings[][4] = {{1, -1, 0, 0}, {0, 0, 1, -1}, {1, 1, -1, -1}};
  ASSERT_LE(tokens.size(), std::size(kEmbeddings));
  WriteModel(folder, vocabulary, DType::kFloat32,
             [&](const std::string& name, std::vector<float>& values) {
               if (name == "ln_f.weight") std::fill(values.begin(), values.end(), 1.0F);
               if (name != "wte.weight") return;
               for (size_t i = 0; i < tokens.size(); ++i) {
                 std::copy_n(kEmbeddings[i], 4, values.begin() + 4 * tokens[i]);
               }
             });
}

// Tokens 0 to 4 with weights 1, 8, 0, 2, 0.
const std::vector<float> kLogits = {0, std::log(8.0F), -100, std::log(2.0F), -100};

class SampleTest : public testing::Test {
 protected:
  // What the model in the folder writes behind the prompt.
  std::string Written(SampleSettings settings) const {
    settings.run = folder_.path();
    std::string text;
    const absl::Status status = Sample(settings, [&text](std::string_view piece) {
      text.append(piece);
      return true;
    });
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(text.substr(0, settings.prompt.size()), settings.prompt);
    return status.ok() ? text.substr(settings.prompt.size()) : "";
  }
  absl::Status Refusal(SampleSettings settings) const {
    settings.run = folder_.path();
    return Sample(settings, [](std::string_view) { return true; });
  }

  const TemporaryFolder folder_;
};

// The shares of tokens 0, 1 and 3, which are all there are.
void ExpectShares(const std::string& text, double p0, double p1, double p3) {
  const auto size = static_cast<double>(text.size());
  const std::pair<char, double> expected[] = {{0, p0}, {1, p1}, {3, p3}};
  int64_t known = 0;
  for (const auto& [token, share] : expected) {
    const auto count = std::count(text.begin(), text.end(), token);
    known += count;
    // Five deviations of the count of independent draws.
    const double tolerance = 5 * std::sqrt(share * (1 - share) / size);
    EXPECT_TRUE(std::abs(static_cast<double>(count) / size - share) <= tolerance)
        << int{token} << ": " << count << " of " << text.size();
  }
  EXPECT_EQ(known, static_cast<int64_t>(text.size()));
}

TEST_F(SampleTest, DrawsByTheSoftmaxOfTheLogitsOverTheTemperature) {
  WriteModel(folder_.path(), kLogits);
  const SampleSettings settings = {.prompt = std::string(1, 3), .bytes = 4000, .temperature = 1};
  const std::string text = Written(settings);
  ASSERT_EQ(text.size(), 4000u);
  ExpectShares(text, 1.0 / 11, 8.0 / 11, 2.0 / 11);
  SampleSettings colder = settings;
  colder.temperature = 0.5;  // the weights squared
  ExpectShares(Written(colder), 1.0 / 69, 64.0 / 69, 4.0 / 69);
}

TEST_F(SampleTest, ChoosesAmongTheTopK) {
  WriteModel(folder_.path(), kLogits);
  const std::string prompt(1, 3);
  ExpectShares(Written({.prompt = prompt, .bytes = 4000, .temperature = 1, .top_k = 2}), 0, 0.8,
               0.2);
  EXPECT_EQ(Written({.prompt = prompt, .bytes = 50, .temperature = 5, .top_k = 1}),
            std::string(50, 1));
  EXPECT_EQ(Written({.prompt = prompt, .bytes = 50, .temperature = 0}), std::string(50, 1));
}

TEST_F(SampleTest, WritesTheSameTextForTheSameSeedOnly) {
  WriteModel(folder_.path(), kLogits);
  const SampleSettings settings = {.prompt = std::string(1, 1), .bytes = 200, .seed = 7};
  const std::string text = Written(settings);
  EXPECT_EQ(Written(settings), text);
  SampleSettings other = settings;
  other.seed = 8;
  EXPECT_NE(Written(other), text);
  other = settings;
  other.threads = 2;
  EXPECT_EQ(Written(other), text);
}

TEST_F(SampleTest, WritesTokensBeyondBytesAsNumbers) {
  std::vector<float> logits(300, 0);
  logits[299] = 9;
  WriteModel(folder_.path(), logits);
  EXPECT_EQ(Written({.prompt = "7", .bytes = 2, .temperature = 0}), " 299 299");
  EXPECT_EQ(Written({.bytes = 2, .temperature = 0}), "299 299");
}

TEST_F(SampleTest, ReadsAPromptOfTokensBeyondBytesAsNumbers) {
  WriteEchoModel(folder_.path(), 300, {7, 299, '\n'});
  EXPECT_EQ(Written({.prompt = "7 299", .bytes = 2, .temperature = 0}), " 299 299");
  EXPECT_EQ(Written({.prompt = " 299\t7\n", .bytes = 2, .temperature = 0}), " 7 7");
  EXPECT_EQ(Written({.bytes = 1, .temperature = 0}), "0");
  for (const auto& [prompt, found] : {std::pair("7 300", "300"),
                                      {"7 -1", "-1"},
                                      {"7, 8", "7,"},
                                      {"hacker: n.", "hacker:"},
                                      {" \t", " \t"},
                                      {"99999999999", "99999999999"}}) {
    const absl::Status status = Refusal({.prompt = prompt, .bytes = 1});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(
        status.message(),
        absl::StrCat("--prompt: wanted numbers of tokens from 0 to 299 with blanks between, as "
                     "this model's tokens are not bytes, found '",
                     found, "'; turn the text into tokens as was done with --data"));
  }
}

TEST_F(SampleTest, BeginsATextBehindTheEndOfAnotherWhereTheVocabularyIsGpt2s) {
  WriteEchoModel(folder_.path(), 50304, {50256, '\n'});
  EXPECT_EQ(Written({.bytes = 1, .temperature = 0}), "50256");
}

// These logits are bf16 numbers, so the type makes no difference to them.
TEST_F(SampleTest, DrawsTheSameFromAModelInBf16) {
  const std::vector<float> logits = {0, 2.078125F, -100, 0.69140625F, -100};
  const SampleSettings settings = {.prompt = std::string(1, 3), .bytes = 200, .temperature = 1};
  WriteModel(folder_.path(), logits);
  const std::string text = Written(settings);
  WriteModel(folder_.path(), logits, DType::kBFloat16);
  const auto reader = SafetensorsReader::Open(ModelPath(folder_.path()));
  ASSERT_TRUE(reader.ok()) << reader.status();
  for (const TensorInfo& tensor : (*reader)->tensors()) {
    EXPECT_EQ(tensor.dtype, DType::kBFloat16) << tensor.name;
  }
  EXPECT_EQ(Written(settings), text);
}

TEST_F(SampleTest, RefusesAModelInAnotherType) {
  WriteModel(folder_.path(), kLogits, DType::kInt32);  // as wide as what is written
  const absl::Status status = Refusal({.prompt = std::string(1, 1), .bytes = 1});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_NE(std::string(status.message()).find("fp32 or bf16"), std::string::npos) << status;
}

// What a run saves in bf16 are its parameters to the bit, by GPT-2's names.
TEST_F(SampleTest, GoesOnFromARunInBf16) {
  TrainSettings settings = SmallSettings();
  settings.devices = 2;
  settings.zero_stage = 3;
  settings.steps = 2;
  settings.dtype = DType::kBFloat16;
  settings.out = folder_.path();
  const SmallRun run = RunSmall(settings);
  ASSERT_TRUE(run.result.status.ok()) << run.result.status;
  EXPECT_EQ(Written({.prompt = "abc", .bytes = 40}).size(), 40u);
  const auto reader = SafetensorsReader::Open(ModelPath(folder_.path()));
  ASSERT_TRUE(reader.ok()) << reader.status();
  for (const ParameterSpec& spec : GptParameters(settings.model)) {
    const auto bytes = (*reader)->Tensor({spec.name, DType::kBFloat16, spec.shape});
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    EXPECT_EQ(Widened(*bytes, DType::kBFloat16), run.parameters.at(spec.name)) << spec.name;
  }
}

// What the metadata say may be anything; a file of a few bytes asks for no terabytes.
TEST_F(SampleTest, RefusesAModelThatIsLargerThanItsFile) {
  const auto refusal = [this](const std::string& layers, const std::string& width) {
    auto writer = SafetensorsWriter::Create(ModelPath(folder_.path()),
                                            {{"wte.weight", DType::kFloat32, {1, 1}}},
                                            {{"n_layer", layers},
                                             {"n_head", "1"},
                                             {"n_embd", width},
                                             {"seq_len", "1"},
                                             {"vocab_size", "1"}});
    EXPECT_TRUE(writer.ok()) << writer.status();
    const std::vector<float> zero(1);
    EXPECT_TRUE((*writer)->Write(std::as_bytes(std::span(zero))).ok());
    EXPECT_TRUE((*writer)->Finish().ok());
    return Refusal({.prompt = std::string(1, 0), .bytes = 1});
  };
  const absl::Status blocks = refusal("1048576", "1048576");
  EXPECT_EQ(blocks.code(), absl::StatusCode::kInvalidArgument) << blocks;
  EXPECT_NE(std::string(blocks.message()).find("n_layer 1048576"), std::string::npos) << blocks;
  const absl::Status width = refusal("1", "1048576");
  EXPECT_EQ(width.code(), absl::StatusCode::kInvalidArgument) << width;
  EXPECT_NE(std::string(width.message()).find("fp32 [1, 1048576]"), std::string::npos) << width;
}

TEST_F(SampleTest, RefusesAPromptThatTheModelDoesNotKnow) {
  WriteModel(folder_.path(), kLogits);
  const absl::Status status = Refusal({.prompt = std::string("\x01\x05", 2), .bytes = 1});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_NE(std::string(status.message()).find("byte 5"), std::string::npos) << status;
}

TEST_F(SampleTest, RefusesAModelWhoseLogitsAreNotFinite) {
  std::vector<float> logits = kLogits;
  logits[2] = std::numeric_limits<float>::quiet_NaN();
  WriteModel(folder_.path(), logits);
  const absl::Status status = Refusal({.prompt = std::string(1, 1), .bytes = 1});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_NE(std::string(status.message()).find("not finite"), std::string::npos) << status;
}

TEST_F(SampleTest, GoesOnBeyondTheSequenceOfAModelThatARunHasTrained) {
  TrainSettings settings = SmallSettings();
  settings.devices = 2;
  settings.zero_stage = 3;
  settings.steps = 2;
  settings.out = folder_.path();
  ASSERT_TRUE(RunSmall(settings).result.status.ok());
  const std::string text = Written({.prompt = "abc", .bytes = 40});
  EXPECT_EQ(text.size(), 40u);
  for (const char token : text) EXPECT_LT(static_cast<unsigned char>(token), 101);
}

}  // namespace
}  // namespace zerobox
