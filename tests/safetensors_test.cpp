// SPDX-License-Identifier: Apache-2.0
#include "checkpoints/safetensors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

namespace zerobox {
namespace {

namespace fs = std::filesystem;
using Metadata = std::map<std::string, std::string>;

template <typename T>
std::span<const std::byte> AsBytes(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

// A file with this header and so many bytes after it.
std::string FileText(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string text(sizeof(length), '\0');
  std::memcpy(text.data(), &length, sizeof(length));
  return text + header + std::string(data_bytes, 'x');
}

class SafetensorsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string folder = testing::TempDir() + "safetensors_XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ / name; }

  // A new file each time: to cut one short and write it again can wait for the disk.
  static void WriteText(const std::string& path, const std::string& text) {
    fs::remove(path);
    std::ofstream(path, std::ios::binary) << text;
  }

  static std::string ReadText(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::set<std::string> Files() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) names.insert(entry.path().filename());
    return names;
  }

  // One tensor of each dtype, and an empty one.
  static std::vector<TensorInfo> Tensors() {
    return {{"wte.weight", DType::kFloat32, {2, 3}},
            {"half", DType::kBFloat16, {5}},
            {"step", DType::kInt64, {}},
            {"none", DType::kFloat32, {0, 7}},
            {"sums", DType::kFloat64, {1, 2}},
            {"ids", DType::kInt32, {3}}};
  }
  static Metadata Meta() { return {{"format", "1"}, {"text", "quote \" slash \\ \xc3\xa9 \n"}}; }

  std::string WriteGood() const {
    const std::string path = Path("good.safetensors");
    auto writer = SafetensorsWriter::Create(path, Tensors(), Meta());
    EXPECT_TRUE(writer.ok()) << writer.status();
    if (!writer.ok()) return path;
    EXPECT_TRUE((*writer)->Write(AsBytes(std::vector<float>{1, 2, 3, 4, 5, -0.5F})).ok());
    EXPECT_TRUE((*writer)->Write(AsBytes(std::vector<uint16_t>{1, 2, 3, 4, 5})).ok());
    EXPECT_TRUE((*writer)->Write(AsBytes(std::vector<int64_t>{int64_t{-1} << 40})).ok());
    EXPECT_TRUE((*writer)->Write({}).ok());
    EXPECT_TRUE((*writer)->Write(AsBytes(std::vector<double>{0.1, 1e300})).ok());
    EXPECT_TRUE((*writer)->Write(AsBytes(std::vector<int32_t>{7, -8, 9})).ok());
    const absl::Status status = (*writer)->Finish();
    EXPECT_TRUE(status.ok()) << status;
    return path;
  }

  // Expects Open to refuse a file with this text, and to say why.
  void ExpectRefused(const std::string& text, const std::string& reason) const {
    WriteText(Path("bad"), text);
    const auto reader = SafetensorsReader::Open(Path("bad"));
    ASSERT_FALSE(reader.ok()) << text;
    EXPECT_EQ(reader.status().code(), absl::StatusCode::kInvalidArgument);
    for (const std::string& wanted : {Path("bad"), reason}) {
      EXPECT_NE(reader.status().message().find(wanted), std::string::npos)
          << "'" << wanted << "' is not in: " << reader.status();
    }
  }

  void ExpectHeaderRefused(const std::string& header, size_t data_bytes,
                           const std::string& reason) const {
    ExpectRefused(FileText(header, data_bytes), reason);
  }

  // Opens a file that may be broken. Whatever opens must be whole: every byte can be read.
  static bool OpensWhole(const std::string& path) {
    const auto reader = SafetensorsReader::Open(path);
    if (!reader.ok()) return false;
    std::set<std::string> names;
    size_t bytes = 0;
    unsigned sum = 0;
    for (const TensorInfo& tensor : (*reader)->tensors()) {
      EXPECT_TRUE(names.insert(tensor.name).second);
      const auto data = (*reader)->Tensor(tensor);
      EXPECT_TRUE(data.ok()) << data.status();
      if (!data.ok()) continue;
      EXPECT_EQ(data->size(), tensor.elements() * SizeOf(tensor.dtype));
      bytes += data->size();
      for (const std::byte byte : *data) sum += std::to_integer<unsigned>(byte);
    }
    EXPECT_LE(bytes, fs::file_size(path));
    EXPECT_LE(sum, 255 * bytes);
    return true;
  }

