// SPDX-License-Identifier: Apache-2.0
#ifndef ZEROBOX_TESTS_EMULATION_SYMBOLS_H_
#define ZEROBOX_TESTS_EMULATION_SYMBOLS_H_

#include <string>

namespace zerobox::simt {

// Of an address in this program's code, as binutils' addr2line has them; "?" where it is missing.
// Slow: for reports.
std::string FunctionName(const void* code);
std::string SourceLine(const void* code);  // file:line

}  // namespace zerobox::simt

#endif  // ZEROBOX_TESTS_EMULATION_SYMBOLS_H_
