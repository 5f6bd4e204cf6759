// SPDX-License-Identifier: Apache-2.0
//
// Tracer: records a step of one rank. It is the recorder of the rank's device, and hears of its
// collectives through a communicator of its own.
//
// An op of the trace is what a rank enqueues on one stream for one purpose: a visit's kernels, a
// collective, a bucket's AdamW, a bucket's copies. Its times are taken by marks in the stream, put
// where it begins, where it ends, and around the stream's waits for other streams. Allocations have
// no time of their own, because a worker may be ahead of its device: they stand, in their order,
// between the marks of the compute stream around them.
#ifndef ZEROBOX_TRAINER_TRACER_H_
#define ZEROBOX_TRAINER_TRACER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/collectives/communicator.h"
#include "ops/device/device.h"
#include "ops/device/recorder.h"
#include "trainer/settings.h"
#include "trainer/step_trace.h"
#include "zero/step_program.h"

namespace zerobox {

// On the thread of the rank's worker; OnBegin and OnEnd are passed on from any.
class Tracer final : public Recorder {
 public:
  // `also`, which may be null, is told everything too. Both outlive the device.
  Tracer(const TrainSettings& settings, Recorder* also);
  ~Tracer() override;
  // Before anything is enqueued.
  void Attach(Device& device);
  // Makes the collectives of `communicator`, which stays.
  std::unique_ptr<Communicator> Traced(Communicator& communicator);

  // Around what enqueues a step. A step behind an evaluation finds its parameters gathered, so the
  // last step that is recorded is one that is not, where there is one.
  void BeginStep(int64_t step, bool evaluated_before);
  void EndStep();
  // Of the latest step that was recorded; all steps are done. Asked for once. NotFound when there
  // is none; ResourceExhausted when a step has too many ops to be shown, which is found in the
  // first one.
  absl::StatusOr<RankTrace> Result();

  void OnEnqueue(int rank, StreamId stream, std::string_view op, int64_t id) override;
  void OnBegin(int rank, StreamId stream, std::string_view op, int64_t id) override;
  void OnEnd(int rank, StreamId stream, std::string_view op, int64_t id) override;
  void OnAllocate(int rank, Region region, Category category, std::string_view label,
                  const Buffer& buffer) override;
  void OnFree(int rank, const Buffer& buffer) override;
  void OnRecord(int rank, StreamId stream, const Event& event) override;
  void OnWait(int rank, StreamId stream, const Event& event) override;
  void OnHostWait(int rank, const Event& event) override;
  void OnCopy(int rank, StreamId stream, const void* host, const Buffer& buffer) override;
  void OnAnnounce(int rank, Activity activity, int unit) override;

 private:
  class TracedCommunicator;

  // A part of an op that its stream ran without a wait. Marks are numbers of Recording::marks.
  struct Piece {
    int op = 0;
    StreamId stream = StreamId::kCompute;
    int begin = 0, end = -1;
    int life = -1;  // of the buffer that a collective uses
  };
  struct Life {
    Region region = Region::kPersistent;
    Category category = Category::kWorkspace;
    Category holds = Category::kWorkspace;
    int unit = -1;
    int64_t bytes = 0;
    std::string_view label;
  };
  // A life begins or ends behind this mark of the compute stream.
  struct Turn {
    int life = 0;
    bool begins = false;
    size_t mark = 0;
  };
  struct ComputeMark {
    int mark = 0;
    bool running = false;  // an op goes on behind it
  };
  // One step. Two of them take turns, so that the last whole one is there when the run ends.
  struct Recording {
    int64_t step = 0;
    std::unique_ptr<TimeMarks> marks;
    std::vector<TraceOp> ops;
    std::vector<Piece> pieces;
    std::vector<Life> lives;  // what lived when the step began, then what began in it
    std::vector<Turn> turns;
    std::vector<ComputeMark> compute_marks;
  };
  struct Live {
    Life life;
    int number = -1;  // among the lives of the recording
  };
  struct StreamState {
    int last_mark = -1;
    bool moved = true;          // something that takes time was enqueued since
    int piece = -1;             // the open one
    int op = -1;                // the latest one,
    int64_t announcement = -1;  // which is for this
  };

  StreamState& Of(StreamId stream) { return streams_[static_cast<size_t>(stream)]; }
  bool Wanted(int64_t step, bool evaluated_before) const;
  // The mark for now: the last one if nothing has moved since.
  int Now(StreamId stream);
  void Open(StreamId stream, int op);
  void Close(StreamId stream);
  void AddTurn(int life, bool begins);
  // The stream's op for what was announced last: the latest one, or a new one.
  int OpFor(StreamId stream, OpKind kind, OpPurpose purpose, int unit);
  int NewOp(StreamId stream, OpKind kind, OpPurpose purpose, int unit);
  StepPhase PhaseNow(StreamId stream) const;
  const Visit* VisitNow() const;  // null: outside of visits
  // Around a call of the traced communicator.
  void BeginCall(Collective collective, const Buffer& buffer, CallLabel label, int64_t bytes);
  void EndCall();
  std::vector<TraceRegion> Regions(const Recording& recording,
                                   const std::vector<int64_t>& times) const;
  std::vector<TraceSpan> Spans(const Recording& recording, const std::vector<int64_t>& times,
                               const std::vector<TraceRegion>& regions) const;
  Extent ExtentOf(const Life& life) const;

  const int64_t trace_step_;
  const int64_t eval_interval_;
  const int64_t most_ops_;
  const int stage_;
  const StreamId update_stream_;
  const StepProgram program_;
  Recorder* const also_;
  std::map<const std::byte*, Live> live_;        // by address
  std::map<const void*, int> checkpoint_units_;  // host memory -> whose checkpoint is there
  std::array<Recording, 2> recordings_;
  int64_t recorded_ = 0;            // steps
  bool too_long_ = false;           // a step had more than most_ops_: none is recorded any more
  Recording* recording_ = nullptr;  // null: this step is not recorded
  std::array<StreamState, kStreams> streams_;
  Activity activity_ = Activity::kNone;
  int unit_ = -1;
  bool copying_ = false;  // the next op is a copy that has opened its piece
  int64_t announcements_ = 0;
  int64_t visits_ = 0;  // of this step, the current one included
};

}  // namespace zerobox

#endif  // ZEROBOX_TRAINER_TRACER_H_
