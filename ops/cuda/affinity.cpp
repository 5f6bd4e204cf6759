// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/affinity.h"

#include <sched.h>

#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace zerobox::cuda {

std::vector<int> ParseCpuList(std::string_view list) {
  std::vector<int> cpus;
  const absl::string_view text(list.data(), list.size());
  for (const absl::string_view part : absl::StrSplit(absl::StripAsciiWhitespace(text), ',')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(part, absl::MaxSplits('-', 1));
    int first = 0;
    int last = 0;
    if (!absl::SimpleAtoi(ends.front(), &first) || !absl::SimpleAtoi(ends.back(), &last)) return {};
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

void StayNear(std::string_view pci_device) {
  const absl::string_view device(pci_device.data(), pci_device.size());
  std::ifstream file(
      absl::StrCat("/sys/bus/pci/devices/", absl::AsciiStrToLower(device), "/local_cpulist"));
  std::string list;
  if (!std::getline(file, list)) return;
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  cpu_set_t near;
  CPU_ZERO(&near);
  for (const int cpu : ParseCpuList(list)) {
    if (cpu < CPU_SETSIZE && CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &near);
  }
  if (CPU_COUNT(&near) > 0) (void)sched_setaffinity(0, sizeof near, &near);
}

}  // namespace zerobox::cuda
