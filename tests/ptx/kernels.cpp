// SPDX-License-Identifier: Apache-2.0
#include "tests/ptx/kernels.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "tests/ptx/library.h"

namespace zerobox::ptx {
namespace {

// The interpreter knows no random order.
constexpr char kFilter[] = "*Forward*:*Reverse*";

// Each kernel must have run when the tests have, in one instance at least.
class EveryKernel : public testing::Environment {
 public:
  explicit EveryKernel(const Library& library) : library_(library) {}
  void TearDown() override {
    const std::vector<std::string> missed = library_.MissedInstances();
    printf("ptx: %zu of %zu instances of kernels ran\n", library_.instances() - missed.size(),
           library_.instances());
    for (const std::string& instance : missed) printf("ptx: did not run: %s\n", instance.c_str());
    for (const std::string& kernel : library_.MissedKernels()) {
      ADD_FAILURE() << kernel << " was run by no test";
    }
  }

 private:
  const Library& library_;
};

// The sources with kernels of ours. The PTX of FOLDER/NAME.cu is build/nvcc/FOLDER/NAME.sm_90.ptx.
absl::Status AddAll(Library& library, const std::string& architecture) {
  std::vector<std::filesystem::path> sources = {"tests/emulation/gpu_kernels.cu"};
  for (const auto& entry : std::filesystem::directory_iterator("ops/cuda")) {
    if (entry.path().extension() == ".cu") sources.push_back(entry.path());
  }
  for (const auto& source : sources) {
    const auto ptx = "build/nvcc" / source.parent_path() / source.stem();
    absl::Status status =
        library.Add(ptx.string() + "." + architecture + ".ptx", source.filename());
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

int RunKernelTests(int argc, char** argv, const char* architecture) {
  testing::InitGoogleTest(&argc, argv);
  static Library library;
  if (absl::Status status = AddAll(library, architecture); !status.ok()) {
    fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  library.Install();
  if (testing::GTEST_FLAG(filter) == "*") {
    testing::GTEST_FLAG(filter) = kFilter;
    testing::AddGlobalTestEnvironment(new EveryKernel(library));
  }
  return RUN_ALL_TESTS();
}

}  // namespace zerobox::ptx
