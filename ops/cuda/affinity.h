// SPDX-License-Identifier: Apache-2.0
#ifndef ZEROBOX_OPS_CUDA_AFFINITY_H_
#define ZEROBOX_OPS_CUDA_AFFINITY_H_

#include <string>
#include <string_view>
#include <vector>

namespace zerobox::cuda {

// Keeps the calling thread, and the threads and first-touched memory that it makes from then on, on
// the cores near the PCI device of this name ("0000:3b:00.0"), as far as the thread may run there.
// Where the system does not say which are near, nothing changes.
void StayNear(std::string_view pci_device);

// The numbers of a list as the kernel writes it: "0-3,8" is 0, 1, 2, 3, 8. Empty if it is none.
std::vector<int> ParseCpuList(std::string_view list);

}  // namespace zerobox::cuda

#endif  // ZEROBOX_OPS_CUDA_AFFINITY_H_
