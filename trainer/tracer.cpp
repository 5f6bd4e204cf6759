// SPDX-License-Identifier: Apache-2.0
#include "trainer/tracer.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trainer/step_programs.h"

namespace zerobox {
namespace {

OpKind KindOf(Activity activity) {
  switch (activity) {
    case Activity::kNone:  // then a stream has copies alone, which have a kind of their own
    case Activity::kForward:
      return OpKind::kForward;
    case Activity::kRecompute:
      return OpKind::kRecompute;
    case Activity::kBackward:
      return OpKind::kBackward;
    case Activity::kNorm:
      return OpKind::kNorm;
    case Activity::kUpdate:
      return OpKind::kUpdate;
  }
  return OpKind::kForward;
}

OpKind KindOf(Collective collective) {
  switch (collective) {
    case Collective::kAllGather:
      return OpKind::kAllGather;
    case Collective::kReduceScatter:
      return OpKind::kReduceScatter;
    case Collective::kAllReduce:
      return OpKind::kAllReduce;
    case Collective::kBroadcast:
      return OpKind::kBroadcast;
  }
  return OpKind::kAllReduce;
}

OpPurpose PurposeOf(Purpose purpose) {
  switch (purpose) {
    case Purpose::kParameters:
      return OpPurpose::kParameters;
    case Purpose::kGradients:
      return OpPurpose::kGradients;
    case Purpose::kScalars:
      return OpPurpose::kScalars;
  }
  return OpPurpose::kNone;
}

bool IsVisit(Activity activity) {
  return activity == Activity::kForward || activity == Activity::kRecompute ||
         activity == Activity::kBackward;
}

// A wait that takes less is none: a mark of a GPU takes about as long.
constexpr int64_t kShortestWaitNs = 5000;

// Of all ranks in a step: what a page shows, and files of some 20 MB hold.
constexpr int64_t kMostSpans = 60000;

}  // namespace

// Makes each call between two marks of the tracer.
class Tracer::TracedCommunicator final : public Communicator {
 public:
  TracedCommunicator(Communicator& traced, Tracer& tracer) : traced_(traced), tracer_(tracer) {}
  int rank() const override { return traced_.rank(); }
  int size() const override { return traced_.size(); }
  Traffic traffic() const override { return traced_.traffic(); }
  void Stop() override { traced_.Stop(); }

 private:
  void Call(Collective collective, Buffer buffer, int root, CallLabel label) override {
    tracer_.BeginCall(collective, buffer, label,
                      BytesSent(collective, buffer, rank(), size(), root));
    traced_.MakeCall(collective, buffer, root, label);
    tracer_.EndCall();
  }

