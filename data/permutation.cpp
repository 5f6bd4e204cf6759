// SPDX-License-Identifier: Apache-2.0
//
// A Feistel network (Luby and Rackoff, "How to construct pseudorandom permutations from
// pseudorandom functions", 1988) permutes numbers of 2 h bits: each round replaces (left, right) by
// (right, left ^ F(right)), which can be undone whatever F is. F is Philox keyed by the seed and
// counted by (right, round, epoch), so an order is a function of (seed, epoch).
//
// Cycle walking (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002, section 4) makes
// of it a permutation of [0, size): apply it until the result is below size. The number whose path
// begins below size returns there, and no two paths meet, as a permutation is made of cycles. 2 h
// is the smallest even number of bits that holds size, so fewer than 4 applications are expected.
#include <cassert>
#include <cstdint>

#include "data/dataset.h"
#include "ops/philox.h"

namespace zerobox {
namespace {

// Four rounds suffice for wide halves; small sizes have halves of a bit or two.
constexpr uint32_t kRounds = 8;

uint64_t Permute(uint64_t value, int half_bits, uint64_t seed, uint64_t epoch) {
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  uint64_t left = value >> half_bits;
  uint64_t right = value & mask;
  for (uint32_t round = 0; round < kRounds; ++round) {
    const PhiloxBlock random =
        Philox({static_cast<uint32_t>(right), round, static_cast<uint32_t>(epoch),
                static_cast<uint32_t>(epoch >> 32)},
               seed);
    const uint64_t next = left ^ (random[0] & mask);
    left = right;
    right = next;
  }
  return left << half_bits | right;
}

}  // namespace

int64_t PermutedIndex(int64_t index, int64_t size, uint64_t seed, uint64_t epoch) {
  assert(index >= 0 && index < size);
  int half_bits = 1;
  while (half_bits < 32 && uint64_t{1} << (2 * half_bits) < static_cast<uint64_t>(size)) {
    ++half_bits;
  }
  uint64_t value = index;
  do {
    value = Permute(value, half_bits, seed, epoch);
  } while (value >= static_cast<uint64_t>(size));
  return static_cast<int64_t>(value);
}

}  // namespace zerobox
