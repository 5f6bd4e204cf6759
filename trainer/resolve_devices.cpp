// SPDX-License-Identifier: Apache-2.0
//
// Which devices a run gets.
#include <algorithm>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "trainer/resolver.h"
#include "trainer/table_rows.h"

namespace zerobox {
namespace {

struct Choice {
  int gpus = 0;            // that are used; 0: host devices
  bool elsewhere = false;  // not on this machine, which has fewer
  std::string why_fewer;   // where more, or any, would have been thinkable
};

absl::Status Refuse(const std::string& what, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(what, ": ", why));
}

// A dry run needs no GPU, so it may be of another machine's.
absl::StatusOr<Choice> GpusElsewhere(const Resolver& resolver, bool on_one_gpu) {
  if (!resolver.Given("device_memory")) {
    return Refuse(
        "--device=cuda with --dry_run",
        "wanted to know how much memory each GPU has, found no such GPUs here to ask; give "
        "--device_memory, for instance 72GiB, which is 90% of 80GiB");
  }
  const bool one = on_one_gpu || !resolver.Given("devices");
  return Choice{.gpus = one ? 1 : static_cast<int>(absl::GetFlag(FLAGS_devices)),
                .elsewhere = true};
}

// Of GPUs only: how many --device=auto and --device=cuda take, each a device.
absl::StatusOr<Choice> ChooseGpus(const Resolver& resolver, const Machine& machine, int found,
                                  bool may_be_host) {
  const int64_t most = FindFlag("devices")->range.max;
  const int64_t devices =
      resolver.Given("devices") ? absl::GetFlag(FLAGS_devices) : std::min<int64_t>(found, most);
  const std::string gpus = Plural(found, "GPU", "GPUs");
  const std::string asked = absl::StrCat("--device=cuda with --devices=", devices);
  if (devices > found) {
    if (!may_be_host && absl::GetFlag(FLAGS_dry_run)) return GpusElsewhere(resolver, false);
    if (may_be_host) {
      return Choice{.why_fewer = absl::StrCat("this machine has ", gpus, " for ", devices,
                                              " devices; --virtual puts them all on ",
                                              found == 1 ? "it" : "one")};
    }
    return Refuse(asked, absl::StrCat("wanted a GPU for each device, found ", gpus,
                                      "; give --devices=", found,
                                      ", or --virtual, which puts all devices on one GPU, or "
                                      "--device=host"));
  }
  if (devices > 1) {
    if (const absl::Status nccl = machine.check_nccl(); !nccl.ok()) {
      const std::string why =
          absl::StrCat("NCCL, which ", devices, " GPUs need, is not here; --device=cuda says more");
      if (may_be_host && !resolver.Given("devices")) return Choice{.gpus = 1, .why_fewer = why};
      if (may_be_host) return Choice{.why_fewer = why};
      return Refuse(asked, absl::StrCat(nccl.message(), "; or give --devices=1, or --virtual"));
    }
  }
  return Choice{.gpus = static_cast<int>(devices)};
}

absl::StatusOr<Choice> Choose(Resolver& resolver, const Machine& machine, bool on_one_gpu) {
  const std::string device = resolver.ZEROBOX_TAKE(device);
  if (device != "auto" && device != "host" && device != "cuda") {
    return Refuse("--device=" + device,
                  absl::StrCat("wanted auto, host or cuda, found '", device, "'; try host"));
  }
  if (device == "host") {
    if (!on_one_gpu) return Choice{};
    return Refuse("--virtual with --device=host",
                  "wanted a GPU for the devices to share, found host devices, which share this "
                  "machine as it is; leave --virtual out, or give --device=cuda");
  }
  const absl::StatusOr<int> gpus = machine.count_gpus();
  if (!gpus.ok()) {
    const std::string message(gpus.status().message());
    if ((device == "cuda" || on_one_gpu) && absl::GetFlag(FLAGS_dry_run))
      return GpusElsewhere(resolver, on_one_gpu);
    const std::string on_host = device == "cuda" ? "use --device=host" : "";
    if (on_one_gpu) {
      return Refuse("--virtual", absl::StrCat(message, "; leave --virtual out",
                                              on_host.empty() ? "" : " and ", on_host));
    }
    if (device == "cuda") return Refuse("--device=cuda", absl::StrCat(message, "; ", on_host));
    if (!absl::IsUnimplemented(gpus.status())) return Choice{.why_fewer = message};
    if (!machine.nvidia_driver) return Choice{};  // there is nothing to explain
    return Choice{.why_fewer = "this machine has a GPU, but this build no CUDA: make CUDA=1"};
  }
  if (on_one_gpu) return Choice{.gpus = 1};
  return ChooseGpus(resolver, machine, *gpus, device == "auto");
}

// The line of the header, for devices that are there.
absl::StatusOr<std::string> AboutDevices(const TrainSettings& settings, const Machine& machine,
                                         const Choice& choice) {
  if (choice.gpus == 0) {
    return choice.why_fewer.empty() ? "" : absl::StrCat("host devices: ", choice.why_fewer);
  }
  if (choice.elsewhere) return "GPUs of another machine: this one has not as many";
  if (!choice.why_fewer.empty()) return absl::StrCat("one GPU: ", choice.why_fewer);
  if (settings.devices == 1) return "";
  if (settings.virtual_devices) {
    return absl::StrCat(settings.devices,
                        " ranks on one GPU, collectives are copies and sums there");
  }
  const absl::StatusOr<GpuLinks> links = machine.links(settings.devices);
  if (!links.ok()) return links.status();
  return DescribeLinks(*links);
}

}  // namespace