  Communicator& traced_;
  Tracer& tracer_;
};

Tracer::Tracer(const TrainSettings& settings, Recorder* also)
    : trace_step_(settings.trace_step),
      eval_interval_(settings.eval_interval),
      most_ops_(kMostSpans / settings.devices),
      stage_(settings.devices > 1 ? settings.zero_stage : 0),
      update_stream_(settings.offload_optimizer ? StreamId::kToHost : StreamId::kCompute),
      program_(TrainingProgram(settings.model.n_layer)),
      also_(also) {}

Tracer::~Tracer() = default;

void Tracer::Attach(Device& device) {
  for (Recording& recording : recordings_) recording.marks = device.MakeTimeMarks();
}

std::unique_ptr<Communicator> Tracer::Traced(Communicator& communicator) {
  return std::make_unique<TracedCommunicator>(communicator, *this);
}

// ---- a step ----

bool Tracer::Wanted(int64_t step, bool evaluated_before) const {
  if (too_long_) return false;
  if (trace_step_ != kTraceLast) return step == trace_step_;
  return !evaluated_before || eval_interval_ == 1;
}

void Tracer::BeginStep(int64_t step, bool evaluated_before) {
  assert(recording_ == nullptr);
  if (!Wanted(step, evaluated_before)) return;
  Recording& recording = recordings_[recorded_ % 2];
  recording_ = &recording;
  recording.step = step;
  recording.ops.clear();
  recording.pieces.clear();
  recording.lives.clear();
  recording.turns.clear();
  recording.compute_marks.clear();
  recording.marks->Begin();
  for (auto& [data, live] : live_) {
    live.number = static_cast<int>(recording.lives.size());
    recording.lives.push_back(live.life);
  }
  streams_ = {};
  announcements_ = 0;
  visits_ = 0;
  (void)Now(StreamId::kCompute);
}

void Tracer::EndStep() {
  if (recording_ == nullptr) return;
  assert(std::all_of(streams_.begin(), streams_.end(),
                     [](const StreamState& stream) { return stream.piece < 0; }));
  ++recorded_;
  recording_ = nullptr;
}

void Tracer::OnAnnounce(int rank, Activity activity, int unit) {
  if (also_ != nullptr) also_->OnAnnounce(rank, activity, unit);
  const bool goes_on = activity == Activity::kBackward && activity_ == Activity::kRecompute;
  if (IsVisit(activity) && activity != Activity::kRecompute && !goes_on) ++visits_;
  activity_ = activity;
  unit_ = unit;
  ++announcements_;
  if (recording_ == nullptr) return;
  Close(StreamId::kCompute);
  if (std::ssize(recording_->ops) > most_ops_) {
    too_long_ = true;
    recording_ = nullptr;
    return;
  }
  // Also behind the last op's waits.
  if (activity == Activity::kNone) (void)Now(StreamId::kCompute);
  // A rank may own nothing of a bucket but padding; its ops are those of the others all the same.
  if (activity == Activity::kUpdate) {
    (void)OpFor(update_stream_, OpKind::kUpdate, OpPurpose::kNone, unit);
  }
}

// ---- marks and pieces ----

int Tracer::Now(StreamId stream) {
  StreamState& state = Of(stream);
  if (state.moved) {
    state.last_mark = recording_->marks->Mark(stream);
    state.moved = false;
    if (stream == StreamId::kCompute) recording_->compute_marks.push_back({state.last_mark});
  }
  if (stream == StreamId::kCompute) recording_->compute_marks.back().running = state.piece >= 0;
  return state.last_mark;
}

void Tracer::Open(StreamId stream, int op) {
  StreamState& state = Of(stream);
  if (state.piece >= 0 && recording_->pieces[state.piece].op == op) return;
  Close(stream);
  const int begin = Now(stream);
  state.piece = static_cast<int>(recording_->pieces.size());
  recording_->pieces.push_back({.op = op, .stream = stream, .begin = begin});
  if (stream == StreamId::kCompute) recording_->compute_marks.back().running = true;
}

void Tracer::Close(StreamId stream) {
  StreamState& state = Of(stream);
  if (state.piece < 0) return;
  Piece& piece = recording_->pieces[std::exchange(state.piece, -1)];
  piece.end = Now(stream);
}

// ---- ops ----

// Outside of visits and the update there are only copies: a batch's, before it is visited, and the
// step's results.
StepPhase Tracer::PhaseNow(StreamId stream) const {
  switch (activity_) {
    case Activity::kForward:
      return StepPhase::kForward;
    case Activity::kRecompute:
    case Activity::kBackward:
      return StepPhase::kBackward;
    case Activity::kNorm:
    case Activity::kUpdate:
      return StepPhase::kStep;
    case Activity::kNone:
      return stream == StreamId::kFromHost ? StepPhase::kForward : StepPhase::kStep;
  }
  return StepPhase::kStep;
}

const Visit* Tracer::VisitNow() const {
  return IsVisit(activity_) ? &program_[(visits_ - 1) % std::ssize(program_)] : nullptr;
}

int Tracer::NewOp(StreamId stream, OpKind kind, OpPurpose purpose, int unit) {
  TraceOp op;
  op.kind = kind;
  op.stream = stream;
  op.phase = PhaseNow(stream);
  op.unit = unit;
  op.purpose = purpose;
  const Visit* visit = VisitNow();
  const int64_t visits_before = visit != nullptr ? visits_ - 1 : visits_;
  if (op.phase != StepPhase::kStep) op.micro_batch = visits_before / std::ssize(program_);
  if (visit != nullptr && stream == StreamId::kCompute) op.layer = visit->layer;
  recording_->ops.push_back(std::move(op));
  return static_cast<int>(recording_->ops.size()) - 1;
}

int Tracer::OpFor(StreamId stream, OpKind kind, OpPurpose purpose, int unit) {
  StreamState& state = Of(stream);
  if (state.op >= 0 && state.announcement == announcements_) {
    const TraceOp& op = recording_->ops[state.op];
    if (op.kind == kind && op.purpose == purpose && op.unit == unit) return state.op;
  }
  state.op = NewOp(stream, kind, purpose, unit);
  state.announcement = announcements_;
  return state.op;
}

void Tracer::OnEnqueue(int rank, StreamId stream, std::string_view op, int64_t id) {
  if (also_ != nullptr) also_->OnEnqueue(rank, stream, op, id);
  if (recording_ == nullptr) return;
  // A collective and a copy have opened theirs. A gathered unit's own part, and what is zeroed
  // there, is left out: nothing of it leaves the device. Host kernels between copies are theirs.
  const bool updates = activity_ == Activity::kNorm || activity_ == Activity::kUpdate;
  const bool host_kernel = !std::exchange(copying_, false) && stream == StreamId::kToHost;
  if (stream == StreamId::kCompute ? activity_ != Activity::kNone : updates && host_kernel) {
    Open(stream, OpFor(stream, KindOf(activity_), OpPurpose::kNone, unit_));
  }
  Of(stream).moved = true;
}

void Tracer::OnCopy(int rank, StreamId stream, const void* host, const Buffer& buffer) {
  if (also_ != nullptr) also_->OnCopy(rank, stream, host, buffer);
  copying_ = true;
  if (recording_ == nullptr || buffer.empty()) return;
  int unit = unit_;
  OpPurpose purpose = OpPurpose::kNone;
  switch (activity_) {
    case Activity::kNone:
      purpose = stream == StreamId::kFromHost ? OpPurpose::kBatch : OpPurpose::kResults;
      break;
    case Activity::kForward:
      purpose = OpPurpose::kCheckpoint;
      checkpoint_units_[host] = unit_;
      break;
    case Activity::kRecompute:
    case Activity::kBackward:
      purpose = stream == StreamId::kToHost ? OpPurpose::kGradients : OpPurpose::kCheckpoint;
      // It comes back one visit ahead.
      if (purpose == OpPurpose::kCheckpoint) unit = checkpoint_units_[host];
      break;
    case Activity::kNorm:
      purpose = stream == StreamId::kFromHost ? OpPurpose::kSquares : OpPurpose::kState;
      break;
    case Activity::kUpdate:
      purpose = OpPurpose::kParameters;
      break;
  }
  const int op = OpFor(stream, OpKind::kCopy, purpose, unit);
  recording_->ops[op].bytes += buffer.bytes();
  Open(stream, op);
}

void Tracer::BeginCall(Collective collective, const Buffer& buffer, CallLabel label,
                       int64_t bytes) {
  if (recording_ == nullptr) return;
  const StreamId stream = StreamId::kCommunication;
  const int number = NewOp(stream, KindOf(collective), PurposeOf(label.purpose), label.unit);
  TraceOp& op = recording_->ops[number];
  op.elements = buffer.elements;
  op.bytes = bytes;
  const Visit* visit = VisitNow();
  if (visit != nullptr && visit->unit != label.unit) {  // a prefetch
    const Visit& next = program_[visit->index + 1];
    op.phase = next.pass == Pass::kForward ? StepPhase::kForward : StepPhase::kBackward;
  }
  Open(stream, number);
  Of(stream).moved = true;
  auto above = live_.upper_bound(buffer.data);
  if (above == live_.begin()) return;
  const Live& live = std::prev(above)->second;
  Life& life = recording_->lives[live.number];
  if (life.region != Region::kTransient) return;
  life.unit = label.unit;
  life.holds = label.purpose == Purpose::kParameters ? Category::kParameters : Category::kGradients;
  recording_->pieces.back().life = live.number;
}

void Tracer::EndCall() {
  if (recording_ != nullptr) Close(StreamId::kCommunication);
}

void Tracer::OnRecord(int rank, StreamId stream, const Event& event) {
  if (also_ != nullptr) also_->OnRecord(rank, stream, event);
  if (recording_ == nullptr) return;
  if (stream == StreamId::kCompute) {
    // What another stream does behind this event is behind what was allocated before.
    (void)Now(stream);
  } else {
    Close(stream);  // whoever waits for the event may then ask for the time
  }
}

void Tracer::OnWait(int rank, StreamId stream, const Event& event) {
  if (also_ != nullptr) also_->OnWait(rank, stream, event);
  if (recording_ == nullptr) return;
  Close(stream);
  Of(stream).moved = true;
}

void Tracer::OnHostWait(int rank, const Event& event) {
  if (also_ != nullptr) also_->OnHostWait(rank, event);
}

void Tracer::OnBegin(int rank, StreamId stream, std::string_view op, int64_t id) {
  if (also_ != nullptr) also_->OnBegin(rank, stream, op, id);
}

void Tracer::OnEnd(int rank, StreamId stream, std::string_view op, int64_t id) {
  if (also_ != nullptr) also_->OnEnd(rank, stream, op, id);
}

// ---- memory ----

void Tracer::OnAllocate(int rank, Region region, Category category, std::string_view label,
                        const Buffer& buffer) {
  if (also_ != nullptr) also_->OnAllocate(rank, region, category, label, buffer);
  Live& live = live_[buffer.data];
  const bool state = category == Category::kParameters || category == Category::kGradients ||
                     category == Category::kOptimizerStates;
  live.life = {.region = region,
               .category = category,
               .holds = state ? category : Category::kWorkspace,
               .bytes = AllocatedBytes(buffer.bytes()),
               .label = label};
  if (recording_ == nullptr) return;
  live.number = static_cast<int>(recording_->lives.size());
  recording_->lives.push_back(live.life);
  AddTurn(live.number, /*begins=*/true);
}

void Tracer::OnFree(int rank, const Buffer& buffer) {
  if (also_ != nullptr) also_->OnFree(rank, buffer);
  const auto live = live_.find(buffer.data);
  if (recording_ != nullptr) AddTurn(live->second.number, /*begins=*/false);
  live_.erase(live);
}

void Tracer::AddTurn(int life, bool begins) {
  // Behind a wait its stream may have stood still; behind ops it is somewhere among them.
  if (Of(StreamId::kCompute).piece < 0) (void)Now(StreamId::kCompute);
  recording_->turns.push_back({life, begins, recording_->compute_marks.size() - 1});
}

// ---- the result ----

absl::StatusOr<RankTrace> Tracer::Result() {
  assert(recording_ == nullptr);
  if (too_long_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("wanted at most ", most_ops_,
                     " ops on each device, found more in a step: "
                     "fewer micro-batches (--grad_accum) or larger buckets make fewer"));
  }
  if (recorded_ == 0) return absl::NotFoundError("no step was recorded");
  Recording& recording = recordings_[(recorded_ - 1) % 2];
  const absl::StatusOr<std::vector<int64_t>> times = recording.marks->Times();
  if (!times.ok()) return times.status();
  RankTrace trace;
  trace.step = recording.step;
  trace.ops = std::move(recording.ops);
  trace.regions = Regions(recording, *times);
  trace.spans = Spans(recording, *times, trace.regions);
  trace.begin_ns = (*times)[recording.compute_marks.front().mark];
  trace.end_ns = *std::max_element(times->begin(), times->end());
  return trace;
}

