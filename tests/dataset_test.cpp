// SPDX-License-Identifier: Apache-2.0
#include "data/dataset.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <string>
#include <vector>

namespace zerobox {
namespace {

namespace fs = std::filesystem;
using ::testing::Test;

struct Sample {
  std::vector<int32_t> inputs;
  std::vector<int32_t> targets;
};

// A text whose byte at position i says i modulo 251, which no power of two divides.
std::string Counting(size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i % 251);
  return text;
}

template <typename T>
std::string BytesOfAll(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string TokenFileText(const std::vector<uint16_t>& tokens, int32_t count, int32_t version = 1,
                          int32_t magic = 20240520) {
  std::vector<int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return BytesOfAll(header) + BytesOfAll(tokens);
}

std::string TokenFileText(const std::vector<uint16_t>& tokens) {
  return TokenFileText(tokens, static_cast<int32_t>(tokens.size()));
}

class DatasetTest : public Test {
 protected:
  void SetUp() override {
    std::string folder = testing::TempDir() + "dataset_XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ / name; }

  // A new file each time: to cut one short and write it again can wait for the disk.
  std::string Write(const std::string& name, const std::string& text) const {
    fs::remove(Path(name));
    std::ofstream(Path(name), std::ios::binary) << text;
    return Path(name);
  }

  static std::unique_ptr<Dataset> Open(const DataSettings& settings) {
    auto dataset = Dataset::Open(settings);
    EXPECT_TRUE(dataset.ok()) << dataset.status();
    return dataset.ok() ? *std::move(dataset) : nullptr;
  }

  static Sample Train(const Dataset& dataset, int64_t position, int64_t T) {
    Sample sample = {std::vector<int32_t>(T, -7), std::vector<int32_t>(T, -7)};
    dataset.Train(position, sample.inputs, sample.targets);
    return sample;
  }

  static Sample Validation(const Dataset& dataset, int64_t sequence, int64_t T) {
    Sample sample = {std::vector<int32_t>(T, -7), std::vector<int32_t>(T, -7)};
    dataset.Validation(sequence, sample.inputs, sample.targets);
    return sample;
  }

  // Expects an error of this code that holds each of these texts.
  static void ExpectError(const DataSettings& settings, absl::StatusCode code,
                          const std::vector<std::string>& texts) {
    const auto dataset = Dataset::Open(settings);
    ASSERT_FALSE(dataset.ok());
    EXPECT_EQ(dataset.status().code(), code) << dataset.status();
    for (const std::string& text : texts) {
      EXPECT_NE(dataset.status().message().find(text), std::string::npos)
          << "'" << text << "' is not in: " << dataset.status();
    }
  }

  static void ExpectInvalid(const DataSettings& settings, const std::vector<std::string>& texts) {
    ExpectError(settings, absl::StatusCode::kInvalidArgument, texts);
  }

  fs::path folder_;
};

TEST(PermutedIndex, GivesEveryIndexOnce) {
  std::vector<int64_t> sizes(300);
  std::iota(sizes.begin(), sizes.end(), 1);
  sizes.insert(sizes.end(), {4095, 4096, 4097, 65537, 100000});
  for (const int64_t size : sizes) {
    std::vector<int> seen(size, 0);
    for (int64_t i = 0; i < size; ++i) {
      const int64_t to = PermutedIndex(i, size, 1337, 5);
      ASSERT_TRUE(to >= 0 && to < size) << size;
      ++seen[to];
    }
    ASSERT_EQ(std::count(seen.begin(), seen.end(), 1), size) << size;
  }
}

TEST(PermutedIndex, StaysInsideHugeSizes) {
  for (const int64_t size : {(int64_t{1} << 62) - 57, int64_t{1} << 62, INT64_MAX}) {
    std::set<int64_t> seen;
    for (int64_t i = 0; i < 100; ++i) {
      const int64_t to = PermutedIndex(size - 1 - i, size, 1, 0);
      EXPECT_TRUE(to >= 0 && to < size);
      seen.insert(to);
    }
    EXPECT_EQ(seen.size(), 100);
  }
}

TEST(PermutedIndex, DiffersByEpochAndBySeed) {
  constexpr int64_t kSize = 1000;
  const auto order = [](uint64_t seed, uint64_t epoch) {
    std::vector<int64_t> indices(kSize);
    for (int64_t i = 0; i < kSize; ++i) indices[i] = PermutedIndex(i, kSize, seed, epoch);
    return indices;
  };
  const auto base = order(1, 0);
  EXPECT_EQ(order(1, 0), base);
  // Two random orders agree in one place on average; in more than 20 with probability below 1e-19.
  for (const auto& other :
       {order(1, 1), order(2, 0), order(1, uint64_t{1} << 32), order(uint64_t{1} << 32 | 1, 0)}) {
    int same = 0;
    for (int64_t i = 0; i < kSize; ++i) same += other[i] == base[i] ? 1 : 0;
    EXPECT_LE(same, 20);
  }
}

TEST(PermutedIndex, SpreadsSmallSizesOverAllOrders) {
  std::set<std::vector<int64_t>> orders;
  for (uint64_t epoch = 0; epoch < 500; ++epoch) {
    orders.insert({PermutedIndex(0, 4, 9, epoch), PermutedIndex(1, 4, 9, epoch),
                   PermutedIndex(2, 4, 9, epoch), PermutedIndex(3, 4, 9, epoch)});
  }
  EXPECT_GE(orders.size(), 20);  // of 24
}

TEST_F(DatasetTest, CutsAFileIntoSequencesAndHoldsOutTheLastTenth) {
  // 20 sequences of 8 and the token after the last, and 5 tokens that fill no sequence.
  const auto dataset = Open({Write("a", Counting(20 * 8 + 1 + 5)), "", 8, 256, 3});
  ASSERT_NE(dataset, nullptr);
  EXPECT_EQ(dataset->train_sequences(), 18);
  EXPECT_EQ(dataset->validation_sequences(), 2);
  EXPECT_EQ(dataset->train_tokens(), 144);
  std::set<int64_t> sequences;
  for (int64_t position = 0; position < 18; ++position) {
    const int64_t sequence = dataset->TrainSequence(position);
    sequences.insert(sequence);
    const Sample sample = Train(*dataset, position, 8);
    for (int64_t t = 0; t < 8; ++t) {
      EXPECT_EQ(sample.inputs[t], 8 * sequence + t);
      // Token 144 is the first that is held out.
      EXPECT_EQ(sample.targets[t], sequence == 17 && t == 7 ? -1 : 8 * sequence + t + 1);
    }
    EXPECT_EQ(dataset->TrainTargets(position), sequence == 17 ? 7 : 8);
  }
  EXPECT_EQ(sequences.size(), 18);
  for (int64_t sequence = 0; sequence < 2; ++sequence) {
    const Sample sample = Validation(*dataset, sequence, 8);
    for (int64_t t = 0; t < 8; ++t) {
      EXPECT_EQ(sample.inputs[t], 144 + 8 * sequence + t);
      EXPECT_EQ(sample.targets[t], 144 + 8 * sequence + t + 1);
    }
  }
}

TEST_F(DatasetTest, HoldsOutAtLeastOneSequence) {
  const auto dataset = Open({Write("a", Counting(2 * 5 + 1)), "", 5, 256, 0});
  ASSERT_NE(dataset, nullptr);
  EXPECT_EQ(dataset->train_sequences(), 1);
  EXPECT_EQ(dataset->validation_sequences(), 1);
  EXPECT_EQ(Train(*dataset, 0, 5).targets, (std::vector<int32_t>{1, 2, 3, 4, -1}));
  EXPECT_EQ(Validation(*dataset, 0, 5).inputs, (std::vector<int32_t>{5, 6, 7, 8, 9}));
}

TEST_F(DatasetTest, SharesNoTokenBetweenTrainingAndHeldOut) {
  // Each token of these files is there once, so a token says where it stands.
  for (const int64_t tokens : {101, 104, 109, 250}) {
    std::vector<uint16_t> all(tokens);
    std::iota(all.begin(), all.end(), 1000);
    const auto dataset = Open({Write("a.bin", TokenFileText(all)), "", 4, 65536, 3});
    ASSERT_NE(dataset, nullptr);
    std::set<int32_t> trained;
    for (int64_t position = 0; position < dataset->train_sequences(); ++position) {
      const Sample sample = Train(*dataset, position, 4);
      trained.insert(sample.inputs.begin(), sample.inputs.end());
      trained.insert(sample.targets.begin(), sample.targets.end());
    }
    for (int64_t sequence = 0; sequence < dataset->validation_sequences(); ++sequence) {
      const Sample sample = Validation(*dataset, sequence, 4);
      for (int64_t t = 0; t < 4; ++t) {
        EXPECT_FALSE(trained.contains(sample.inputs[t]));
        EXPECT_FALSE(trained.contains(sample.targets[t]));
      }
    }
  }
}

TEST_F(DatasetTest, ReadsTokenFilesByTheirMagicAndOthersAsBytes) {
  std::vector<uint16_t> tokens = {65535, 256, 0, 1, 511, 50256, 7};
  const auto dataset = Open({Write("a", TokenFileText(tokens)), "", 3, 65536, 0});
  ASSERT_NE(dataset, nullptr);
  EXPECT_EQ(Train(*dataset, 0, 3).inputs, (std::vector<int32_t>{65535, 256, 0}));
  EXPECT_EQ(Validation(*dataset, 0, 3).targets, (std::vector<int32_t>{511, 50256, 7}));

  const std::string bytes = {'\xff', '\0', 'a', '\x80', '\n', '\r', '\x01'};
  const auto text = Open({Write("b.bin", bytes), "", 3, 256, 0});
  ASSERT_NE(text, nullptr);
  EXPECT_EQ(Train(*text, 0, 3).inputs, (std::vector<int32_t>{255, 0, 97}));
  EXPECT_EQ(Validation(*text, 0, 3).inputs, (std::vector<int32_t>{128, 10, 13}));
}

TEST_F(DatasetTest, ReadsSequencesLongerThanItsBuffer) {
  constexpr int64_t kLength = 20000;
  std::vector<uint16_t> tokens(2 * kLength + 1);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint16_t>(i * 7919);
  const auto dataset = Open({Write("a", TokenFileText(tokens)), "", kLength, 65536, 0});
  ASSERT_NE(dataset, nullptr);
  const Sample sample = Validation(*dataset, 0, kLength);
  for (int64_t t = 0; t < kLength; ++t) {
    ASSERT_EQ(sample.inputs[t], tokens[kLength + t]);
    ASSERT_EQ(sample.targets[t], tokens[kLength + t + 1]);
  }
}

TEST_F(DatasetTest, TakesTheFilesOfAGlobInNameOrderAndCrossesNoFile) {
  // Two sequences of 4 in each; 2 and 3 tokens fill no sequence.
  Write("part_b.txt", "BCDEFGHIJKL");
  Write("part_B.txt", "mnopqrstuvwx");
  Write("other.txt", "0123456789");
  const auto dataset = Open({Path("part_?.txt"), "", 4, 256, 0});
  ASSERT_NE(dataset, nullptr);
  EXPECT_EQ(dataset->train_sequences(), 3);
  std::set<std::string> trained;
  for (int64_t position = 0; position < 3; ++position) {
    const Sample sample = Train(*dataset, position, 4);
    std::string text(sample.inputs.begin(), sample.inputs.end());
    text += sample.targets.back() == -1 ? '-' : static_cast<char>(sample.targets.back());
    trained.insert(text);
  }
  EXPECT_EQ(trained, (std::set<std::string>{"mnopq", "qrstu", "BCDE-"}));
  EXPECT_EQ(Validation(*dataset, 0, 4).inputs, (std::vector<int32_t>{'F', 'G', 'H', 'I'}));
}

TEST_F(DatasetTest, KeepsTheLastTargetWhereTheCutFallsBetweenFiles) {
  Write("1", "abcde");
  Write("2", "ABCDE");
  const auto dataset = Open({Path("[12]"), "", 4, 256, 0});
  ASSERT_NE(dataset, nullptr);
  EXPECT_EQ(dataset->TrainTargets(0), 4);
  EXPECT_EQ(Train(*dataset, 0, 4).targets.back(), 'e');
  EXPECT_EQ(Validation(*dataset, 0, 4).inputs.front(), 'A');
}

TEST_F(DatasetTest, TakesAFileWhoseNameLooksLikeAPattern) {
  Write("a1", "0123456789");
  Write("a[1]", "ABCDEFGHI");
  const auto dataset = Open({Path("a[1]"), "", 4, 256, 0});
  ASSERT_NE(dataset, nullptr);
  EXPECT_EQ(Train(*dataset, 0, 4).inputs.front(), 'A');
}

TEST_F(DatasetTest, TakesValidationFromItsOwnFile) {
  const auto dataset = Open({Write("a", Counting(41)), Write("b", "vwxyzvwxyz"), 4, 256, 0});
  ASSERT_NE(dataset, nullptr);
  EXPECT_EQ(dataset->train_sequences(), 10);
  EXPECT_EQ(dataset->validation_sequences(), 2);
  EXPECT_EQ(Validation(*dataset, 1, 4).inputs, (std::vector<int32_t>{'z', 'v', 'w', 'x'}));
  for (int64_t position = 0; position < 10; ++position) {
    EXPECT_EQ(dataset->TrainTargets(position), 4);
  }
}

TEST_F(DatasetTest, GoesThroughTheEpochsInDifferentOrdersOfTheSameSequences) {
  const auto dataset = Open({Write("a", Counting(201)), "", 4, 256, 11});
  ASSERT_NE(dataset, nullptr);
  const int64_t n = dataset->train_sequences();
  ASSERT_EQ(n, 45);
  std::vector<std::vector<int64_t>> orders(3);
  for (int64_t position = 0; position < 3 * n; ++position) {
    EXPECT_EQ(dataset->Epoch(position), position / n);
    orders[position / n].push_back(dataset->TrainSequence(position));
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[1], orders[2]);
  std::vector<int64_t> all(n);
  std::iota(all.begin(), all.end(), 0);
  for (std::vector<int64_t>& order : orders) {
    EXPECT_NE(order, all);
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, all);
  }
}

TEST_F(DatasetTest, TellsHowMuchItHasReadWhereItReadsEveryToken) {
  using Reads = std::vector<std::pair<int64_t, int64_t>>;
  Reads reads;
  const auto on_read = [&](int64_t bytes, int64_t all) { reads.emplace_back(bytes, all); };
  Write("a1", std::string(5000, 1));
  Write("a2", "12345");
  ASSERT_NE(Open({Path("a?"), Write("b", "123456"), 2, 100, 0, on_read}), nullptr);
  // In pieces of 4096 tokens, file by file.
  EXPECT_EQ(reads, (Reads{{4096, 5005}, {5000, 5005}, {5005, 5005}, {6, 6}}));
  reads.clear();
  ASSERT_NE(Open({Path("a?"), Path("b"), 2, 256, 0, on_read}), nullptr);  // no byte is outside
  EXPECT_EQ(reads, Reads());
}

TEST_F(DatasetTest, ReportsAFileThatShrinksAndGoesOn) {
  const auto dataset = Open({Write("a", Counting(100000)), "", 100, 256, 0});
  ASSERT_NE(dataset, nullptr);
  ASSERT_EQ(truncate(Path("a").c_str(), 10), 0);
  const Sample sample = Train(*dataset, 0, 100);
  EXPECT_EQ(sample.inputs, std::vector<int32_t>(100, 0));
  EXPECT_EQ(sample.targets, std::vector<int32_t>(100, -1));
  EXPECT_EQ(dataset->status().code(), absl::StatusCode::kDataLoss) << dataset->status();
}

TEST_F(DatasetTest, ReportsATokenThatAppearsBeyondTheVocabularyDuringTheRun) {
  const auto dataset = Open({Write("a", std::string(100, 'a')), "", 10, 128, 0});
  ASSERT_NE(dataset, nullptr);
  EXPECT_TRUE(dataset->status().ok());
  std::fstream(Path("a"), std::ios::in | std::ios::out) << std::string(100, '\xee');
  EXPECT_EQ(Validation(*dataset, 0, 10).inputs, std::vector<int32_t>(10, 0));
  EXPECT_EQ(dataset->status().code(), absl::StatusCode::kInvalidArgument) << dataset->status();
}

TEST_F(DatasetTest, RefusesWhatIsNoRegularFile) {
  ExpectError({"", "", 4, 256, 0}, absl::StatusCode::kInvalidArgument, {"--data"});
  ExpectError({Path("none"), "", 4, 256, 0}, absl::StatusCode::kNotFound,
              {"--data", Path("none"), "no file"});
  ExpectError({Path("none*"), "", 4, 256, 0}, absl::StatusCode::kNotFound,
              {"--data", Path("none*"), "no file matches"});
  ExpectInvalid({folder_, "", 4, 256, 0}, {folder_, "is a directory", "*.txt"});
  ExpectInvalid({Write("empty", ""), "", 4, 256, 0}, {Path("empty"), "is empty"});
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  ExpectInvalid({Path("pipe"), "", 4, 256, 0}, {Path("pipe"), "is a pipe"});
  ExpectInvalid({"/dev/zero", "", 4, 256, 0}, {"/dev/zero is a device"});
  const std::string below_a_file = Write("file", Counting(100)) + "/x";
  ExpectError({below_a_file, "", 4, 256, 0}, absl::StatusCode::kFailedPrecondition,
              {below_a_file, "Not a directory"});
  ExpectError({std::string(5000, 'x'), "", 4, 256, 0}, absl::StatusCode::kInvalidArgument,
              {"File name too long"});
  ASSERT_EQ(symlink("none", Path("link").c_str()), 0);
  ExpectError({Path("link"), "", 4, 256, 0}, absl::StatusCode::kNotFound, {Path("link")});
}

TEST_F(DatasetTest, RefusesAFileThatItMayNotRead) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read everything";
  Write("secret", Counting(100));
  ASSERT_EQ(chmod(Path("secret").c_str(), 0), 0);
  ExpectError({Path("secret"), "", 4, 256, 0}, absl::StatusCode::kPermissionDenied,
              {Path("secret"), "Permission denied"});
}

TEST_F(DatasetTest, RefusesBadFilesOfValidationToo) {
  const std::string good = Write("a", Counting(100));
  ExpectError({good, Path("none"), 4, 256, 0}, absl::StatusCode::kNotFound,
              {"--val_data", Path("none")});
  ExpectInvalid({good, Write("b", "abc"), 4, 256, 0}, {"--val_data", Path("b"), "3 tokens"});
  ExpectInvalid({good, Write("c", "abcde\xff"), 4, 128, 0},
                {"--val_data", Path("c"), "byte 255 at position 5"});
}

TEST_F(DatasetTest, RefusesTooFewTokens) {
  ExpectInvalid({Write("a", "abcd"), "", 4, 256, 0},
                {Path("a"), "4 tokens", "4 and the one that follows", "--seq_len"});
  ExpectInvalid({Path("a"), "", INT64_MAX, 256, 0}, {Path("a"), "4 tokens", "--seq_len"});
  ExpectInvalid({Write("b", "abcdefgh"), "", 4, 256, 0},
                {Path("b"), "single sequence", "--val_data"});
  Write("b2", "abc");
  ExpectInvalid({Path("b*"), "", 4, 256, 0}, {Path("b2"), "leave this file out"});
  const auto dataset = Open({Path("b"), Path("b"), 4, 256, 0});
  ASSERT_NE(dataset, nullptr);
  EXPECT_EQ(dataset->train_sequences(), 1);
}

TEST_F(DatasetTest, RefusesTokensOutsideTheVocabulary) {
  std::vector<uint16_t> tokens(9000, 100);
  tokens[8999] = 101;
  const std::string path = Write("a.bin", TokenFileText(tokens));
  ExpectInvalid({path, "", 4, 101, 0},
                {path, "token 101 at position 8999", "vocabulary of 101", "--vocab_size"});
  EXPECT_NE(Open({path, "", 4, 102, 0}), nullptr);
  std::string text(10000, 'a');
  text[9000] = '\xe2';
  const std::string bytes = Write("a.txt", text);
  ExpectInvalid({bytes, "", 4, 128, 0}, {bytes, "byte 226 at position 9000", "--vocab_size"});
  EXPECT_NE(Open({bytes, "", 4, 227, 0}), nullptr);
}

TEST_F(DatasetTest, RefusesBadTokenFiles) {
  const std::vector<uint16_t> tokens(100, 1);
  const auto expect = [&](const std::string& text, const std::vector<std::string>& texts) {
    ExpectInvalid({Write("a.bin", text), "", 4, 256, 0}, texts);
  };
  expect(TokenFileText(tokens, 100, 7), {Path("a.bin"), "version is 7"});
  expect(TokenFileText(tokens, 100, 0), {"version is 0"});
  expect(TokenFileText(tokens, 101), {"counts 101 tokens, wanted the 100 that"});
  expect(TokenFileText(tokens, 99), {"counts 99 tokens, wanted the 100 that"});
  expect(TokenFileText(tokens, -1), {"counts -1 tokens, wanted the 100 that"});
  expect(TokenFileText(tokens, INT32_MAX), {"counts 2147483647 tokens"});
  expect(TokenFileText(tokens) + "x", {"odd number of bytes, 201, where 2 a token are wanted"});
  expect(TokenFileText({}, 0), {"without a token"});
  expect(TokenFileText(tokens, 100, 1, 20240801), {"first number is 20240801", "20240520"});
  expect(TokenFileText(tokens, 100, 1, __builtin_bswap32(20240520)), {"20240520", "little-endian"});
  const std::string whole = TokenFileText(tokens);
  for (size_t bytes = 4; bytes < 1024; ++bytes) {
    expect(whole.substr(0, bytes), {"within the header"});
  }
  // Three bytes are not the magic yet.
  ExpectInvalid({Write("b", whole.substr(0, 3)), "", 4, 256, 0}, {"3 tokens"});
}

TEST_F(DatasetTest, RefusesBadSettings) {
  const std::string path = Write("a", Counting(100));
  ExpectInvalid({path, "", 0, 256, 0}, {"--seq_len", "0"});
  ExpectInvalid({path, "", -5, 256, 0}, {"--seq_len", "-5"});
  ExpectInvalid({path, "", 4, 0, 0}, {"--vocab_size", "0"});
}

}  // namespace
}  // namespace zerobox
