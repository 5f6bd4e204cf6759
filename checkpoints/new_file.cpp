// SPDX-License-Identifier: Apache-2.0
#include "checkpoints/new_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"

namespace zerobox {
namespace {

// The name by which a file that has none can be linked; linkat with AT_EMPTY_PATH wants privileges.
std::string ByDescriptor(int fd) { return absl::StrCat("/proc/self/fd/", fd); }

}  // namespace

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

NewFile::~NewFile() {
  if (fd_ >= 0) close(fd_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

std::string NewFile::NextName() const {
  static std::atomic<int64_t> counter = 0;
  return absl::StrCat(path_, ".tmp.", getpid(), ".", counter++);
}

int NewFile::Open(const std::string& path, bool nameless) {
  path_ = path;
  // A name that is too long is an error now, and not when all is written.
  struct stat info = {};
  if (lstat(NextName().c_str(), &info) != 0 && errno != ENOENT) return errno;
  if (nameless) fd_ = open(FolderOf(path).c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
  if (fd_ < 0) return OpenNamed();
  if (access(ByDescriptor(fd_).c_str(), F_OK) == 0) return 0;
  close(std::exchange(fd_, -1));  // there is no /proc to name it by
  return OpenNamed();
}

int NewFile::OpenNamed() {
  do {
    const std::string name = NextName();
    // Not mkstemp, whose files only their owner may read.
    fd_ = open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ >= 0) temporary_ = name;
    // A file of that name was left by a process that had this number and was killed.
  } while (fd_ < 0 && errno == EEXIST);
  return fd_ < 0 ? errno : 0;
}

// Linked to a temporary name first, since a link replaces nothing.
int NewFile::Name() {
  for (;;) {
    const std::string name = NextName();
    if (linkat(AT_FDCWD, ByDescriptor(fd_).c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) ==
        0) {
      temporary_ = name;
      return 0;
    }
    if (errno != EEXIST) return errno;
  }
}

int NewFile::Write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) return errno;
    if (written > 0) bytes.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

int NewFile::Finish() {
  int error = temporary_.empty() ? Name() : 0;
  if (close(std::exchange(fd_, -1)) != 0 && error == 0) error = errno;
  if (error == 0 && std::rename(temporary_.c_str(), path_.c_str()) != 0) error = errno;
  if (error == 0) temporary_.clear();
  return error;
}

}  // namespace zerobox
