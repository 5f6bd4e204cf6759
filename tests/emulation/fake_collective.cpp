// SPDX-License-Identifier: Apache-2.0
#include "tests/emulation/fake_collective.h"

#include <cstring>

#include "ops/bfloat16.h"

namespace zerobox::fake_nccl {

using fake_cuda::Access;

size_t BytesOf(ncclDataType_t type) {
  switch (type) {
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclFloat64:
      return 8;
    default:
      return 0;  // not here
  }
}

size_t WholeBytes(const Signature& signature, int ranks) {
  const bool of_parts =
      signature.kind == Kind::kAllGather || signature.kind == Kind::kReduceScatter;
  return signature.elements * BytesOf(signature.type) * static_cast<size_t>(of_parts ? ranks : 1);
}

namespace {

template <typename T>
T Add(T a, T b) {
  return a + b;
}
template <>
BFloat16 Add(BFloat16 a, BFloat16 b) {
  return ToBFloat16(ToFloat(a) + ToFloat(b));
}

template <typename T>
std::vector<char> Sum(const std::vector<const void*>& from, size_t elements) {
  std::vector<char> bytes(elements * sizeof(T));
  for (size_t i = 0; i < elements; ++i) {
    T sum = static_cast<const T*>(from[0])[i];
    for (size_t r = 1; r < from.size(); ++r) sum = Add(sum, static_cast<const T*>(from[r])[i]);
    std::memcpy(&bytes[i * sizeof(T)], &sum, sizeof(T));
  }
  return bytes;
}

std::vector<char> Sum(const std::vector<const void*>& from, size_t elements, ncclDataType_t type) {
  switch (type) {
    case ncclBfloat16:
      return Sum<BFloat16>(from, elements);
    case ncclFloat32:
      return Sum<float>(from, elements);
    case ncclFloat64:
      return Sum<double>(from, elements);
    case ncclInt32:
      return Sum<int32_t>(from, elements);
    default:
      return Sum<int64_t>(from, elements);
  }
}

}  // namespace

void Run(const Collective& call) {
  const size_t ranks = call.from.size();
  const size_t elements = call.signature.elements;
  const size_t bytes = elements * BytesOf(call.signature.type);
  std::vector<char> result;
  switch (call.signature.kind) {
    case Kind::kAllGather:
      for (const void* part : call.from) {
        result.insert(result.end(), static_cast<const char*>(part),
                      static_cast<const char*>(part) + bytes);
      }
      break;
    case Kind::kReduceScatter:
      result = Sum(call.from, elements * ranks, call.signature.type);
      break;
    case Kind::kAllReduce:
      result = Sum(call.from, elements, call.signature.type);
      break;
    case Kind::kBroadcast: {
      const auto* root = static_cast<const char*>(call.from[call.signature.root]);
      result.assign(root, root + bytes);
      break;
    }
  }
  for (size_t r = 0; r < ranks; ++r) {
    if (call.signature.kind == Kind::kReduceScatter) {
      std::memcpy(call.to[r], &result[r * bytes], bytes);
    } else {
      std::memcpy(call.to[r], result.data(), result.size());
    }
  }
}

std::vector<Access> Accesses(const Signature& signature, const void* from, void* to, int rank,
                             int ranks) {
  const size_t bytes = signature.elements * BytesOf(signature.type);
  const size_t whole = bytes * static_cast<size_t>(ranks);
  switch (signature.kind) {
    case Kind::kAllGather:
      return {{from, bytes, false}, {to, whole, true}};
    case Kind::kReduceScatter:
      return {{from, whole, false}, {to, bytes, true}};
    case Kind::kAllReduce:
      return {{from, bytes, false}, {to, bytes, true}};
    case Kind::kBroadcast:
      if (rank == signature.root) return {{from, bytes, false}, {to, bytes, from != to}};
      return {{to, bytes, true}};
  }
  return {};
}

bool WronglyInPlace(const Signature& signature, const void* from, const void* to, int rank,
                    int ranks) {
  const auto* source = static_cast<const char*>(from);
  const auto* target = static_cast<const char*>(to);
  const size_t bytes = signature.elements * BytesOf(signature.type);
  const size_t whole = bytes * static_cast<size_t>(ranks);
  const size_t before = bytes * static_cast<size_t>(rank);
  switch (signature.kind) {
    case Kind::kAllGather:
      return source < target + whole && target < source + bytes && source != target + before;
    case Kind::kReduceScatter:
      return target < source + whole && source < target + bytes && target != source + before;
    default:
      return source < target + bytes && target < source + bytes && source != target;
  }
}

std::string Describe(const Signature& signature) {
  return std::string(signature.function) + " of " + std::to_string(signature.elements) +
         " elements of type " + std::to_string(signature.type) + " and root " +
         std::to_string(signature.root);
}

}  // namespace zerobox::fake_nccl
