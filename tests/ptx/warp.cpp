// SPDX-License-Identifier: Apache-2.0
//
// Instructions that the 32 lanes of a warp, or all threads of a block, do together. Our kernels
// call them with all lanes. Lane l is written g = l / 4, q = l % 4.
#include <array>
#include <string>

#include "tests/ptx/opcodes.h"

namespace zerobox::ptx {
namespace {

using Lanes = std::span<Thread*>;

// Stops unless the mask of lanes, input k, is of all.
bool AreAll(Lanes lanes, const Instruction& i, int k) {
  for (Thread* lane : lanes) {
    if (lane->Input<uint32_t>(i, k) == 0xffffffff) continue;
    lane->Stop("a collective of a part of the warp's lanes");
    return false;
  }
  return true;
}

//---- shfl, vote, bar ----------------------------------------------------------------------------

// Where lane `lane` reads, and whether that is in its group (PTX ISA, "shfl.sync"): `limits` has
// the last lane of a group, and in bits 8 to 12 those of a lane's number that say which group.
enum class Shuffle { kUp, kDown, kXor, kIndex };
struct Source {
  int lane;
  bool is_in_group;
};
template <Shuffle kKind>
Source SourceOf(int lane, uint32_t argument, uint32_t limits) {
  const int by = static_cast<int>(argument & 31), clamp = static_cast<int>(limits & 31);
  const int group = static_cast<int>(limits >> 8 & 31);
  const int first = lane & group, last = first | (clamp & ~group);
  int source = lane;
  if (kKind == Shuffle::kUp) source = lane - by;
  if (kKind == Shuffle::kDown) source = lane + by;
  if (kKind == Shuffle::kXor) source = lane ^ by;
  if (kKind == Shuffle::kIndex) source = first | (by & ~group);
  const bool is_in = kKind == Shuffle::kUp ? source >= last : source <= last;
  return {is_in ? source : lane, is_in};
}
// shfl.sync d|p, a, b, c, lanes
template <Shuffle kKind>
void DoShuffle(Lanes lanes, const Instruction& i) {
  if (!AreAll(lanes, i, 3)) return;
  std::array<uint32_t, kLanes> values;
  for (int l = 0; l < kLanes; ++l) values[l] = lanes[l]->Input<uint32_t>(i, 0);
  for (int l = 0; l < kLanes; ++l) {
    const Source source =
        SourceOf<kKind>(l, lanes[l]->Input<uint32_t>(i, 1), lanes[l]->Input<uint32_t>(i, 2));
    lanes[l]->SetOutput(i, 0, values[source.lane]);
    if (i.outputs > 1) lanes[l]->SetOutput(i, 1, source.is_in_group);
  }
}

uint32_t Ballot(Lanes lanes, const Instruction& i) {
  uint32_t ballot = 0;
  for (int l = 0; l < kLanes; ++l) ballot |= uint32_t{lanes[l]->Input<bool>(i, 0)} << l;
  return ballot;
}
void VoteBallot(Lanes lanes, const Instruction& i) {
  if (!AreAll(lanes, i, 1)) return;
  const uint32_t ballot = Ballot(lanes, i);
  for (Thread* lane : lanes) lane->SetOutput(i, 0, ballot);
}
template <bool kAll>
void Vote(Lanes lanes, const Instruction& i) {
  if (!AreAll(lanes, i, 1)) return;
  const uint32_t ballot = Ballot(lanes, i);
  for (Thread* lane : lanes) lane->SetOutput(i, 0, kAll ? ballot == 0xffffffff : ballot != 0);
}

void WarpBarrier(Lanes lanes, const Instruction& i) { AreAll(lanes, i, 0); }

// bar.red.op p, 0, q: of all threads of the block.
template <bool kAll>
void BarrierVote(Lanes threads, const Instruction& i) {
  bool result = kAll;
  for (const Thread* thread : threads) {
    const bool q = thread->Input<bool>(i, 1);
    result = kAll ? result && q : result || q;
  }
  for (Thread* thread : threads) thread->SetOutput(i, 0, result);
}

//---- Matrices (PTX ISA, "Matrix Fragments for mma.m16n8k16") ------------------------------------

// Lane l names row l % 8 of matrix l / 8, 8 numbers of 16 bits. Output m of a lane is two
// neighbours of matrix m: (g, 2q) and (g, 2q + 1), or transposed (2q, g) and (2q + 1, g).
template <bool kTransposed>
void LoadMatrices(Lanes lanes, const Instruction& i) {
  for (int m = 0; m < i.outputs; ++m) {
    std::array<std::array<uint16_t, 8>, 8> matrix;
    for (int row = 0; row < 8; ++row) {
      Thread* lane = lanes[8 * m + row];
      const char* from = lane->Find(
          Space::kShared, lane->Input<uint32_t>(i, 0) + static_cast<uint64_t>(i.immediate), 16);
      if (from == nullptr) return;
      std::memcpy(&matrix[row], from, 16);
    }
    for (int l = 0; l < kLanes; ++l) {
      const int g = l / 4, q = l % 4;
      const uint32_t low = kTransposed ? matrix[2 * q][g] : matrix[g][2 * q];
      const uint32_t high = kTransposed ? matrix[2 * q + 1][g] : matrix[g][2 * q + 1];
      lanes[l]->SetOutput(i, m, high << 16 | low);
    }
  }
}

float LowBFloat16(uint32_t pair) { return std::bit_cast<float>(pair << 16); }
float HighBFloat16(uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000); }

// D (16, 8) = A (16, 16) B (16, 8) + C: inputs are 4 registers of A, 2 of B, 4 of C. The order of
// the sums is the hardware's own; it is that of k here.
void MultiplyMatrices(Lanes lanes, const Instruction& i) {
  std::array<std::array<float, 16>, 16> a;
  std::array<std::array<float, 8>, 16> b;
  for (int l = 0; l < kLanes; ++l) {
    const int g = l / 4, q = l % 4;
    for (int k = 0; k < 4; ++k) {
      const int row = g + k % 2 * 8, column = 2 * q + k / 2 * 8;
      const uint32_t pair = lanes[l]->Input<uint32_t>(i, k);
      a[row][column] = LowBFloat16(pair);
      a[row][column + 1] = HighBFloat16(pair);
    }
    for (int k = 0; k < 2; ++k) {
      const uint32_t pair = lanes[l]->Input<uint32_t>(i, 4 + k);
      b[2 * q + 8 * k][g] = LowBFloat16(pair);
      b[2 * q + 8 * k + 1][g] = HighBFloat16(pair);
    }
  }
  for (int l = 0; l < kLanes; ++l) {
    std::array<float, 4> sums;
    for (int k = 0; k < 4; ++k) {
      const int row = l / 4 + k / 2 * 8, column = l % 4 * 2 + k % 2;
      sums[k] = lanes[l]->Input<float>(i, 6 + k);
      for (int inner = 0; inner < 16; ++inner) sums[k] += a[row][inner] * b[inner][column];
    }
    for (int k = 0; k < 4; ++k) lanes[l]->SetOutput(i, k, sums[k]);
  }
}

Opcode Collective(Collect collect, bool has_output = true) {
  return {
      .collect = collect, .flow = Flow::kWarp, .unset = Unset::kStops, .has_output = has_output};
}
Opcode Barrier(Collect collect, bool has_output) {
  return {
      .collect = collect, .flow = Flow::kBarrier, .unset = Unset::kStops, .has_output = has_output};
}

}  // namespace

