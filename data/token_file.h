// SPDX-License-Identifier: Apache-2.0
//
// TokenFile: one file of a corpus, read as tokens.
#ifndef ZEROBOX_DATA_TOKEN_FILE_H_
#define ZEROBOX_DATA_TOKEN_FILE_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace zerobox {

// Movable, owns a file descriptor. Read from any number of threads.
//
// The file is read with pread and not mapped: tokens are widened, so they are copied anyway, and a
// mapped file that another program truncates ends the process with SIGBUS where pread returns less.
class TokenFile {
 public:
  // Which files are token files is said in dataset.h. Errors: not a regular file, unreadable,
  // empty, a header that does not agree with the file's size.
  static absl::StatusOr<TokenFile> Open(const std::string& path, int64_t vocabulary);
  TokenFile(TokenFile&& other) noexcept;
  TokenFile& operator=(TokenFile&& other) noexcept;
  ~TokenFile();

  const std::string& path() const { return path_; }
  int64_t tokens() const { return tokens_; }

  // Tokens [begin, begin + out.size()), which must lie in the file. On an error `out` holds zeros:
  // InvalidArgument for a token >= vocabulary, DataLoss when the file is shorter than it was.
  absl::Status Read(int64_t begin, std::span<int32_t> out) const;

  // Reads the whole file for a token >= vocabulary, of bytes_to_check() bytes: 0 when no token can
  // be. Calls `on_read` with the number of bytes after each piece.
  absl::Status CheckTokens(const std::function<void(int64_t bytes)>& on_read) const;
  int64_t bytes_to_check() const;

 private:
  TokenFile(int fd, std::string path, int64_t vocabulary);
  absl::Status ReadHeader(int64_t file_bytes);
  absl::Status ReadBytes(int64_t offset, std::span<unsigned char> out) const;
  absl::Status Widen(int64_t begin, std::span<const unsigned char> in,
                     std::span<int32_t> out) const;

  int fd_ = -1;
  std::string path_;
  int64_t vocabulary_ = 0;
  int64_t tokens_ = 0;
  int64_t first_byte_ = 0;
  int64_t token_bytes_ = 1;
};

// The files that `pattern` names, in the order of their names' bytes. A file with exactly this name
// is taken as it is, else the pattern is a glob. Errors: empty pattern, no such file, no match.
absl::StatusOr<std::vector<std::string>> FindFiles(const std::string& pattern);

}  // namespace zerobox

#endif  // ZEROBOX_DATA_TOKEN_FILE_H_
