// SPDX-License-Identifier: Apache-2.0
//
// Warp collectives: the lanes of a mask meet, and the last to arrive does the work of all. The
// layouts of matrix fragments are those of the PTX ISA 8.0, sections 9.7.13.4.8 (mma.m16n8k16) and
// 9.7.13.4.15 (ldmatrix).
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/emulation/multiprocessor.h"

namespace zerobox::simt {
namespace {

std::string Print(Site site) { return absl::StrCat(site.file, ":", site.line); }

bool Has(uint32_t lanes, int lane) { return (lanes >> lane & 1) != 0; }

// The lane whose value `lane` gets, as __shfl_sync and its kin say.
int SourceLane(const CollectiveArguments& arguments, int lane) {
  const int width = arguments.width;
  const int first = lane & ~(width - 1);
  switch (arguments.shuffle) {
    case ShuffleKind::kIndex:
      return first + (arguments.argument & (width - 1));
    case ShuffleKind::kUp:
      return lane - arguments.argument < first ? lane : lane - arguments.argument;
    case ShuffleKind::kDown:
      return lane + arguments.argument >= first + width ? lane : lane + arguments.argument;
    case ShuffleKind::kXor:
      return (lane ^ arguments.argument) >= first + width ? lane : lane ^ arguments.argument;
  }
  return lane;
}

float LowerBFloat16(uint32_t pair) { return std::bit_cast<float>(pair << 16); }
float UpperBFloat16(uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000u); }

// D (16, 8) = A (16, 16) B (16, 8) + C, of fragments: with g = lane / 4 and q = lane % 4, a
// register of a or b holds two neighbours along k, the lower k in the lower half:
//   a0, a1, a2, a3: rows g, g + 8, g, g + 8; k from 2q, 2q, 2q + 8, 2q + 8
//   b0, b1: column g; k from 2q, 2q + 8
//   c0, c1: row g, columns 2q, 2q + 1;  c2, c3: row g + 8
void Mma(const std::array<CollectiveArguments*, kLanes>& lanes) {
  float a[16][16], b[16][8];
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto& in = *static_cast<const MmaOperands*>(lanes[lane]->in);
    const int g = lane / 4, q = lane % 4;
    for (int i = 0; i < 4; ++i) {
      const int row = g + i % 2 * 8, k = 2 * q + i / 2 * 8;
      a[row][k] = LowerBFloat16(in.a[i]);
      a[row][k + 1] = UpperBFloat16(in.a[i]);
    }
    for (int i = 0; i < 2; ++i) {
      const int k = 2 * q + i * 8;
      b[k][g] = LowerBFloat16(in.b[i]);
      b[k + 1][g] = UpperBFloat16(in.b[i]);
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto& in = *static_cast<const MmaOperands*>(lanes[lane]->in);
    float* d = static_cast<float*>(lanes[lane]->out);
    const int g = lane / 4, q = lane % 4;
    for (int i = 0; i < 4; ++i) {
      const int row = g + i / 2 * 8, column = 2 * q + i % 2;
      float sum = in.c[i];
      for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
      d[i] = sum;
    }
  }
}

}  // namespace

// Where these lanes already wait, or a place for them to.
Multiprocessor::Rendezvous& Multiprocessor::MeetingFor(uint32_t lanes, simt::Collective kind,
                                                       Site site) {
  Warp& warp = warps_[current_thread->warp];
  if (!Has(lanes, static_cast<int>(current_thread->lane))) {
    Stop([&] {
      return absl::StrFormat("divergent warp: the caller is not in the mask 0x%08x, at %s", lanes,
                             Print(site));
    });
  }
  if ((lanes & ~warp.alive) != 0) {
    Stop([&] {
      return absl::StrFormat("divergent warp: lanes 0x%08x of the mask exited or never were, at %s",
                             lanes & ~warp.alive, Print(site));
    });
  }
  Rendezvous* free = nullptr;
  for (Rendezvous& pending : warp.pending) {
    if (pending.lanes == lanes && pending.kind == kind && pending.site == site) return pending;
    if (pending.lanes == 0) free = &pending;
    if ((pending.lanes & lanes) == 0) continue;
    Stop([&] {
      return absl::StrFormat(
          "divergent warp: a lane is at %s with mask 0x%08x, others wait at %s with mask 0x%08x",
          Print(site), lanes, Print(pending.site), pending.lanes);
    });
  }
  if (free == nullptr) {
    Stop([&] {
      return absl::StrCat("more masks at once than the emulator has room for, at ", Print(site));
    });
  }
  free->lanes = lanes;
  free->arrived = 0;
  free->kind = kind;
  free->site = site;
  return *free;
}

