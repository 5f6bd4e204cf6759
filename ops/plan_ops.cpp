// SPDX-License-Identifier: Apache-2.0
#include "ops/plan_ops.h"

#include <cstdint>
#include <memory>

namespace zerobox {
namespace {

class PlanOps final : public Ops {
 public:
  void EmbeddingForward(Buffer, Buffer, Buffer, Buffer, SequenceShape, const Dropout&) override {}
  void EmbeddingBackward(Buffer, Buffer, Buffer, Buffer, SequenceShape, const Dropout&) override {}
  void LayerNormForward(Buffer, Buffer, Buffer, Buffer, Buffer, Buffer, int64_t, int64_t) override {
  }
  void LayerNormBackward(Buffer, Buffer, Buffer, Buffer, Buffer, Buffer, Buffer, Buffer, int64_t,
                         int64_t) override {}
  void LinearForward(Buffer, Buffer, Buffer, Buffer, int64_t, int64_t, int64_t) override {}
  void LinearBackward(Buffer, Buffer, Buffer, Buffer, Buffer, Buffer, int64_t, int64_t,
                      int64_t) override {}
  void HeadForward(Buffer, Buffer, Buffer, int64_t, int64_t, int64_t) override {}
  void HeadBackward(Buffer, Buffer, Buffer, Buffer, Buffer, int64_t, int64_t, int64_t) override {}
  void AttentionForward(Buffer, Buffer, Buffer, SequenceShape, int64_t, const Dropout&) override {}
  void AttentionBackward(Buffer, Buffer, Buffer, Buffer, Buffer, SequenceShape, int64_t,
                         const Dropout&) override {}
  void GeluForward(Buffer, Buffer) override {}
  void GeluBackward(Buffer, Buffer, Buffer) override {}
  void ResidualForward(Buffer, Buffer, Buffer, SequenceShape, const Dropout&) override {}
  void DropoutBackward(Buffer, Buffer, SequenceShape, const Dropout&) override {}
  void CrossEntropyForward(Buffer, Buffer, Buffer, int64_t, int64_t) override {}
  void CrossEntropyBackward(Buffer, Buffer, int64_t, int64_t, float) override {}
  void AccumulateSum(Buffer, Buffer) override {}
  void AccumulateSquares(Buffer, Buffer) override {}
  void Add(Buffer, Buffer) override {}
  void Fill(Buffer, float) override {}
  void FillNormal(Buffer, uint64_t, uint64_t, int64_t, float) override {}
  void PrepareStep(Buffer, Buffer, const OptimizerSettings&) override {}
  void AdamW(Buffer, Buffer, Buffer, Buffer, Buffer, bool, Buffer,
             const OptimizerSettings&) override {}
};

}  // namespace

std::unique_ptr<Ops> MakePlanOps() { return std::make_unique<PlanOps>(); }

}  // namespace zerobox
