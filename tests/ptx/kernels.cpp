// SPDX-License-Identifier: Apache-2.0
#include "tests/ptx/kernels.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/ptx/library.h"

namespace zerobox::ptx {
namespace {

// When the tests have run, so must have so many instances of kernels; or each kernel, in one
// instance at least.
class KernelsRan : public testing::Environment {
 public:
  KernelsRan(const Library& library, const KernelTests& tests) : library_(library), tests_(tests) {}
  void TearDown() override {
    const std::vector<std::string> missed = library_.MissedInstances();
    const size_t ran = library_.instances() - missed.size();
    printf("ptx: %zu of %zu instances of kernels ran\n", ran, library_.instances());
    EXPECT_GE(ran, tests_.least_instances);
    if (!tests_.every_kernel) return;
    for (const std::string& instance : missed) printf("ptx: did not run: %s\n", instance.c_str());
    for (const std::string& kernel : library_.MissedKernels()) {
      ADD_FAILURE() << kernel << " was run by no test";
    }
  }

 private:
  const Library& library_;
  const KernelTests tests_;
};

absl::Status AddSource(Library& library, const std::filesystem::path& source,
                       const std::string& architecture) {
  const auto ptx = ReadPtx(source, architecture);
  if (!ptx.ok()) return ptx.status();
  return library.Add(*ptx, source.filename());
}

absl::Status AddAllSources(Library& library, const std::string& architecture) {
  for (const auto& entry : std::filesystem::directory_iterator("ops/cuda")) {
    if (entry.path().extension() != ".cu") continue;
    absl::Status status = AddSource(library, entry.path(), architecture);
    if (!status.ok()) return status;
  }
  return AddSource(library, "tests/emulation/gpu_kernels.cu", architecture);
}

}  // namespace

absl::StatusOr<std::string> ReadPtx(const std::string& source, const std::string& architecture) {
  const auto path =
      "build/nvcc" / std::filesystem::path(source).replace_extension("." + architecture + ".ptx");
  std::ifstream file(path);
  if (!file)
    return absl::NotFoundError(
        absl::StrCat("there is no ", path.string(), ", which nvcc makes of ", source));
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

int RunKernelTests(int argc, char** argv, const KernelTests& tests) {
  testing::InitGoogleTest(&argc, argv);
  static Library library;
  if (absl::Status status = AddAllSources(library, tests.architecture); !status.ok()) {
    fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  library.Install();
  if (testing::GTEST_FLAG(filter) == "*") {
    testing::GTEST_FLAG(filter) = tests.filter;
    testing::AddGlobalTestEnvironment(new KernelsRan(library, tests));
  }
  return RUN_ALL_TESTS();
}

}  // namespace zerobox::ptx