std::vector<TraceRegion> Tracer::Regions(const Recording& recording,
                                         const std::vector<int64_t>& times) const {
  std::vector<TraceRegion> regions;
  for (const Life& life : recording.lives) {
    regions.push_back({.category = life.category,
                       .holds = life.holds,
                       .extent = ExtentOf(life),
                       .unit = life.unit,
                       .bytes = life.bytes,
                       .label = std::string(life.label)});
  }
  int64_t last = 0;
  const std::vector<Turn>& turns = recording.turns;
  for (size_t first = 0, end = 0; first < turns.size(); first = end) {
    while (end < turns.size() && turns[end].mark == turns[first].mark) ++end;
    const ComputeMark& before = recording.compute_marks[turns[first].mark];
    const int64_t begin_ns = times[before.mark];
    int64_t step_ns = 0;
    if (before.running && turns[first].mark + 1 < recording.compute_marks.size()) {
      const int64_t end_ns = times[recording.compute_marks[turns[first].mark + 1].mark];
      step_ns = (end_ns - begin_ns) / static_cast<int64_t>(end - first + 1);
    }
    for (size_t i = first; i < end; ++i) {
      // No two at once, so that the sum at any moment is one that the ledger showed.
      last = std::max(last + 1, begin_ns + static_cast<int64_t>(i - first + 1) * step_ns);
      TraceRegion& region = regions[turns[i].life];
      (turns[i].begins ? region.begin_ns : region.end_ns) = last;
    }
  }
  return regions;
}

