// SPDX-License-Identifier: Apache-2.0
//
// A file that is there whole or not at all.
#ifndef ZEROBOX_CHECKPOINTS_NEW_FILE_H_
#define ZEROBOX_CHECKPOINTS_NEW_FILE_H_

#include <string>
#include <string_view>

namespace zerobox {

// What `path` names lies in: "." or "/" where it says no other.
std::string FolderOf(const std::string& path);

// Takes its name in Finish, and replaces a file of that name then. Until then it has no name, where
// the file system has files without (O_TMPFILE): then nothing of it stays, however the process
// ends. Elsewhere it has a name beside its own, PATH.tmp.NUMBER.NUMBER, until Finish or the end of
// this object. Functions return errno, 0 for success.
class NewFile {
 public:
  NewFile() = default;
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  // Never opens a file that is there, nor what a link leads to. Mode 0666 less the umask.
  // `nameless`: false as if the file system had no files without a name, for tests.
  int Open(const std::string& path, bool nameless = true);
  int fd() const { return fd_; }  // -1 when it is not open
  // All of `bytes`, behind what was written before.
  int Write(std::string_view bytes);
  // Closes it, also where that or what follows fails.
  int Finish();

 private:
  int OpenNamed();
  int Name();
  // The next temporary name.
  std::string NextName() const;

  std::string path_;
  std::string temporary_;  // "": it has no name
  int fd_ = -1;
};

}  // namespace zerobox

#endif  // ZEROBOX_CHECKPOINTS_NEW_FILE_H_
