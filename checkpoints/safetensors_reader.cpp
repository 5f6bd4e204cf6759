// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoints/safetensors.h"
#include "checkpoints/safetensors_header.h"

namespace zerobox {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr char kOtherFile[] = "; name a safetensors file that was written whole";

std::string Describe(const TensorInfo& tensor) {
  return absl::StrCat(std::string(Name(tensor.dtype)), " [", absl::StrJoin(tensor.shape, ", "),
                      "]");
}

absl::Status BadFile(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what, kOtherFile));
}

absl::Status ReadAt(int fd, const std::string& path, int64_t offset, char* out, int64_t bytes) {
  while (bytes > 0) {
    const ssize_t got = pread(fd, out, bytes, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
    if (got == 0) return BadFile(path, "it became shorter while it was read");
    out += got;
    offset += got;
    bytes -= got;
  }
  return absl::OkStatus();
}

class FileReader final : public SafetensorsReader {
 public:
  FileReader(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  ~FileReader() override {
    if (mapped_ != nullptr) munmap(mapped_, file_bytes_);
    close(fd_);
  }

  // Once, before anything else.
  absl::Status Load();

  const std::vector<TensorInfo>& tensors() const override { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const override { return header_.metadata; }
  absl::StatusOr<std::span<const std::byte>> Tensor(const TensorInfo& wanted) const override;

 private:
  absl::Status LoadHeader();

  const int fd_;
  const std::string path_;
  int64_t file_bytes_ = 0;
  void* mapped_ = nullptr;
  int64_t data_begin_ = 0;
  SafetensorsHeader header_;
  std::map<std::string, size_t> indices_;  // into the tensors, by name
};

absl::Status FileReader::Load() {
  struct stat info = {};
  if (fstat(fd_, &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot examine ", path_));
  }
  if (!S_ISREG(info.st_mode)) return BadFile(path_, "it is not a regular file");
  file_bytes_ = info.st_size;
  if (absl::Status status = LoadHeader(); !status.ok()) return status;
  void* mapped = mmap(nullptr, file_bytes_, PROT_READ, MAP_SHARED, fd_, 0);
  if (mapped == MAP_FAILED) return absl::ErrnoToStatus(errno, absl::StrCat("cannot map ", path_));
  mapped_ = mapped;
  return absl::OkStatus();
}

// Reads the header rather than maps it: a file that shrinks now gives an error, not a signal.
absl::Status FileReader::LoadHeader() {
  if (file_bytes_ < kSafetensorsLengthBytes) {
    return BadFile(path_, absl::StrCat("it takes ", file_bytes_, " bytes, too few for a header"));
  }
  uint64_t length = 0;
  if (absl::Status status =
          ReadAt(fd_, path_, 0, reinterpret_cast<char*>(&length), kSafetensorsLengthBytes);
      !status.ok()) {
    return status;
  }
  const int64_t after_length = file_bytes_ - kSafetensorsLengthBytes;
  if (length > static_cast<uint64_t>(after_length) ||
      length > static_cast<uint64_t>(kSafetensorsMaxHeaderBytes)) {
    return BadFile(path_, absl::StrCat("its header should take ", length, " bytes, and there are ",
                                       after_length, " (at most ", kSafetensorsMaxHeaderBytes,
                                       " are allowed)"));
  }
  std::string text(length, '\0');
  if (absl::Status status = ReadAt(fd_, path_, kSafetensorsLengthBytes, text.data(), length);
      !status.ok()) {
    return status;
  }
  absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(text);
  if (!header.ok()) return BadFile(path_, std::string(header.status().message()));
  header_ = *std::move(header);
  data_begin_ = kSafetensorsLengthBytes + static_cast<int64_t>(length);
  if (header_.data_bytes != file_bytes_ - data_begin_) {
    return BadFile(path_, absl::StrCat("its tensors take ", header_.data_bytes, " bytes, and ",
                                       file_bytes_ - data_begin_, " follow the header"));
  }
  for (size_t i = 0; i < header_.tensors.size(); ++i) indices_[header_.tensors[i].name] = i;
  return absl::OkStatus();
}

absl::StatusOr<std::span<const std::byte>> FileReader::Tensor(const TensorInfo& wanted) const {
  const auto found = indices_.find(wanted.name);
  if (found == indices_.end()) {
    return absl::NotFoundError(
        absl::StrCat(path_, " has no tensor ", Quoted(wanted.name), kOtherFile));
  }
  const TensorInfo& tensor = header_.tensors[found->second];
  if (tensor.dtype != wanted.dtype || tensor.shape != wanted.shape) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": tensor ", Quoted(wanted.name), " is ",
                                                   Describe(tensor), " where ", Describe(wanted),
                                                   " is wanted"));
  }
  struct stat info = {};
  if (fstat(fd_, &info) != 0 || info.st_size < file_bytes_) {
    return absl::DataLossError(absl::StrCat(path_, " became shorter while in use", kOtherFile));
  }
  const auto* data = static_cast<const std::byte*>(mapped_) + data_begin_;
  return std::span(data + header_.begins[found->second], BytesOf(tensor));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SafetensorsReader>> SafetensorsReader::Open(
    const std::string& path) {
  // O_NONBLOCK: to open a pipe would wait for a writer.
  const int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  auto reader = std::make_unique<FileReader>(fd, path);
  if (absl::Status status = reader->Load(); !status.ok()) return status;
  return reader;
}

}  // namespace zerobox
