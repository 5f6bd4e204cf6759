// SPDX-License-Identifier: Apache-2.0
#ifndef ZEROBOX_TESTS_EMULATION_SYMBOLS_H_
#define ZEROBOX_TESTS_EMULATION_SYMBOLS_H_

#include <string>

namespace zerobox::simt {

// Of an address in this program's code, as binutils' addr2line has them; "?" where it is missing.
// Slow: for reports.
std::string FunctionName(const void* code);
std::string SourceLine(const void* code);  // file:line

// The name of the function that begins at this address, with namespaces, template arguments and
// parameters: the same whatever compiler made it, and in whichever file's unnamed namespace it is.
std::string FullName(const void* function);
std::string Demangle(const std::string& mangled);

}  // namespace zerobox::simt

#endif  // ZEROBOX_TESTS_EMULATION_SYMBOLS_H_