absl::StatusOr<int64_t> LeastFreeGpuMemory(const Machine& machine, int gpus) {
  std::optional<int64_t> least;
  for (int gpu = 0; gpu < gpus; ++gpu) {
    const absl::StatusOr<int64_t> free = machine.free_gpu_memory(gpu);
    if (!free.ok()) return free.status();
    least = std::min(least.value_or(*free), *free);
  }
  return least.value_or(0);
}

std::string DescribeLinks(const GpuLinks& links) {
  const auto of_pairs = [&](int count) {
    return absl::StrCat(count, " of ", links.pairs, " pairs of GPUs");
  };
  if (links.peers < links.pairs) {
    return absl::StrCat("no peer access between ",
                        links.peers == 0 ? "GPUs" : of_pairs(links.pairs - links.peers),
                        ": NCCL goes through the machine's memory, slower");
  }
  if (links.nvlinks == links.pairs) return "NVLink between all GPUs";
  if (links.nvlinks == 0) return "GPUs reach each other over PCIe, without NVLink";
  return absl::StrCat("NVLink between ", of_pairs(links.nvlinks), ", PCIe between the others");
}

absl::Status ResolveDevices(Resolver& resolver, const Machine& machine, ResolvedTrain& resolved) {
  TrainSettings& settings = resolved.settings;
  settings.virtual_devices = resolver.ZEROBOX_TAKE(virtual);
  settings.collective_timeout_seconds =
      static_cast<double>(resolver.ZEROBOX_TAKE(collective_timeout));
  const absl::StatusOr<Choice> choice = Choose(resolver, machine, settings.virtual_devices);
  if (!choice.ok()) return choice.status();
  const bool cuda = choice->gpus > 0;
  settings.device = cuda ? "cuda" : "host";
  if (absl::GetFlag(FLAGS_device) == "auto") resolver.Derive("device", settings.device);
  settings.devices = static_cast<int>(
      cuda && !settings.virtual_devices
          ? resolver.ZEROBOX_TAKE(devices, "derived", std::optional<int64_t>(choice->gpus))
          : resolver.ZEROBOX_TAKE(devices));
  settings.threads = static_cast<int>(
      resolver.ZEROBOX_TAKE(threads, "derived", std::optional<int64_t>(machine.cores)));
  int64_t free = machine.available_memory;
  if (cuda && !resolver.Given("device_memory")) {
    const absl::StatusOr<int64_t> of_gpus = LeastFreeGpuMemory(machine, choice->gpus);
    if (!of_gpus.ok()) return of_gpus.status();
    free = *of_gpus;
  }
  const int together = cuda && !settings.virtual_devices ? 1 : settings.devices;
  const int64_t share = static_cast<int64_t>(0.9 * static_cast<double>(free)) / together;
  settings.device_memory_bytes =
      resolver.ZEROBOX_TAKE(device_memory, "derived", std::optional(Bytes{share})).value;
  absl::StatusOr<std::string> about = AboutDevices(settings, machine, *choice);
  if (!about.ok()) return about.status();
  resolved.about_devices = *std::move(about);
  return absl::OkStatus();
}

}  // namespace zerobox
