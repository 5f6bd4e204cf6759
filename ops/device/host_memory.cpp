// SPDX-License-Identifier: Apache-2.0
#include "ops/device/host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace zerobox {
namespace {

absl::Status NotEnough(int64_t wanted, int64_t available) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "the machine does not give a device its memory: wanted ", wanted, " bytes, available ",
      available, ". Use fewer devices, a smaller model or micro-batch, or a higher ZeRO stage"));
}

// Makes all pages present. In one call where the kernel has it (Linux 5.14), else page by page.
void Populate(std::byte* data, int64_t bytes) {
#ifdef MADV_POPULATE_WRITE
  if (madvise(data, static_cast<size_t>(bytes), MADV_POPULATE_WRITE) == 0) return;
#endif
  const int64_t page = sysconf(_SC_PAGESIZE);
  volatile std::byte* first = data;
  for (int64_t i = 0; i < bytes; i += page) first[i] = std::byte{0};
}

}  // namespace

int64_t AvailableMemory() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  std::string unit;
  int64_t kilobytes = 0;
  while (meminfo >> key >> kilobytes) {
    if (key == "MemAvailable:") return kilobytes * 1024;
    std::getline(meminfo, unit);
  }
  return -1;
}

absl::StatusOr<HostMemory> HostMemory::Reserve(int64_t bytes) {
  if (bytes == 0) return HostMemory(nullptr, 0);
  // Asked first: a mapping beyond the memory often succeeds, and the process dies when touching it.
  const int64_t available = AvailableMemory();
  if (available >= 0 && bytes > available) return NotEnough(bytes, available);
  void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return NotEnough(bytes, available);
  // Huge pages where possible: a wish, so its failure does not matter.
  (void)madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  Populate(static_cast<std::byte*>(data), bytes);
  return HostMemory(static_cast<std::byte*>(data), bytes);
}

HostMemory::HostMemory(HostMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

HostMemory::~HostMemory() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(bytes_));
}

}  // namespace zerobox