// Pieces of an op between which its stream hardly waited are one span: marks themselves take time.
std::vector<TraceSpan> Tracer::Spans(const Recording& recording, const std::vector<int64_t>& times,
                                     const std::vector<TraceRegion>& regions) const {
  std::vector<TraceSpan> spans;
  std::array<int, kStreams> latest;
  latest.fill(-1);
  for (const Piece& piece : recording.pieces) {
    int& before = latest[static_cast<size_t>(piece.stream)];
    int64_t begin = times[piece.begin];
    // An allocation's time is only known to lie between two marks of the compute stream, which may
    // reach them after others have used the memory: at the begin of a GPU's step.
    if (piece.life >= 0) begin = std::max(begin, regions[piece.life].begin_ns);
    if (before >= 0) begin = std::max(begin, spans[before].end_ns);
    const int64_t end = std::max(begin, times[piece.end]);
    if (before >= 0 && spans[before].op == piece.op &&
        begin - spans[before].end_ns < kShortestWaitNs) {
      spans[before].end_ns = end;
      continue;
    }
    before = static_cast<int>(spans.size());
    spans.push_back({piece.op, begin, end});
  }
  return spans;
}

Extent Tracer::ExtentOf(const Life& life) const {
  switch (life.holds) {
    case Category::kParameters:
      return life.region == Region::kTransient || stage_ < 3 ? Extent::kFull : Extent::kShard;
    case Category::kGradients:
      return life.region == Region::kTransient || stage_ < 2 ? Extent::kFull : Extent::kShard;
    case Category::kOptimizerStates:
      return stage_ < 1 ? Extent::kFull : Extent::kShard;
    default:
      return Extent::kNone;
  }
}

}  // namespace zerobox