void AddWarpOpcodes(Opcodes& opcodes) {
  opcodes["shfl.sync.up.b32"] = Collective(DoShuffle<Shuffle::kUp>);
  opcodes["shfl.sync.down.b32"] = Collective(DoShuffle<Shuffle::kDown>);
  opcodes["shfl.sync.bfly.b32"] = Collective(DoShuffle<Shuffle::kXor>);
  opcodes["shfl.sync.idx.b32"] = Collective(DoShuffle<Shuffle::kIndex>);
  for (const std::string name : {"vote.sync", "vote"}) {
    const std::string sync = name == "vote" ? ".sync" : "";
    opcodes[name + ".ballot" + sync + ".b32"] = Collective(VoteBallot);
    opcodes[name + ".any" + sync + ".pred"] = Collective(Vote<false>);
    opcodes[name + ".all" + sync + ".pred"] = Collective(Vote<true>);
  }
  opcodes["bar.warp.sync"] = Collective(WarpBarrier, false);
  opcodes["bar.sync"] = Barrier(nullptr, false);
  opcodes["bar.red.or.pred"] = Barrier(BarrierVote<false>, true);
  opcodes["bar.red.and.pred"] = Barrier(BarrierVote<true>, true);
  for (const std::string count : {".x1", ".x2", ".x4"}) {
    const std::string name = "ldmatrix.sync.aligned.m8n8" + count;
    opcodes[name + ".shared.b16"] = Collective(LoadMatrices<false>);
    opcodes[name + ".trans.shared.b16"] = Collective(LoadMatrices<true>);
  }
  opcodes["mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"] = Collective(MultiplyMatrices);
}

}  // namespace zerobox::ptx
