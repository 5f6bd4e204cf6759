// SPDX-License-Identifier: Apache-2.0
//
// What one collective call of NCCL's does to the memory of its ranks. Internal to fake_nccl.cpp.
#ifndef ZEROBOX_TESTS_EMULATION_FAKE_COLLECTIVE_H_
#define ZEROBOX_TESTS_EMULATION_FAKE_COLLECTIVE_H_

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "tests/emulation/fake_machine.h"
#include "tests/emulation/fake_runtime.h"

namespace zerobox::fake_nccl {

enum class Kind : uint8_t { kAllGather, kReduceScatter, kAllReduce, kBroadcast };

// What all ranks must agree on.
struct Signature {
  Kind kind;
  const char* function;
  size_t elements;  // that are passed to the function
  ncclDataType_t type;
  int root = 0;
  ncclRedOp_t operation = ncclSum;
  auto Tie() const { return std::tie(kind, elements, type, root); }
};

struct Collective {
  Signature signature;
  int calls = 0;  // ranks that have made it
  bool connects = false;
  std::vector<const void*> from;  // by rank
  std::vector<void*> to;
  std::shared_ptr<fake_cuda::Meeting> meeting = std::make_shared<fake_cuda::Meeting>();
};

size_t BytesOf(ncclDataType_t type);  // 0: not known here
// Of the buffer that holds the parts of all ranks.
size_t WholeBytes(const Signature& signature, int ranks);
std::string Describe(const Signature& signature);
// Where the buffers of a rank overlap, each rank's part must stand where it stands in the whole.
bool WronglyInPlace(const Signature& signature, const void* from, const void* to, int rank,
                    int ranks);
// What one rank touches.
std::vector<fake_cuda::Access> Accesses(const Signature& signature, const void* from, void* to,
                                        int rank, int ranks);
// When all ranks have made the call.
void Run(const Collective& call);

}  // namespace zerobox::fake_nccl

#endif  // ZEROBOX_TESTS_EMULATION_FAKE_COLLECTIVE_H_
