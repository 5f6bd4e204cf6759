// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoints/safetensors.h"
#include "checkpoints/safetensors_header.h"

namespace zerobox {
namespace {

absl::Status ErrnoStatus(const char* what, const std::string& path) {
  const int error = errno;
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return absl::ErrnoToStatus(error, absl::StrCat("cannot ", what, " ", path,
                                                 full ? " (make room, or write elsewhere)" : ""));
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// A new file beside `path`. Not mkstemp, whose files only their owner may read.
absl::StatusOr<int> CreateBeside(const std::string& path, std::string* temporary) {
  static std::atomic<int64_t> counter = 0;
  do {
    *temporary = absl::StrCat(path, ".tmp.", getpid(), ".", counter++);
    const int fd = open(temporary->c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0) return fd;
    // A file of that name was left by a process that had this number and was killed.
  } while (errno == EEXIST);
  return ErrnoStatus("create", *temporary);
}

// So that the new name survives a loss of power. Some file systems cannot, and say EINVAL.
absl::Status SyncFolder(const std::string& folder) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus("open the folder", folder);
  absl::Status status;
  if (fsync(fd) != 0 && errno != EINVAL) status = ErrnoStatus("flush the folder", folder);
  close(fd);
  return status;
}

class FileWriter final : public SafetensorsWriter {
 public:
  FileWriter(int fd, std::string path, std::string temporary, std::vector<TensorInfo> tensors)
      : fd_(fd),
        path_(std::move(path)),
        temporary_(std::move(temporary)),
        tensors_(std::move(tensors)) {}

  ~FileWriter() override {
    if (fd_ >= 0) close(fd_);
    if (!temporary_.empty()) unlink(temporary_.c_str());
  }

  absl::Status WriteHeader(const std::string& text);
  absl::Status Write(std::span<const std::byte> bytes) override;
  absl::Status Finish() override;

 private:
  absl::Status Append(const void* data, size_t bytes);

  int fd_;
  const std::string path_;
  std::string temporary_;  // "": there is none any more
  const std::vector<TensorInfo> tensors_;
  size_t next_ = 0;      // tensor to write
  absl::Status failed_;  // the first failure: what follows it would be a file with a hole
};

absl::Status FileWriter::Append(const void* data, size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = write(fd_, from, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failed_ = ErrnoStatus("write", temporary_);
    from += written;
    bytes -= written;
  }
  return absl::OkStatus();
}

absl::Status FileWriter::WriteHeader(const std::string& text) {
  int64_t bytes = kSafetensorsLengthBytes + static_cast<int64_t>(text.size());
  for (const TensorInfo& tensor : tensors_) bytes += BytesOf(tensor);
  // A full disk is found now, and not after most of the file was written. File systems that cannot
  // reserve say so with other errors.
  if (fallocate(fd_, 0, 0, bytes) != 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) {
    return ErrnoStatus(absl::StrCat("reserve ", bytes, " bytes for").c_str(), path_);
  }
  const uint64_t length = text.size();
  if (absl::Status status = Append(&length, sizeof(length)); !status.ok()) return status;
  return Append(text.data(), text.size());
}

absl::Status FileWriter::Write(std::span<const std::byte> bytes) {
  if (!failed_.ok()) return failed_;
  if (fd_ < 0 || next_ == tensors_.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": all ", tensors_.size(), " tensors are written"));
  }
  const TensorInfo& tensor = tensors_[next_];
  if (static_cast<int64_t>(bytes.size()) != BytesOf(tensor)) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": tensor ", Quoted(tensor.name),
                                                   " takes ", BytesOf(tensor), " bytes; given ",
                                                   bytes.size()));
  }
  if (absl::Status status = Append(bytes.data(), bytes.size()); !status.ok()) return status;
  ++next_;
  return absl::OkStatus();
}

absl::Status FileWriter::Finish() {
  if (!failed_.ok()) return failed_;
  if (fd_ < 0) return absl::FailedPreconditionError(absl::StrCat(path_, " is already finished"));
  if (next_ < tensors_.size()) {
    return absl::FailedPreconditionError(absl::StrCat(path_, ": ", next_, " of ", tensors_.size(),
                                                      " tensors are written; the next is ",
                                                      Quoted(tensors_[next_].name)));
  }
  if (fsync(fd_) != 0) return failed_ = ErrnoStatus("flush", temporary_);
  const int fd = std::exchange(fd_, -1);
  if (close(fd) != 0) return failed_ = ErrnoStatus("close", temporary_);
  if (rename(temporary_.c_str(), path_.c_str()) != 0) {
    return failed_ = ErrnoStatus(absl::StrCat("rename ", temporary_, " to").c_str(), path_);
  }
  temporary_.clear();
  return failed_ = SyncFolder(FolderOf(path_));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::string& path, std::vector<TensorInfo> tensors,
    const std::map<std::string, std::string>& metadata) {
  absl::StatusOr<std::string> text = FormatSafetensorsHeader(tensors, metadata);
  if (!text.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", text.status().message()));
  }
  // Renaming a file over a device would replace the device.
  struct stat info = {};
  if (path.empty() || path.back() == '/' ||
      (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode))) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot write '", path, "', which is not a regular file; name a file"));
  }
  std::string temporary;
  absl::StatusOr<int> fd = CreateBeside(path, &temporary);
  if (!fd.ok()) return fd.status();
  auto writer = std::make_unique<FileWriter>(*fd, path, std::move(temporary), std::move(tensors));
  if (absl::Status status = writer->WriteHeader(*text); !status.ok()) return status;
  return writer;
}

}  // namespace zerobox