  fs::path folder_;
};

TEST_F(SafetensorsTest, ReadsBackWhatItWrote) {
  const auto reader = SafetensorsReader::Open(WriteGood());
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->metadata(), Meta());
  const std::vector<TensorInfo> wanted = Tensors();
  ASSERT_EQ((*reader)->tensors().size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ((*reader)->tensors()[i].name, wanted[i].name);
    EXPECT_EQ((*reader)->tensors()[i].dtype, wanted[i].dtype);
    EXPECT_EQ((*reader)->tensors()[i].shape, wanted[i].shape);
  }
  const auto expect = [&](size_t index, const auto& values) {
    const auto bytes = (*reader)->Tensor(wanted[index]);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    ASSERT_EQ(bytes->size(), AsBytes(values).size());
    EXPECT_EQ(std::memcmp(bytes->data(), values.data(), bytes->size()), 0);
  };
  expect(0, std::vector<float>{1, 2, 3, 4, 5, -0.5F});
  expect(1, std::vector<uint16_t>{1, 2, 3, 4, 5});
  expect(2, std::vector<int64_t>{int64_t{-1} << 40});
  expect(4, std::vector<double>{0.1, 1e300});
  expect(5, std::vector<int32_t>{7, -8, 9});
  EXPECT_EQ((*reader)->Tensor(wanted[3])->size(), 0);
}

TEST_F(SafetensorsTest, WritesTheFormatByteForByte) {
  auto writer = SafetensorsWriter::Create(
      Path("a"), {{"b", DType::kInt32, {2}}, {"a", DType::kBFloat16, {1, 1}}}, {{"k", "v"}});
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Write(AsBytes(std::vector<int32_t>{1, 258})).ok());
  ASSERT_TRUE((*writer)->Write(AsBytes(std::vector<uint16_t>{0x3f80})).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  const std::string header =
      R"({"__metadata__":{"k":"v"},"b":{"dtype":"I32","shape":[2],"data_offsets":[0,8]},)"
      R"("a":{"dtype":"BF16","shape":[1,1],"data_offsets":[8,10]}})";
  ASSERT_EQ(header.size(), 136);  // a multiple of 8
  const std::string length("\x88\0\0\0\0\0\0\0", 8);
  const std::string data("\x01\0\0\0\x02\x01\0\0\x80\x3f", 10);
  EXPECT_EQ(ReadText(Path("a")), length + header + data);

  writer = SafetensorsWriter::Create(Path("b"), {{"b", DType::kFloat32, {0}}}, {});
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Write({}).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  const std::string padded = R"({"b":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}  )";
  EXPECT_EQ(ReadText(Path("b")), std::string("\x38\0\0\0\0\0\0\0", 8) + padded);
}

