// SPDX-License-Identifier: Apache-2.0
#include "data/token_file.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace zerobox {
namespace {

// llm.c's token files: 256 int32, of which the first three say something.
constexpr int32_t kMagic = 20240520;
constexpr int32_t kVersion = 1;
constexpr int64_t kHeaderBytes = 256 * 4;
// Its other files (weights, 32-bit tokens, evaluations) begin with another day of that year.
constexpr int32_t kFirstOtherMagic = 20240101;
constexpr int32_t kLastOtherMagic = 20241231;

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

absl::Status ErrnoStatus(int error, const char* what, const std::string& path) {
  const absl::Status status = absl::ErrnoToStatus(error, absl::StrCat("cannot ", what, " ", path));
  return absl::Status(
      status.code(), absl::StrCat(status.message(),
                                  "; wanted a file that can be read; make it so, or name another"));
}

// What to say of something that is not a regular file.
absl::Status CheckRegular(const struct stat& info, const std::string& path) {
  if (S_ISREG(info.st_mode)) return absl::OkStatus();
  if (S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is a directory; name a file in it, or several by a pattern such as '",
                     path, path.ends_with('/') ? "" : "/", "*.txt'"));
  }
  const char* kind = S_ISFIFO(info.st_mode)                           ? "a pipe"
                     : S_ISSOCK(info.st_mode)                         ? "a socket"
                     : S_ISCHR(info.st_mode) || S_ISBLK(info.st_mode) ? "a device"
                                                                      : "no file";
  return absl::InvalidArgumentError(
      absl::StrCat(path, " is ", kind, ", and training reads a file again and again in any order; ",
                   "save its contents in a regular file"));
}

absl::Status BadHeader(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, " begins like a token file, but ", what, "; write it again"));
}

}  // namespace

TokenFile::TokenFile(int fd, std::string path, int64_t vocabulary)
    : fd_(fd), path_(std::move(path)), vocabulary_(vocabulary) {}

TokenFile::TokenFile(TokenFile&& other) noexcept { *this = std::move(other); }

TokenFile& TokenFile::operator=(TokenFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  std::swap(vocabulary_, other.vocabulary_);
  std::swap(tokens_, other.tokens_);
  std::swap(first_byte_, other.first_byte_);
  std::swap(token_bytes_, other.token_bytes_);
  return *this;
}

TokenFile::~TokenFile() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<TokenFile> TokenFile::Open(const std::string& path, int64_t vocabulary) {
  struct stat info = {};
  // Before opening: to open some devices is to act on them.
  if (stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, "find", path);
  if (absl::Status status = CheckRegular(info, path); !status.ok()) return status;
  // O_NONBLOCK: to open a pipe that took the file's place would wait for a writer.
  const int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, "open", path);
  TokenFile file(fd, path, vocabulary);
  if (fstat(fd, &info) != 0) return ErrnoStatus(errno, "examine", path);
  if (absl::Status status = CheckRegular(info, path); !status.ok()) return status;
  if (info.st_size == 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is empty; name a file with text in it"));
  }
  if (absl::Status status = file.ReadHeader(info.st_size); !status.ok()) return status;
  return file;
}

absl::Status TokenFile::ReadHeader(int64_t file_bytes) {
  tokens_ = file_bytes;
  std::array<int32_t, 3> header = {};
  const auto bytes = std::span(reinterpret_cast<unsigned char*>(header.data()), sizeof(header));
  const int64_t available = std::min<int64_t>(file_bytes, bytes.size());
  if (available < static_cast<int64_t>(sizeof(int32_t))) return absl::OkStatus();
  if (absl::Status status = ReadBytes(0, bytes.first(available)); !status.ok()) return status;
  const auto [magic, version, count] = header;
  if (magic != kMagic) {
    const bool swapped = __builtin_bswap32(magic) == kMagic;
    if (swapped || (magic >= kFirstOtherMagic && magic <= kLastOtherMagic)) {
      return BadHeader(path_, absl::StrCat("its first number is ", magic, " where ", kMagic,
                                           " is wanted (16-bit little-endian tokens)"));
    }
    return absl::OkStatus();
  }
  if (file_bytes < kHeaderBytes) {
    return BadHeader(path_, absl::StrCat("it ends after ", file_bytes,
                                         " bytes, within the header of ", kHeaderBytes));
  }
  if (version != kVersion) {
    return BadHeader(path_, absl::StrCat("its version is ", version, " where ", kVersion,
                                         " is wanted (16-bit tokens)"));
  }
  const int64_t body = file_bytes - kHeaderBytes;
  if (body % 2 != 0) {
    return BadHeader(path_, absl::StrCat("its tokens take an odd number of bytes, ", body,
                                         ", where 2 a token are wanted"));
  }
  if (count != body / 2) {
    return BadHeader(path_, absl::StrCat("it counts ", count, " tokens, wanted the ", body / 2,
                                         " that it holds"));
  }
  if (count == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, " is a token file without a token; name another"));
  }
  tokens_ = count;
  first_byte_ = kHeaderBytes;
  token_bytes_ = 2;
  return absl::OkStatus();
}

