// SPDX-License-Identifier: Apache-2.0
//
// Library: a shared library that is looked for when one of its functions is first called. So the
// program starts on machines without it, and finds it where it is installed, also if the loader
// does not know that place.
#ifndef ZEROBOX_OPS_CUDA_LIBRARY_H_
#define ZEROBOX_OPS_CUDA_LIBRARY_H_

#include <string>
#include <vector>

namespace zerobox::cuda {

// Among folders: where the loader itself looks.
inline constexpr char kLoadersPath[] = "the loader's path (LD_LIBRARY_PATH)";

class Library {
 public:
  // `name`, "libnccl.so.2", is looked for in `folders`, in their order. Where one begins with "$",
  // "$CUDA_HOME/lib64", the environment's variable stands there, and where that is not set there is
  // no such folder. `needed` is a function that it must have; one that has not is too old, and the
  // search goes on.
  Library(const std::string& name, const std::vector<std::string>& folders,
          const char* needed = nullptr);
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  // Null where the library, or the function, is not there.
  template <typename Function>
  Function* Find(const char* function) const {
    return reinterpret_cast<Function*>(FindAddress(function));
  }
  // Why nothing of it can be called: "" when it can.
  const std::string& problem() const { return problem_; }

 private:
  void* FindAddress(const char* function) const;
  void* handle_ = nullptr;
  std::string problem_;
};

}  // namespace zerobox::cuda

#endif  // ZEROBOX_OPS_CUDA_LIBRARY_H_
