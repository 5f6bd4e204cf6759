// SPDX-License-Identifier: Apache-2.0
//
// Which devices a run gets, on machines with GPUs and without.
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/reflection.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/resolve.h"

namespace zerobox {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// With NVLink and NCCL; GPU number n has 3000 - 100 n bytes free.
Machine WithGpus(int gpus) {
  return {.cores = 6,
          .available_memory = 1000000,
          .count_gpus = [gpus] { return gpus; },
          .free_gpu_memory = [](int gpu) { return 3000 - 100 * gpu; },
          .check_nccl = [] { return absl::OkStatus(); },
          .links =
              [](int used) {
                const int pairs = used * (used - 1) / 2;
                return GpuLinks{.pairs = pairs, .peers = pairs, .nvlinks = pairs};
              }};
}

absl::StatusOr<ResolvedTrain> Resolve(std::vector<std::string> arguments, const Machine& machine) {
  const absl::FlagSaver saver;
  arguments.emplace_back("--data=book.txt");
  const absl::StatusOr<CommandLine> line = ParseArguments(kTrainCommand, arguments);
  if (!line.ok()) return line.status();
  return ResolveTrain(*line, machine);
}

std::string ErrorOf(const std::vector<std::string>& arguments, const Machine& machine) {
  const absl::StatusOr<ResolvedTrain> resolved = Resolve(arguments, machine);
  return resolved.ok() ? "" : std::string(resolved.status().message());
}

// The value of a flag as the run has it, and where it comes from.
std::pair<std::string, std::string> Found(const ResolvedTrain& resolved, const std::string& name) {
  for (const ResolvedFlag& flag : resolved.flags) {
    if (flag.name == name) return {Text(flag.value), flag.source};
  }
  return {};
}

std::pair<std::string, std::string> Is(const char* value, const char* source) {
  return {value, source};
}

TEST(ResolveDevices, TakesAGpuWhereThereIsOne) {
  for (const char* device : {"--device=auto", "--device=cuda"}) {
    const ResolvedTrain resolved = Resolve({device}, WithGpus(1)).value();
    const bool derived = std::string(device) == "--device=auto";
    EXPECT_EQ(Found(resolved, "device"), Is("cuda", derived ? "derived" : "flag"));
    EXPECT_EQ(Found(resolved, "devices"), Is("1", "derived"));
    EXPECT_EQ(Found(resolved, "virtual"), Is("false", "default"));
    EXPECT_EQ(Found(resolved, "dtype"), Is("bf16", "derived"));
    EXPECT_EQ(Found(resolved, "device_memory"), Is("2700", "derived"));  // 90% of 3000
    EXPECT_EQ(resolved.settings.device, "cuda");
    EXPECT_EQ(resolved.settings.devices, 1);
    EXPECT_EQ(resolved.settings.dtype, DType::kBFloat16);
    EXPECT_EQ(resolved.settings.threads, 6);
    EXPECT_EQ(resolved.settings.global_batch(), 4);
    EXPECT_EQ(resolved.about_devices, "");
  }
  const ResolvedTrain given =
      Resolve({"--devices=1", "--dtype=fp32", "--device_memory=500"}, WithGpus(1)).value();
  EXPECT_EQ(Found(given, "device"), Is("cuda", "derived"));
  EXPECT_EQ(Found(given, "dtype"), Is("fp32", "flag"));
  EXPECT_EQ(Found(given, "device_memory"), Is("500", "flag"));
  EXPECT_THAT(ErrorOf({"--dtype=fp8"}, WithGpus(1)), HasSubstr("leave the flag out for bf16"));
}

TEST(ResolveDevices, TakesAllGpus) {
  for (const char* device : {"--device=auto", "--device=cuda"}) {
    const ResolvedTrain resolved = Resolve({device}, WithGpus(8)).value();
    EXPECT_EQ(resolved.settings.device, "cuda");
    EXPECT_EQ(Found(resolved, "devices"), Is("8", "derived"));
    EXPECT_EQ(Found(resolved, "dtype"), Is("bf16", "derived"));
    EXPECT_EQ(Found(resolved, "device_memory"), Is("2070", "derived"));  // 90% of the last's 2300
    EXPECT_FALSE(resolved.settings.virtual_devices);
    EXPECT_EQ(resolved.about_devices, "NVLink between all GPUs");
  }
  // No more than devices can be.
  EXPECT_EQ(Found(Resolve({"--device_memory=1MiB"}, WithGpus(100)).value(), "devices"),
            Is("64", "derived"));
}

TEST(ResolveDevices, TakesTheFirstGpusWhereFewerAreWanted) {
  const ResolvedTrain resolved = Resolve({"--devices=3"}, WithGpus(8)).value();
  EXPECT_EQ(resolved.settings.device, "cuda");
  EXPECT_EQ(Found(resolved, "devices"), Is("3", "flag"));
  EXPECT_EQ(Found(resolved, "device_memory"), Is("2520", "derived"));  // 90% of the third's 2800
}

TEST(ResolveDevices, TakesHostDevicesWhereMoreAreWantedThanThereAreGpus) {
  const ResolvedTrain one = Resolve({"--devices=4"}, WithGpus(1)).value();
  EXPECT_EQ(Found(one, "device"), Is("host", "derived"));
  EXPECT_EQ(one.settings.devices, 4);
  EXPECT_EQ(one.settings.dtype, DType::kFloat32);
  EXPECT_EQ(one.settings.device_memory_bytes, 225000);
  EXPECT_EQ(one.about_devices,
            "host devices: this machine has 1 GPU for 4 devices; --virtual puts them all on it");
  EXPECT_EQ(Resolve({"--devices=4"}, WithGpus(2))->about_devices,
            "host devices: this machine has 2 GPUs for 4 devices; --virtual puts them all on one");
  const ResolvedTrain asked = Resolve({"--device=host"}, WithGpus(8)).value();
  EXPECT_EQ(Found(asked, "device"), Is("host", "flag"));
  EXPECT_EQ(asked.settings.devices, 4);
  EXPECT_EQ(asked.about_devices, "");
}

TEST(ResolveDevices, RefusesMoreDevicesThanGpusAndNamesVirtual) {
  EXPECT_THAT(ErrorOf({"--device=cuda", "--devices=4"}, WithGpus(1)),
              AllOf(HasSubstr("--device=cuda with --devices=4"), HasSubstr("found 1 GPU;"),
                    HasSubstr("give --devices=1"), HasSubstr("--virtual")));
  EXPECT_THAT(ErrorOf({"--device=cuda", "--devices=4"}, WithGpus(3)),
              AllOf(HasSubstr("found 3 GPUs;"), HasSubstr("give --devices=3")));
  EXPECT_EQ(ErrorOf({"--device=cuda", "--devices=4"}, WithGpus(4)), "");
}

TEST(ResolveDevices, PutsAllDevicesOnOneGpuWhereThatIsAskedFor) {
  for (const char* device : {"--device=auto", "--device=cuda"}) {
    const ResolvedTrain resolved =
        Resolve({device, "--virtual", "--devices=8"}, WithGpus(2)).value();
    EXPECT_EQ(resolved.settings.device, "cuda");
    EXPECT_TRUE(resolved.settings.virtual_devices);
    EXPECT_EQ(Found(resolved, "virtual"), Is("true", "flag"));
    EXPECT_EQ(Found(resolved, "devices"), Is("8", "flag"));
    EXPECT_EQ(Found(resolved, "dtype"), Is("bf16", "derived"));
    EXPECT_EQ(Found(resolved, "device_memory"), Is("337", "derived"));  // 2700 of the first, by 8
    EXPECT_EQ(resolved.about_devices, "8 ranks on one GPU, collectives are copies and sums there");
  }
  const ResolvedTrain four = Resolve({"--virtual"}, WithGpus(1)).value();
  EXPECT_EQ(Found(four, "devices"), Is("4", "default"));
  EXPECT_EQ(Found(four, "device"), Is("cuda", "derived"));
  EXPECT_EQ(Resolve({"--virtual", "--devices=1"}, WithGpus(1))->about_devices, "");
  EXPECT_EQ(ErrorOf({"--virtual", "--devices=64"}, WithGpus(1)), "");
  EXPECT_THAT(ErrorOf({"--virtual", "--devices=65"}, WithGpus(1)),
              HasSubstr("--devices=65: wanted a whole number from 1 to 64"));
}

TEST(ResolveDevices, NeedsAGpuToPutDevicesOn) {
  EXPECT_THAT(ErrorOf({"--virtual", "--device=host"}, WithGpus(1)),
              AllOf(HasSubstr("--virtual with --device=host"), HasSubstr("leave --virtual out"),
                    HasSubstr("--device=cuda")));
  Machine machine = WithGpus(1);
  machine.count_gpus = [] { return absl::UnavailableError("no driver"); };
  EXPECT_EQ(ErrorOf({"--virtual"}, machine), "--virtual: no driver; leave --virtual out");
  EXPECT_EQ(ErrorOf({"--virtual", "--device=cuda"}, machine),
            "--virtual: no driver; leave --virtual out and use --device=host");
}

TEST(ResolveDevices, SaysWhyABuildWithoutCudaTakesNoGpu) {
  Machine machine = WithGpus(0);
  machine.count_gpus = [] { return absl::UnimplementedError("built without CUDA"); };
  EXPECT_EQ(Resolve({}, machine)->about_devices, "");
  machine.nvidia_driver = true;
  const ResolvedTrain resolved = Resolve({}, machine).value();
  EXPECT_EQ(resolved.settings.device, "host");
  EXPECT_EQ(resolved.about_devices,
            "host devices: this machine has a GPU, but this build no CUDA: make CUDA=1");
  EXPECT_EQ(Resolve({"--device=host"}, machine)->about_devices, "");
  EXPECT_THAT(ErrorOf({"--device=cuda"}, machine), HasSubstr("--device=cuda: built without CUDA"));
}

TEST(ResolveDevices, RefusesSeveralGpusWithoutNccl) {
  Machine machine = WithGpus(4);
  machine.check_nccl = [] { return absl::UnimplementedError("libnccl.so.2 is nowhere"); };
  EXPECT_EQ(ErrorOf({"--device=cuda"}, machine),
            "--device=cuda with --devices=4: libnccl.so.2 is nowhere; or give --devices=1, or "
            "--virtual");
  // Which one GPU does not need, nor several devices on one; and auto has something else.
  EXPECT_EQ(Resolve({"--device=cuda", "--devices=1"}, machine)->settings.device, "cuda");
  EXPECT_EQ(Resolve({"--devices=4", "--virtual"}, machine)->settings.device, "cuda");
  const ResolvedTrain one = Resolve({}, machine).value();
  EXPECT_EQ(one.settings.device, "cuda");
  EXPECT_EQ(one.settings.devices, 1);
  EXPECT_EQ(one.about_devices,
            "one GPU: NCCL, which 4 GPUs need, is not here; --device=cuda says more");
  const ResolvedTrain host = Resolve({"--devices=4"}, machine).value();
  EXPECT_EQ(host.settings.device, "host");
  EXPECT_EQ(host.about_devices,
            "host devices: NCCL, which 4 GPUs need, is not here; --device=cuda says more");
}

TEST(ResolveDevices, AsksForGpusOnlyWhereTheyMayBeUsed) {
  int asked = 0;
  Machine machine = WithGpus(0);
  machine.count_gpus = [&asked] { return ++asked; };
  machine.free_gpu_memory = [&asked](int) { return ++asked; };
  machine.check_nccl = [&asked] { return absl::InternalError(std::to_string(++asked)); };
  EXPECT_TRUE(Resolve({"--device=host"}, machine).ok());
  EXPECT_EQ(asked, 0);
  EXPECT_TRUE(Resolve({"--device_memory=1GiB"}, machine).ok());  // one GPU
  EXPECT_EQ(asked, 1);
  asked = 0;
  EXPECT_TRUE(Resolve({"--devices=2"}, machine).ok());  // host devices
  EXPECT_EQ(asked, 1);
}

TEST(ResolveDevices, AFailureOfTheGpuIsSaid) {
  Machine machine = WithGpus(8);
  machine.free_gpu_memory = [](int gpu) -> absl::StatusOr<int64_t> {
    if (gpu == 5) return absl::InternalError("cudaMemGetInfo: broken");
    return 1000;
  };
  EXPECT_THAT(ErrorOf({}, machine), HasSubstr("cudaMemGetInfo: broken"));
  EXPECT_EQ(ErrorOf({"--devices=5"}, machine), "") << "the sixth is not used";
  machine = WithGpus(8);
  machine.links = [](int) { return absl::InternalError("cudaDeviceGetP2PAttribute: broken"); };
  EXPECT_THAT(ErrorOf({}, machine), HasSubstr("cudaDeviceGetP2PAttribute: broken"));
  machine.count_gpus = [] { return absl::UnavailableError("no driver"); };
  const ResolvedTrain host = Resolve({}, machine).value();
  EXPECT_EQ(host.settings.device, "host");
  EXPECT_EQ(host.about_devices, "host devices: no driver");
  EXPECT_EQ(ErrorOf({"--device=cuda"}, machine), "--device=cuda: no driver; use --device=host");
  machine.count_gpus = [] { return absl::UnimplementedError("no CUDA"); };
  EXPECT_EQ(Resolve({}, machine)->about_devices, "") << "as this build was made";
}

TEST(ResolveDevices, ADryRunMayBeOfGpusThatAreNotHere) {
  Machine machine = WithGpus(8);
  machine.count_gpus = [] { return absl::UnavailableError("no driver"); };
  machine.free_gpu_memory = [](int) { return absl::UnavailableError("no driver"); };
  const std::vector<std::string> dry = {"--device=cuda", "--dry_run", "--device_memory=5000"};
  const ResolvedTrain one = Resolve(dry, machine).value();
  EXPECT_EQ(one.settings.device, "cuda");
  EXPECT_EQ(one.settings.devices, 1);
  EXPECT_EQ(one.settings.dtype, DType::kBFloat16);
  EXPECT_EQ(one.settings.device_memory_bytes, 5000);
  EXPECT_EQ(one.about_devices, "GPUs of another machine: this one has not as many");
  const auto with = [&](const char* flag) {
    std::vector<std::string> arguments = dry;
    arguments.emplace_back(flag);
    return arguments;
  };
  EXPECT_EQ(Resolve(with("--devices=8"), machine)->settings.devices, 8);
  EXPECT_EQ(Resolve(with("--virtual"), machine)->settings.devices, 4);
  const ResolvedTrain shared =
      Resolve({"--virtual", "--dry_run", "--device_memory=5000"}, machine).value();
  EXPECT_EQ(shared.settings.device, "cuda");
  EXPECT_THAT(ErrorOf({"--device=cuda", "--dry_run"}, machine),
              HasSubstr("found no such GPUs here to ask; give --device_memory"));
  EXPECT_THAT(ErrorOf({"--device=cuda", "--device_memory=5000"}, machine), HasSubstr("no driver"));
  EXPECT_EQ(Resolve(dry, WithGpus(2))->settings.devices, 2) << "those that are here";
  EXPECT_EQ(Resolve(with("--devices=8"), WithGpus(2))->settings.devices, 8);
  EXPECT_EQ(Resolve(with("--devices=8"), WithGpus(2))->about_devices, one.about_devices);
}

TEST(ResolveDevices, SaysHowGpusAreLinked) {
  EXPECT_EQ(DescribeLinks({.pairs = 28, .peers = 28, .nvlinks = 28}), "NVLink between all GPUs");
  EXPECT_EQ(DescribeLinks({.pairs = 6, .peers = 6, .nvlinks = 0}),
            "GPUs reach each other over PCIe, without NVLink");
  EXPECT_EQ(DescribeLinks({.pairs = 6, .peers = 6, .nvlinks = 2}),
            "NVLink between 2 of 6 pairs of GPUs, PCIe between the others");
  EXPECT_EQ(DescribeLinks({.pairs = 6, .peers = 2, .nvlinks = 2}),
            "no peer access between 4 of 6 pairs of GPUs: NCCL goes through the machine's memory, "
            "slower");
  EXPECT_EQ(DescribeLinks({.pairs = 1, .peers = 0, .nvlinks = 0}),
            "no peer access between GPUs: NCCL goes through the machine's memory, slower");
  Machine machine = WithGpus(4);
  machine.links = [](int gpus) { return GpuLinks{.pairs = gpus}; };
  EXPECT_EQ(Resolve({"--devices=3"}, machine)->about_devices,
            "no peer access between GPUs: NCCL goes through the machine's memory, slower");
}

TEST(ResolveDevices, GivesTheWatchItsTime) {
  EXPECT_EQ(Resolve({}, WithGpus(1))->settings.collective_timeout_seconds, 600);
  const ResolvedTrain never = Resolve({"--collective_timeout=0"}, WithGpus(1)).value();
  EXPECT_EQ(never.settings.collective_timeout_seconds, 0);
  EXPECT_EQ(Found(never, "collective_timeout"), Is("0", "flag"));
}

}  // namespace
}  // namespace zerobox