absl::Status TokenFile::ReadBytes(int64_t offset, std::span<unsigned char> out) const {
  while (!out.empty()) {
    const ssize_t got = pread(fd_, out.data(), out.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, "read", path_);
    if (got == 0) {
      return absl::DataLossError(
          absl::StrCat(path_, " became shorter while in use: nothing at byte ", offset,
                       "; leave the files of a run alone until it has ended, and start it again"));
    }
    out = out.subspan(got);
    offset += got;
  }
  return absl::OkStatus();
}

absl::Status TokenFile::Widen(int64_t begin, std::span<const unsigned char> in,
                              std::span<int32_t> out) const {
  int32_t largest = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = token_bytes_ == 1 ? in[i] : in[2 * i] | in[2 * i + 1] << 8;
    largest = std::max(largest, out[i]);
  }
  if (largest < vocabulary_) return absl::OkStatus();
  const auto bad =
      std::find_if(out.begin(), out.end(), [this](int32_t token) { return token >= vocabulary_; });
  return absl::InvalidArgumentError(
      absl::StrCat(path_, ": ", token_bytes_ == 1 ? "byte " : "token ", *bad, " at position ",
                   begin + (bad - out.begin()), " (from 0) is outside the vocabulary of ",
                   vocabulary_, "; raise --vocab_size above ", *bad, " or change the file"));
}

absl::Status TokenFile::Read(int64_t begin, std::span<int32_t> out) const {
  assert(begin >= 0 && begin <= tokens_ - static_cast<int64_t>(out.size()));
  std::array<unsigned char, 8192> buffer;
  for (size_t done = 0; done < out.size();) {
    const size_t count = std::min(out.size() - done, buffer.size() / token_bytes_);
    const auto bytes = std::span(buffer).first(count * token_bytes_);
    absl::Status status = ReadBytes(first_byte_ + (begin + done) * token_bytes_, bytes);
    if (status.ok()) status = Widen(begin + done, bytes, out.subspan(done, count));
    if (!status.ok()) {
      std::fill(out.begin(), out.end(), 0);
      return status;
    }
    done += count;
  }
  return absl::OkStatus();
}

int64_t TokenFile::bytes_to_check() const {
  return vocabulary_ >= int64_t{1} << (8 * token_bytes_) ? 0 : tokens_ * token_bytes_;
}

absl::Status TokenFile::CheckTokens(const std::function<void(int64_t bytes)>& on_read) const {
  if (bytes_to_check() == 0) return absl::OkStatus();
  std::array<int32_t, 4096> tokens;
  for (int64_t begin = 0; begin < tokens_; begin += tokens.size()) {
    const size_t count = std::min<int64_t>(tokens.size(), tokens_ - begin);
    if (absl::Status status = Read(begin, std::span(tokens).first(count)); !status.ok()) {
      return status;
    }
    on_read(static_cast<int64_t>(count) * token_bytes_);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> FindFiles(const std::string& pattern) {
  if (pattern.empty()) {
    return absl::InvalidArgumentError("no file is named; name a text file, or several by a glob");
  }
  if (pattern.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError("a file name cannot hold a zero byte");
  }
  struct stat info = {};
  if (stat(pattern.c_str(), &info) == 0) return std::vector<std::string>{pattern};
  const int error = errno;
  if (pattern.find_first_of("*?[") == std::string::npos) {
    if (error == ENOENT) {
      return absl::NotFoundError(
          absl::StrCat("there is no file ", pattern, "; name one that exists"));
    }
    return ErrnoStatus(error, "find", pattern);
  }
  glob_t found = {};
  const int result = glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found);
  std::vector<std::string> files;
  if (result == 0) files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  if (files.empty()) {
    return absl::NotFoundError(
        absl::StrCat("no file matches ", pattern, "; look for a mistake in the pattern"));
  }
  // Not in glob's order, which is the locale's.
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace zerobox