void Multiprocessor::Collective(uint32_t lanes, simt::Collective kind,
                                CollectiveArguments& arguments, Site site) {
  const Thread& self = *current_thread;
  Rendezvous& meeting = MeetingFor(lanes, kind, site);
  meeting.arrived |= 1u << self.lane;
  meeting.arguments[self.lane] = &arguments;
  if (meeting.arrived != lanes) {
    Wait(site);
    return;
  }
  const uint32_t first_thread = self.warp * kLanes;
  Perform(meeting, first_thread);
  meeting.lanes = 0;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    if (Has(lanes, static_cast<int>(lane)) && lane != self.lane) MakeReady(first_thread + lane);
  }
}

void Multiprocessor::Perform(const Rendezvous& meeting, uint32_t first_thread) {
  switch (meeting.kind) {
    case simt::Collective::kSyncWarp:
      ++warps_[first_thread / kLanes].barriers;
      break;
    case simt::Collective::kShuffle:
      Shuffle(meeting, first_thread);
      break;
    case simt::Collective::kBallot: {
      uint32_t ballot = 0;
      for (int lane = 0; lane < kLanes; ++lane) {
        if (Has(meeting.lanes, lane) && meeting.arguments[lane]->argument != 0) {
          ballot |= 1u << lane;
        }
      }
      for (int lane = 0; lane < kLanes; ++lane) {
        if (Has(meeting.lanes, lane)) meeting.arguments[lane]->ballot = ballot;
      }
      break;
    }
    case simt::Collective::kLdMatrix:
    case simt::Collective::kLdMatrixTransposed:
      LdMatrix(meeting, first_thread);
      break;
    case simt::Collective::kMma:
      Mma(meeting.arguments);
      break;
  }
}

void Multiprocessor::Shuffle(const Rendezvous& meeting, uint32_t first_thread) {
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!Has(meeting.lanes, lane)) continue;
    const CollectiveArguments& arguments = *meeting.arguments[lane];
    const int source = SourceLane(arguments, lane);
    if (Has(meeting.lanes, source)) {
      std::memcpy(arguments.out, meeting.arguments[source]->in, arguments.count);
    } else {
      ReportAbout(first_thread + lane,
                  absl::StrFormat("a shuffle reads lane %d, which is not in its mask 0x%08x, at %s",
                                  source, meeting.lanes, Print(meeting.site)));
      std::memset(arguments.out, 0xff, arguments.count);
    }
  }
}

// Matrix m of 8 x 8 bf16 has its 8 rows' addresses from lanes 8m .. 8m + 7. A lane gets of each
// matrix, with g = lane / 4 and q = lane % 4, columns 2q and 2q + 1 of row g; transposed, rows 2q
// and 2q + 1 of column g.
void Multiprocessor::LdMatrix(const Rendezvous& meeting, uint32_t first_thread) {
  const bool transposed = meeting.kind == simt::Collective::kLdMatrixTransposed;
  const int matrices = meeting.arguments[0]->count;
  for (int m = 0; m < matrices; ++m) {
    uint16_t matrix[8][8];
    for (int row = 0; row < 8; ++row) {
      const int lane = 8 * m + row;
      const void* address = meeting.arguments[lane]->in;
      CheckAligned(address, 16, meeting.site);
      std::memcpy(matrix[row], address, 16);
      if (AccessChecker* checker = access_checker()) {
        checker->Access(InstantOf(first_thread + lane), address, 16, AccessKind::kRead, nullptr);
      }
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      const int g = lane / 4, q = lane % 4;
      const uint32_t lower = transposed ? matrix[2 * q][g] : matrix[g][2 * q];
      const uint32_t upper = transposed ? matrix[2 * q + 1][g] : matrix[g][2 * q + 1];
      static_cast<uint32_t*>(meeting.arguments[lane]->out)[m] = lower | upper << 16;
    }
  }
}

void WarpCollective(uint32_t lanes, Collective kind, CollectiveArguments& arguments, Site site) {
  Multiprocessor::OfThisThread().Collective(lanes, kind, arguments, site);
}

}  // namespace zerobox::simt
