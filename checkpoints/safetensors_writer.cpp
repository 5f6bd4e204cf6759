// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoints/new_file.h"
#include "checkpoints/safetensors.h"
#include "checkpoints/safetensors_header.h"

namespace zerobox {
namespace {

absl::Status ErrnoStatus(const char* what, const std::string& path, int error = errno) {
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return absl::ErrnoToStatus(error, absl::StrCat("cannot ", what, " ", path,
                                                 full ? " (make room, or write elsewhere)" : ""));
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
  FileWriter(std::string path, std::vector<TensorInfo> tensors)
      : path_(std::move(path)), tensors_(std::move(tensors)) {}

  absl::Status Open(const std::string& header);
  absl::Status Write(std::span<const std::byte> bytes) override;
  absl::Status Finish() override;

 private:
  absl::Status WriteHeader(const std::string& text);
  absl::Status Append(const void* data, size_t bytes);

  NewFile file_;
  const std::string path_;
  const std::vector<TensorInfo> tensors_;
  size_t next_ = 0;      // tensor to write
  absl::Status failed_;  // the first failure: what follows it would be a file with a hole
};

absl::Status FileWriter::Append(const void* data, size_t bytes) {
  const int error = file_.Write({static_cast<const char*>(data), bytes});
  if (error != 0) failed_ = ErrnoStatus("write", path_, error);
  return failed_;
}

absl::Status FileWriter::Open(const std::string& header) {
  if (const int error = file_.Open(path_); error != 0) return ErrnoStatus("create", path_, error);
  return WriteHeader(header);
}

absl::Status FileWriter::WriteHeader(const std::string& text) {
  int64_t bytes = kSafetensorsLengthBytes + static_cast<int64_t>(text.size());
  for (const TensorInfo& tensor : tensors_) bytes += BytesOf(tensor);
  // A full disk is found now, and not after most of the file was written. File systems that cannot
  // reserve say so with other errors.
  if (fallocate(file_.fd(), 0, 0, bytes) != 0 &&
      (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) {
    return ErrnoStatus(absl::StrCat("reserve ", bytes, " bytes for").c_str(), path_);
  }
  const uint64_t length = text.size();
  if (absl::Status status = Append(&length, sizeof(length)); !status.ok()) return status;
  return Append(text.data(), text.size());
}

absl::Status FileWriter::Write(std::span<const std::byte> bytes) {
  if (!failed_.ok()) return failed_;
  if (file_.fd() < 0 || next_ == tensors_.size()) {
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
  if (file_.fd() < 0)
    return absl::FailedPreconditionError(absl::StrCat(path_, " is already finished"));
  if (next_ < tensors_.size()) {
    return absl::FailedPreconditionError(absl::StrCat(path_, ": ", next_, " of ", tensors_.size(),
                                                      " tensors are written; the next is ",
                                                      Quoted(tensors_[next_].name)));
  }
  if (fsync(file_.fd()) != 0) return failed_ = ErrnoStatus("flush", path_);
  if (const int error = file_.Finish(); error != 0) {
    return failed_ = ErrnoStatus("give its name to", path_, error);
  }
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
  auto writer = std::make_unique<FileWriter>(path, std::move(tensors));
  if (absl::Status status = writer->Open(*text); !status.ok()) return status;
  return writer;
}

}  // namespace zerobox
