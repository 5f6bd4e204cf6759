// SPDX-License-Identifier: Apache-2.0
//
// Files that the build puts into the program, byte for byte: those that the Makefile lists as
// `embedded_files`.
#ifndef ZEROBOX_TRAINER_EMBEDDED_H_
#define ZEROBOX_TRAINER_EMBEDDED_H_

#include <span>
#include <string_view>

namespace zerobox {

struct EmbeddedFile {
  std::string_view path;  // "trainer/report/template.html"
  std::string_view bytes;
};
std::span<const EmbeddedFile> EmbeddedFiles();
// The bytes of the file of this path; aborts for one that is not embedded.
std::string_view Embedded(std::string_view path);

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_EMBEDDED_H_
