// SPDX-License-Identifier: Apache-2.0
//
// Activation checkpointing (arXiv:1604.06174): what a block keeps from its forward to its backward
// visit, and where. Backward computes the rest again; dropout masks are drawn from numbers of the
// sample and the place, so the second time gives the bits of the first.
//
// B sequences, T positions, C = n_embd, H = n_head; a token is one of B T.
#ifndef ZEROBOX_TRAINER_ACTIVATION_CHECKPOINTS_H_
#define ZEROBOX_TRAINER_ACTIVATION_CHECKPOINTS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "ops/device/device.h"
#include "trainer/settings.h"

namespace zerobox {

// What a block's backward reads, in the order in which its forward computes it.
enum BlockTensor : uint8_t {
  kBlockIn,
  kNorm1Mean,
  kNorm1Rstd,
  kNorm1,
  kQkv,
  kLogSumExp,
  kAttention,
  kMiddle,
  kNorm2Mean,
  kNorm2Rstd,
  kNorm2,
  kFc,
  kGelu,
};
inline constexpr int kBlockTensors = 13;
using BlockTensors = std::array<Buffer, kBlockTensors>;

// Full keeps the block's input only. Selective keeps what is dear and drops what one pass over
// memory gives again: GELU, and a norm with its statistics, which fall out of the same pass;
// anything T x T is never there at all. Without checkpointing all are kept.
struct BlockTensorSpec {
  const char* label;
  int channels, heads, ones;  // elements a token: channels C + heads H + ones
  bool selective, full;       // kept
};
inline constexpr std::array<BlockTensorSpec, kBlockTensors> kBlockTensorSpecs = {{
    {"block input", 1, 0, 0, true, true},
    {"norm 1 mean", 0, 0, 1, false, false},
    {"norm 1 rstd", 0, 0, 1, false, false},
    {"norm 1", 1, 0, 0, false, false},
    {"qkv", 3, 0, 0, true, false},
    {"attention logsumexp", 0, 1, 0, true, false},
    {"attention", 1, 0, 0, true, false},
    {"residual after attention", 1, 0, 0, true, false},
    {"norm 2 mean", 0, 0, 1, false, false},
    {"norm 2 rstd", 0, 0, 1, false, false},
    {"norm 2", 1, 0, 0, false, false},
    {"MLP before GELU", 4, 0, 0, true, false},
    {"MLP after GELU", 4, 0, 0, false, false},
}};

// Statistics are fp32; values have the type of the activations.
constexpr bool IsStatistic(BlockTensor tensor) { return kBlockTensorSpecs[tensor].channels == 0; }
int64_t ElementsOf(BlockTensor tensor, const ModelConfig& model, int64_t tokens);
// As a checkpoint; nothing is one without checkpointing.
bool Keeps(ActivationCheckpointing mode, BlockTensor tensor);

// The checkpoints of the one micro-batch in flight. Without offload every block has a slot in
// device memory. With it (P_a+cpu of ZeRO, arXiv:1910.02054, section 6.1) there are two, which
// blocks take in turn: a checkpoint goes down to host memory once it is written, and comes back one
// block ahead of its backward. The last two blocks' stay, as backward wants them first. Full, of
// four blocks:
//
//   compute    | forward 0 | 1 | 2 | 3 | head | backward 3 | backward 2 | backward 1 | backward 0 |
//   to_host    | 0         | 1 |
//   from_host  |                                           | 1 (slot 1) | 0 (slot 0) |
//
// Used by one worker thread. All work is enqueued; errors are the device's.
class ActivationCheckpoints {
 public:
  // Takes the host memory, for micro-batches of up to micro_batch x seq_len tokens.
  ActivationCheckpoints(Device& device, const TrainSettings& settings);

  // ---- forward, in order of blocks ----
  // Points the block's kept tensors to its slot, which compute may write after AwaitSlot.
  void Open(int block, int64_t tokens, BlockTensors& tensors);
  void AwaitSlot(int block);
  // Compute has written all of them.
  void Keep(int block);

  // ---- backward, in reverse order ----
  // Begins to bring back a checkpoint that has left, into the slot that was released last.
  void Fetch(int block);
  // Compute may read it.
  void Await(int block);
  // Compute has read it for the last time.
  void Release(int block);

 private:
  struct Checkpoint {
    Buffer values, statistics;
  };
  struct Slot {
    Checkpoint checkpoint;
    std::unique_ptr<Event> left;     // to_host -> compute: it is copied and may be overwritten
    std::unique_ptr<Event> is_back;  // from_host -> compute: it may be read
  };
  Slot& SlotOf(int block) { return slots_[block % slots_.size()]; }
  int64_t Elements(int64_t tokens, bool statistics) const;
  bool Leaves(int block) const { return block < static_cast<int>(on_host_.size()); }

  Device& device_;
  const ModelConfig model_;
  const DType dtype_;
  const ActivationCheckpointing mode_;
  std::vector<Slot> slots_;
  std::vector<Checkpoint> on_host_;   // by block, of those that leave
  std::unique_ptr<Event> written_;    // compute -> to_host: the checkpoint is complete
  std::unique_ptr<Event> slot_free_;  // compute -> from_host: backward has read what was there
};

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_ACTIVATION_CHECKPOINTS_H_
