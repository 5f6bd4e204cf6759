// SPDX-License-Identifier: Apache-2.0
#include "tests/emulation/symbols.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>

namespace zerobox::simt {
namespace {

using NameAndLine = std::pair<std::string, std::string>;

std::string ReadLine(FILE* file) {
  std::array<char, 1024> line = {};
  if (fgets(line.data(), line.size(), file) == nullptr) return "?";
  std::string text = line.data();
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

NameAndLine LookUp(const void* code) {
  Dl_info info;
  if (dladdr(code, &info) == 0) return {"?", "?"};
  const uintptr_t offset =
      reinterpret_cast<uintptr_t>(code) - reinterpret_cast<uintptr_t>(info.dli_fbase);
  std::array<char, 256> command = {};
  snprintf(command.data(), command.size(), "addr2line -Cfse /proc/%d/exe 0x%zx 2>/dev/null",
           static_cast<int>(getpid()), static_cast<size_t>(offset));
  FILE* output = popen(command.data(), "r");
  if (output == nullptr) return {"?", "?"};
  NameAndLine result = {ReadLine(output), ""};
  result.second = ReadLine(output);
  pclose(output);
  // Without the return type, namespaces and arguments, and what addr2line adds to the line.
  std::string& name = result.first;
  constexpr char kUnnamed[] = "(anonymous namespace)";
  if (const size_t at = name.find(kUnnamed); at != std::string::npos) {
    name.erase(0, at + sizeof(kUnnamed) + 1);
  }
  name = name.substr(0, name.find('('));
  result.second = result.second.substr(0, result.second.find(' '));
  return result;
}

const NameAndLine& Find(const void* code) {
  static std::mutex mutex;
  static std::map<const void*, NameAndLine> known;
  std::scoped_lock lock(mutex);
  const auto [found, is_new] = known.try_emplace(code);
  if (is_new) found->second = LookUp(code);
  return found->second;
}

}  // namespace

std::string Demangle(const std::string& mangled) {
  int status = 0;
  char* name = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status);
  if (name == nullptr) return mangled;
  std::string demangled = name;
  std::free(name);
  return demangled;
}

namespace {

// This program's functions, as binutils' nm has them.
std::map<uintptr_t, std::string> ReadFunctions() {
  std::array<char, 64> command = {};
  snprintf(command.data(), command.size(), "nm /proc/%d/exe 2>/dev/null",
           static_cast<int>(getpid()));
  std::map<uintptr_t, std::string> functions;
  FILE* output = popen(command.data(), "r");
  if (output == nullptr) return functions;
  unsigned long address;
  char kind;
  std::array<char, 4096> name = {};
  while (true) {
    const int read = fscanf(output, "%lx %c %4095s", &address, &kind, name.data());
    if (read == EOF) break;
    if (read == 3) {
      if (kind == 't' || kind == 'T' || kind == 'W') functions[address] = name.data();
    } else if (fscanf(output, "%*[^\n]") == EOF) {  // a symbol without an address
      break;
    }
  }
  pclose(output);
  return functions;
}

}  // namespace

std::string FullName(const void* function) {
  static const auto& functions = *new auto(ReadFunctions());
  Dl_info info;
  if (dladdr(function, &info) == 0) return "?";
  const auto found = functions.find(reinterpret_cast<uintptr_t>(function) -
                                    reinterpret_cast<uintptr_t>(info.dli_fbase));
  return found == functions.end() ? "?" : Demangle(found->second);
}

std::string FunctionName(const void* code) { return Find(code).first; }
std::string SourceLine(const void* code) { return Find(code).second; }

}  // namespace zerobox::simt