TEST_F(SafetensorsTest, FindsATensorOnlyByNameDtypeAndShape) {
  const auto reader = SafetensorsReader::Open(WriteGood());
  ASSERT_TRUE(reader.ok()) << reader.status();
  const auto code = [&](const TensorInfo& wanted) {
    return (*reader)->Tensor(wanted).status().code();
  };
  EXPECT_EQ(code({"wte.weight", DType::kFloat32, {2, 3}}), absl::StatusCode::kOk);
  EXPECT_EQ(code({"wpe.weight", DType::kFloat32, {2, 3}}), absl::StatusCode::kNotFound);
  EXPECT_EQ(code({"wte.weight", DType::kInt32, {2, 3}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({"wte.weight", DType::kFloat32, {3, 2}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({"wte.weight", DType::kFloat32, {6}}), absl::StatusCode::kInvalidArgument);
}

TEST_F(SafetensorsTest, AcceptsOtherWritersFiles) {
  // Tensors in another order than their bytes, white space, a header of odd length, no metadata.
  WriteText(Path("a"),
            FileText("{ \"z\" : {\"shape\":[1],\"data_offsets\":[8,12],\"dtype\":\"F32\"},\n"
                     "\"\\u00e9\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]} } ",
                     12));
  const auto reader = SafetensorsReader::Open(Path("a"));
  ASSERT_TRUE(reader.ok()) << reader.status();
  ASSERT_EQ((*reader)->tensors().size(), 2);
  EXPECT_EQ((*reader)->tensors()[0].name, "\xc3\xa9");
  EXPECT_EQ((*reader)->tensors()[1].name, "z");
  EXPECT_TRUE((*reader)->metadata().empty());
  WriteText(Path("b"), FileText("{}", 0));
  EXPECT_TRUE(OpensWhole(Path("b")));
}

TEST_F(SafetensorsTest, RefusesEveryTruncation) {
  const std::string good = ReadText(WriteGood());
  for (size_t bytes = 0; bytes < good.size(); ++bytes) {
    WriteText(Path("cut"), good.substr(0, bytes));
    EXPECT_FALSE(OpensWhole(Path("cut"))) << bytes;
  }
  WriteText(Path("cut"), good);
  EXPECT_TRUE(OpensWhole(Path("cut")));
  ExpectRefused(good + "x", "follow the header");
}

TEST_F(SafetensorsTest, SurvivesEveryFlippedBitOfLengthAndHeader) {
  const std::string good = ReadText(WriteGood());
  uint64_t length = 0;
  std::memcpy(&length, good.data(), sizeof(length));
  for (size_t i = 0; i < sizeof(length) + length; ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string text = good;
      text[i] = static_cast<char>(text[i] ^ (1 << bit));
      WriteText(Path("flipped"), text);
      const bool opens = OpensWhole(Path("flipped"));
      // Another length leaves another number of bytes for the tensors.
      EXPECT_FALSE(opens && i < sizeof(length)) << i << " " << bit;
    }
  }
}

TEST_F(SafetensorsTest, SurvivesRandomlyBrokenHeaders) {
  const std::string good = ReadText(WriteGood());
  uint64_t length = 0;
  std::memcpy(&length, good.data(), sizeof(length));
  constexpr char kBytes[] = "{}[]\",:0129-.eE\\utn \0\x80\xff";
  uint64_t state = 1;
  const auto random = [&](uint64_t below) {
    state = state * 6364136223846793005 + 1442695040888963407;
    return (state >> 33) % below;
  };
  int opened = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string text = good;
    for (uint64_t change = 0; change <= random(4); ++change) {
      text[sizeof(length) + random(length)] = kBytes[random(sizeof(kBytes))];
    }
    WriteText(Path("broken"), text);
    opened += OpensWhole(Path("broken")) ? 1 : 0;
  }
  // A changed letter of a name is no error; most changes are.
  EXPECT_LE(opened, 2000);
}

TEST_F(SafetensorsTest, RefusesBadLengths) {
  const std::string good = ReadText(WriteGood());
  for (const uint64_t length : {uint64_t{0}, uint64_t{1}, uint64_t{100'000'001}, uint64_t{1} << 40,
                                uint64_t{1} << 63, UINT64_MAX, UINT64_MAX - 7}) {
    std::string text = good;
    std::memcpy(text.data(), &length, sizeof(length));
    WriteText(Path("bad"), text);
    EXPECT_FALSE(OpensWhole(Path("bad"))) << length;
  }
  ExpectRefused("", "too few for a header");
  ExpectRefused("1234567", "too few for a header");
  // A file that is large enough, without a byte on the disk.
  const uint64_t length = 100'000'001;
  WriteText(Path("large"), std::string(reinterpret_cast<const char*>(&length), 8));
  ASSERT_EQ(truncate(Path("large").c_str(), 200'000'000), 0);
  EXPECT_FALSE(OpensWhole(Path("large")));
}

TEST_F(SafetensorsTest, RefusesWhatIsNoHeader) {
  ExpectHeaderRefused("", 0, "does not begin with {");
  ExpectHeaderRefused("[]", 0, "does not begin with {");
  ExpectHeaderRefused("\"a\"", 0, "does not begin with {");
  ExpectHeaderRefused("null", 0, "does not begin with {");
  ExpectHeaderRefused(" {}", 0, "does not begin with {");
  ExpectHeaderRefused("\xef\xbb\xbf{}", 0, "does not begin with {");
  ExpectHeaderRefused("{", 0, "no JSON");
  ExpectHeaderRefused("{}}", 0, "no JSON");
  ExpectHeaderRefused("{} x", 0, "no JSON");
  ExpectHeaderRefused("{'a':1}", 0, "no JSON");
  ExpectHeaderRefused("{\"\xff\":{}}", 0, "no JSON");
  ExpectHeaderRefused(std::string("{}\0\0", 4), 0, "zero byte");
  ExpectHeaderRefused("{\"a\":1e999}", 0, "no JSON");
  ExpectHeaderRefused("{\"a\":1}", 0, "a number at 'a'");
  ExpectHeaderRefused("{\"a\":null}", 0, "null at 'a'");
  ExpectHeaderRefused("{\"a\":[]}", 0, "a list at 'a'");
  ExpectHeaderRefused("{\"a\":{}}", 0, "'a' lacks");
  ExpectHeaderRefused("{\"__metadata__\":1}", 0, "'__metadata__'");
  ExpectHeaderRefused("{\"__metadata__\":{\"k\":1}}", 0, "'__metadata__', 'k'");
  ExpectHeaderRefused("{\"__metadata__\":{\"k\":{}}}", 0, "'__metadata__', 'k'");
  ExpectHeaderRefused("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, "'k' twice");
  ExpectHeaderRefused("{\"__metadata__\":{},\"__metadata__\":{}}", 0,
                      "'__metadata__' is there twice");
  ExpectHeaderRefused(std::string(1'000'000, '[').insert(0, "{\"a\":"), 0, "a list at 'a'");
  std::string nested;
  for (int i = 0; i < 100'000; ++i) nested += "{\"a\":";
  ExpectHeaderRefused(nested, 0, "field 'a'");
}

TEST_F(SafetensorsTest, RefusesBadTensors) {
  const auto refuse = [&](const std::string& dtype, const std::string& shape,
                          const std::string& offsets, size_t data_bytes,
                          const std::string& reason) {
    ExpectHeaderRefused("{\"t\":{\"dtype\":" + dtype + ",\"shape\":" + shape +
                            ",\"data_offsets\":" + offsets + "}}",
                        data_bytes, reason);
  };
  refuse("\"F16\"", "[2]", "[0,4]", 4, "dtype 'F16'");
  refuse("\"\"", "[2]", "[0,4]", 4, "dtype ''");
  refuse("4", "[2]", "[0,4]", 4, "'t', 'dtype'");
  refuse("[\"F32\"]", "[2]", "[0,8]", 8, "'t', 'dtype'");
  refuse("\"F32\"", "2", "[0,8]", 8, "'t', 'shape'");
  refuse("\"F32\"", "[-2]", "[0,8]", 8, "negative");
  refuse("\"F32\"", "[2.0]", "[0,8]", 8, "not an integer");
  refuse("\"F32\"", "[\"2\"]", "[0,8]", 8, "a text at 't', 'shape'");
  refuse("\"F32\"", "[[2]]", "[0,8]", 8, "a list at 't', 'shape'");
  refuse("\"F32\"", "[18446744073709551615]", "[0,8]", 8, "above 2^63");
  refuse("\"F32\"", "[18446744073709551616]", "[0,8]", 8, "not an integer below 2^63");
  refuse("\"F32\"", "[4294967296,4294967296]", "[0,0]", 0, "beyond 2^63 bytes");
  refuse("\"F32\"", "[4611686018427387904]", "[0,0]", 0, "beyond 2^63 bytes");
  refuse("\"F32\"", "[3]", "[0,8]", 8, "take 12 bytes");
  refuse("\"F32\"", "[2]", "[8,0]", 8, "[8, 0)");
  refuse("\"F32\"", "[2]", "[0,8]", 7, "tensors take 8 bytes, and 7 follow");
  refuse("\"F32\"", "[2]", "[0,8]", 9, "tensors take 8 bytes, and 9 follow");
  refuse("\"F32\"", "[2]", "[4,12]", 12, "with a gap");
  refuse("\"F32\"", "[2]", "[9223372036854775800,9223372036854775807]", 8, "take 8 bytes");
  refuse("\"F32\"", "[2]", "[0]", 8, "two data_offsets");
  refuse("\"F32\"", "[2]", "[0,8,8]", 8, "two data_offsets");
  refuse("\"F32\"", "[2]", "[]", 8, "two data_offsets");
  refuse("\"F32\"", "[2]", "[0,8],\"more\":1", 8, "field 'more'");
  refuse("\"F32\"", "[2]", "[0,8],\"dtype\":\"F32\"", 8, "field 'dtype'");
  std::string ones = "1";
  for (int i = 0; i < 32; ++i) ones += ",1";
  refuse("\"F32\"", "[" + ones + "]", "[0,4]", 4, "a list that long");
}

TEST_F(SafetensorsTest, RefusesTensorsThatShareANameOrBytes) {
  const auto tensor = [](const std::string& name, int begin, int end) {
    return "\"" + name + R"(":{"dtype":"I32","shape":[1],"data_offsets":[)" +
           std::to_string(begin) + "," + std::to_string(end) + "]}";
  };
  ExpectHeaderRefused("{" + tensor("a", 0, 4) + "," + tensor("a", 4, 8) + "}", 8,
                      "'a' is there twice");
  ExpectHeaderRefused("{" + tensor("a", 0, 4) + "," + tensor("\\u0061", 4, 8) + "}", 8,
                      "'a' is there twice");
  ExpectHeaderRefused("{" + tensor("a", 0, 4) + "," + tensor("b", 0, 4) + "}", 4,
                      "within the one before");
  ExpectHeaderRefused("{" + tensor("a", 2, 6) + "," + tensor("b", 0, 4) + "}", 6,
                      "within the one before");
  ExpectHeaderRefused("{" + tensor("a", 0, 4) + "," + tensor("b", 8, 12) + "}", 12, "with a gap");
}

TEST_F(SafetensorsTest, RefusesWhatIsNoRegularFile) {
  EXPECT_EQ(SafetensorsReader::Open(Path("none")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(SafetensorsReader::Open(folder_).status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(SafetensorsReader::Open(Path("pipe")).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(SafetensorsReader::Open("").ok());
}

TEST_F(SafetensorsTest, NoticesAFileThatShrinks) {
  const std::string path = WriteGood();
  const auto reader = SafetensorsReader::Open(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  ASSERT_EQ(truncate(path.c_str(), 100), 0);
  EXPECT_EQ((*reader)->Tensor(Tensors()[0]).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(SafetensorsTest, KeepsTheOldFileUntilTheNewOneIsWhole) {
  WriteText(Path("a"), "old");
  {
    auto writer = SafetensorsWriter::Create(Path("a"), {{"t", DType::kInt32, {1}}}, {});
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE((*writer)->Write(AsBytes(std::vector<int32_t>{1})).ok());
    EXPECT_EQ(ReadText(Path("a")), "old");
  }
  EXPECT_EQ(ReadText(Path("a")), "old");
  EXPECT_EQ(Files(), std::set<std::string>{"a"});
  auto writer = SafetensorsWriter::Create(Path("a"), {{"t", DType::kInt32, {1}}}, {});
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Write(AsBytes(std::vector<int32_t>{1})).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  EXPECT_TRUE(OpensWhole(Path("a")));
  EXPECT_EQ(Files(), std::set<std::string>{"a"});
  // Others may read it, as far as the umask allows.
  const mode_t mask = umask(0);
  umask(mask);
  struct stat info = {};
  ASSERT_EQ(stat(Path("a").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0666 & ~mask);
}

TEST_F(SafetensorsTest, WritesInTheWorkingFolder) {
  const fs::path before = fs::current_path();
  fs::current_path(folder_);
  auto writer = SafetensorsWriter::Create("plain", {}, {});
  const bool finished = writer.ok() && (*writer)->Finish().ok();
  fs::current_path(before);
  EXPECT_TRUE(finished);
  EXPECT_TRUE(OpensWhole(Path("plain")));
}

TEST_F(SafetensorsTest, WantsEveryTensorWholeAndOnce) {
  auto writer = SafetensorsWriter::Create(
      Path("a"), {{"t", DType::kInt32, {2}}, {"u", DType::kInt32, {1}}}, {});
  ASSERT_TRUE(writer.ok()) << writer.status();
  const auto two = std::vector<int32_t>{1, 2};
  const auto one = std::vector<int32_t>{3};
  EXPECT_EQ((*writer)->Finish().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ((*writer)->Write(AsBytes(one)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE((*writer)->Write(AsBytes(two)).ok());
  EXPECT_EQ((*writer)->Finish().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE((*writer)->Write(AsBytes(one)).ok());
  EXPECT_EQ((*writer)->Write(AsBytes(one)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE((*writer)->Finish().ok());
  EXPECT_EQ((*writer)->Finish().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ((*writer)->Write(AsBytes(one)).code(), absl::StatusCode::kFailedPrecondition);
  writer->reset();
  EXPECT_TRUE(OpensWhole(Path("a")));
  EXPECT_EQ(Files(), std::set<std::string>{"a"});
}

TEST_F(SafetensorsTest, RefusesToWriteWhatItCouldNotRead) {
  const auto refused = [&](std::vector<TensorInfo> tensors, const Metadata& metadata) {
    return SafetensorsWriter::Create(Path("a"), std::move(tensors), metadata).status().code() ==
           absl::StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused({{"t", DType::kInt32, {1}}, {"t", DType::kInt32, {1}}}, {}));
  EXPECT_TRUE(refused({{"__metadata__", DType::kInt32, {1}}}, {}));
  EXPECT_TRUE(refused({{"\xff", DType::kInt32, {1}}}, {}));
  EXPECT_TRUE(refused({{"t", DType::kInt32, {-1}}}, {}));
  EXPECT_TRUE(refused({{"t", DType::kInt32, {int64_t{1} << 32, int64_t{1} << 32}}}, {}));
  EXPECT_TRUE(refused(
      {{"t", DType::kInt64, {int64_t{1} << 59}}, {"u", DType::kInt64, {INT64_MAX / 8}}}, {}));
  EXPECT_TRUE(refused({}, {{"k", "\xc3"}}));
  EXPECT_TRUE(refused({}, {{"\x80", ""}}));
  EXPECT_TRUE(Files().empty());
}

TEST_F(SafetensorsTest, RefusesToReplaceWhatIsNoRegularFile) {
  const auto code = [](const std::string& path) {
    return SafetensorsWriter::Create(path, {}, {}).status().code();
  };
  EXPECT_EQ(code(folder_), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Path("none/")), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(""), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("/dev/null"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Path("none/a")), absl::StatusCode::kNotFound);
  EXPECT_EQ(code(Path(std::string(250, 'x'))), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Files().empty());
}

// Files may not grow beyond a limit while one of these lives: a disk that is full.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit before_ = {};
};

TEST_F(SafetensorsTest, ReportsAFullDiskAndLeavesNothingBehind) {
  const std::vector<TensorInfo> tensors = {{"t", DType::kInt32, {5000}}};
  const std::vector<int32_t> values(5000, 1);
  {
    const FileLimit limit(10000);
    const auto writer = SafetensorsWriter::Create(Path("a"), tensors, {});
    // A file system that cannot reserve room reports it with the tensor.
    EXPECT_TRUE(!writer.ok() || !(*writer)->Write(AsBytes(values)).ok());
  }
  EXPECT_TRUE(Files().empty());
  auto writer = SafetensorsWriter::Create(Path("a"), tensors, {});
  ASSERT_TRUE(writer.ok()) << writer.status();
  absl::Status status;
  {
    const FileLimit limit(10000);
    status = (*writer)->Write(AsBytes(values));
  }
  EXPECT_NE(status.message().find("cannot write"), std::string::npos) << status;
  EXPECT_NE(status.message().find("make room"), std::string::npos) << status;
  // The disk has room again, but the file has a hole.
  EXPECT_EQ((*writer)->Write(AsBytes(values)), status);
  EXPECT_EQ((*writer)->Finish(), status);
  writer->reset();
  EXPECT_TRUE(Files().empty());
}

TEST_F(SafetensorsTest, LeavesNothingBehindWhenItCannotRename) {
  auto writer = SafetensorsWriter::Create(Path("a"), {}, {});
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE(fs::create_directory(Path("a")));
  EXPECT_FALSE((*writer)->Finish().ok());
  writer->reset();
  EXPECT_EQ(Files(), std::set<std::string>{"a"});
}

}  // namespace
}  // namespace zerobox
