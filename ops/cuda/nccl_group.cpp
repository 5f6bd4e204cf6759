// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/nccl_group.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <cassert>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/cuda/call_log.h"
#include "ops/cuda/cuda_device.h"
#include "ops/cuda/nccl_library.h"
#include "ops/cuda/pause.h"
#include "ops/cuda/status.h"

#if NCCL_VERSION_CODE < 21400
#error "nccl.h is too old: non-blocking communicators need NCCL 2.14 or newer"
#endif

namespace zerobox::cuda {
namespace {

constexpr auto kCommunication = StreamId::kCommunication;
constexpr Collective kAllCollectives[] = {Collective::kAllGather, Collective::kReduceScatter,
                                          Collective::kAllReduce, Collective::kBroadcast};

// Before the first step each kind of call is made in these types, and in sizes from the least one
// on, each so many times as large as the one before: NCCL has a few algorithms, and connects one
// (and allocates what it needs) when a call first is of a size for it.
constexpr DType kWarmUpTypes[] = {DType::kFloat32, DType::kBFloat16,
                                  DType::kFloat64};  // only added: squares and losses
constexpr int64_t kLeastWarmUpBytes = 1 << 10;
constexpr int64_t kWarmUpFactor = 16;

ncclDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return ncclFloat32;
    case DType::kBFloat16:
      return ncclBfloat16;
    case DType::kFloat64:
      return ncclFloat64;
    case DType::kInt32:
      return ncclInt32;
    case DType::kInt64:
      return ncclInt64;
  }
  return ncclNumTypes;
}

const char* FunctionOf(Collective collective) {
  switch (collective) {
    case Collective::kAllGather:
      return "ncclAllGather";
    case Collective::kReduceScatter:
      return "ncclReduceScatter";
    case Collective::kAllReduce:
      return "ncclAllReduce";
    case Collective::kBroadcast:
      return "ncclBroadcast";
  }
  return "";
}

// "FUNCTION: NCCL's name of the error (what it says besides), WHAT"
absl::Status ToError(ncclResult_t result, const char* function, ncclComm_t communicator,
                     const std::string& what) {
  std::string message = absl::StrCat(function, ": ", ncclGetErrorString(result));
  const char* const details = ncclGetLastError(communicator);
  if (details != nullptr && *details != '\0') absl::StrAppend(&message, " (", details, ")");
  if (!what.empty()) absl::StrAppend(&message, ", ", what);
  // A peer that is gone, or the network to it.
  if (result == ncclRemoteError) return absl::UnavailableError(message);
  return absl::InternalError(message);
}

// Where the ranks meet.
struct Meeting {
  Meeting(const CudaGroupOptions& group, Abort& run) : options(group), abort(run), point(run) {}
  // False when the run has failed. `workspace_bytes` becomes the least of all ranks'.
  bool Arrive(int64_t& workspace_bytes);

  const CudaGroupOptions options;
  Abort& abort;
  ncclUniqueId id{};
  WaitPoint point;
  int arrived = 0;                                                // guarded by point
  int64_t least_workspace = std::numeric_limits<int64_t>::max();  // guarded by point
};

bool Meeting::Arrive(int64_t& workspace_bytes) {
  point.Notify([&] {
    ++arrived;
    least_workspace = std::min(least_workspace, workspace_bytes);
  });
  return point.WaitUntil([&] {
    workspace_bytes = least_workspace;
    return arrived == options.size;
  });
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(Meeting& meeting, int rank, CudaDevice& device)
      : meeting_(meeting), abort_(meeting.abort), rank_(rank), device_(device), log_(device) {}
  ~NcclCommunicator() override;
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  void SetUp();

  int rank() const override { return rank_; }
  int size() const override { return meeting_.options.size; }
  Traffic traffic() const override { return traffic_; }
  void Stop() override;

 private:
  using Describer = std::function<std::string()>;

  absl::Status Connect();
  absl::Status WarmUp(int64_t workspace_bytes);
  absl::Status WarmUp(Collective collective, const std::vector<int64_t>& sizes);
  void Call(Collective collective, Buffer buffer, int root, CallLabel label) override;
  // Puts a call into the stream, or lets it be when the run fails meanwhile.
  absl::Status Start(Collective collective, Buffer buffer, int root, cudaStream_t stream,
                     const Describer& what);
  ncclResult_t CallNccl(Collective collective, Buffer buffer, int root, cudaStream_t stream);
  // Waits until the communicator is done with `function`, which returned `result`, or the run has
  // failed. Meanwhile the stream is said to wait for `what`, and the worker for `function`.
  absl::Status Settle(ncclResult_t result, const char* function, const Describer& what);
  // While the worker waits for the GPU.
  void Look();

  Meeting& meeting_;
  Abort& abort_;
  const int rank_;
  CudaDevice& device_;
  ncclComm_t communicator_ = nullptr;
  int64_t calls_ = 0;
  Traffic traffic_;
  CallLog log_;
};

// Stop is the rule; a worker that ended in another way has left the others alone.
NcclCommunicator::~NcclCommunicator() {
  if (communicator_ == nullptr) return;
  device_.set_while_waiting(nullptr);
  (void)MakeCurrent(device_.gpu());
  (void)ncclCommAbort(communicator_);
}

void NcclCommunicator::SetUp() {
  absl::Status status = Connect();
  if (!status.ok()) return device_.Fail(std::move(status));
  device_.SetWaitingFor(kCommunication, "the other ranks' communicators");
  int64_t workspace_bytes = device_.workspace_bytes();
  if (!meeting_.Arrive(workspace_bytes)) return;
  device_.SetWaitingFor(kCommunication, "");
  device_.set_while_waiting([this] { Look(); });
  status = WarmUp(workspace_bytes);
  if (!status.ok()) return device_.Fail(std::move(status));
}

absl::Status NcclCommunicator::Connect() {
  if (abort_.failed()) return absl::OkStatus();
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const ncclResult_t result =
      ncclCommInitRankConfig(&communicator_, size(), meeting_.id, rank_, &config);
  return Settle(result, "ncclCommInitRankConfig", [this] {
    return absl::StrCat("the communicator of rank ", rank_, " of ", size(), " on GPU ",
                        device_.gpu());
  });
}

absl::Status NcclCommunicator::WarmUp(int64_t workspace_bytes) {
  const int64_t most =
      std::min(workspace_bytes, std::max(meeting_.options.largest_call_bytes, kLeastWarmUpBytes));
  std::vector<int64_t> sizes;
  for (int64_t bytes = kLeastWarmUpBytes; bytes < most; bytes *= kWarmUpFactor) {
    sizes.push_back(bytes);
  }
  sizes.push_back(most);
  // So that nothing is added that was never written.
  device_.Zero(kCommunication, {static_cast<std::byte*>(device_.workspace()),
                                most / SizeOf(DType::kFloat32), DType::kFloat32});
  for (const Collective collective : kAllCollectives) {
    absl::Status status = WarmUp(collective, sizes);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status NcclCommunicator::WarmUp(Collective collective, const std::vector<int64_t>& sizes) {
  std::string what = absl::StrCat("the first calls of ", FunctionOf(collective));
  for (const DType dtype : kWarmUpTypes) {
    if (dtype == DType::kFloat64 && collective != Collective::kAllReduce) continue;
    for (const int64_t bytes : sizes) {
      const int64_t elements = bytes / SizeOf(dtype) / size() * size();
      const Buffer buffer = {static_cast<std::byte*>(device_.workspace()), elements, dtype};
      if (buffer.empty()) continue;
      device_.Enqueue(kCommunication, "warm_up", [&](cudaStream_t stream) {
        return Start(collective, buffer, 0, stream, [&] { return what; });
      });
    }
  }
  const std::unique_ptr<Event> warm = device_.MakeEvent("collectives warm");
  device_.Record(*warm, kCommunication);
  device_.SetWaitingFor(kCommunication, what);
  absl::Status status = device_.HostWait(*warm);
  device_.SetWaitingFor(kCommunication, "");
  return status;
}

void NcclCommunicator::Call(Collective collective, Buffer buffer, int root, CallLabel label) {
  const CallInfo call = {rank_, calls_++, collective, label};
  if (abort_.failed()) return;
  absl::Status status = Ask(meeting_.options.hook, call);
  if (!status.ok()) return device_.Fail(std::move(status));
  device_.Enqueue(kCommunication, Name(collective), [&](cudaStream_t stream) {
    absl::Status status = log_.Begin(call, stream);
    if (status.ok()) {
      status = Start(collective, buffer, root, stream, [&] { return Describe(call); });
    }
    // Without an end it stays the call that the rank is in.
    if (!status.ok() || abort_.failed()) return status;
    Count(traffic_, collective, label, BytesSent(collective, buffer, rank_, size(), root));
    return log_.End(stream);
  });
}

absl::Status NcclCommunicator::Start(Collective collective, Buffer buffer, int root,
                                     cudaStream_t stream, const Describer& what) {
  if (buffer.empty()) return absl::OkStatus();
  return Settle(CallNccl(collective, buffer, root, stream), FunctionOf(collective), what);
}

ncclResult_t NcclCommunicator::CallNccl(Collective collective, Buffer buffer, int root,
                                        cudaStream_t stream) {
  const ncclDataType_t type = TypeOf(buffer.dtype);
  const auto elements = static_cast<size_t>(buffer.elements);
  const int64_t part = buffer.elements / size();
  const auto own_part = [&] {
    assert(part * size() == buffer.elements);
    return buffer.Slice(rank_ * part, part).data;
  };
  switch (collective) {
    case Collective::kAllGather:
      return ncclAllGather(own_part(), buffer.data, static_cast<size_t>(part), type, communicator_,
                           stream);
    case Collective::kReduceScatter:
      return ncclReduceScatter(buffer.data, own_part(), static_cast<size_t>(part), type, ncclSum,
                               communicator_, stream);
    case Collective::kAllReduce:
      return ncclAllReduce(buffer.data, buffer.data, elements, type, ncclSum, communicator_,
                           stream);
    case Collective::kBroadcast:
      return ncclBroadcast(buffer.data, buffer.data, elements, type, root, communicator_, stream);
  }
  return ncclInvalidArgument;
}

absl::Status NcclCommunicator::Settle(ncclResult_t result, const char* function,
                                      const Describer& what) {
  bool said = false;
  bool waited = false;
  for (Pause pause;; pause()) {
    if (result != ncclSuccess && result != ncclInProgress) {
      return ToError(result, function, communicator_, what());
    }
    if (abort_.failed()) return absl::OkStatus();
    const ncclResult_t asked = ncclCommGetAsyncError(communicator_, &result);
    if (asked != ncclSuccess) {
      return ToError(asked, "ncclCommGetAsyncError", communicator_, what());
    }
    if (result == ncclSuccess) break;
    if (!waited) device_.SetWaitingFor(StreamId::kCompute, function);
    waited = true;
    // Unless the stream is known to be in an earlier call.
    if (!said && device_.WaitingFor(kCommunication).empty()) {
      device_.SetWaitingFor(kCommunication, what());
      said = true;
    }
  }
  if (said) device_.SetWaitingFor(kCommunication, "");
  if (waited) device_.SetWaitingFor(StreamId::kCompute, "");
  // What NCCL tried in vain on the way is its own affair, and not the next call's error.
  (void)cudaGetLastError();
  return absl::OkStatus();
}

void NcclCommunicator::Look() {
  log_.Look();
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(communicator_, &state);
  const ncclResult_t error = asked != ncclSuccess ? asked : state;
  if (error == ncclSuccess || error == ncclInProgress) return;
  const std::string call = device_.WaitingFor(kCommunication);
  device_.Fail(ToError(error, "ncclCommGetAsyncError", communicator_,
                       call.empty() ? "" : absl::StrCat("in ", call)));
}

void NcclCommunicator::Stop() {
  device_.set_while_waiting(nullptr);
  if (communicator_ == nullptr) return;
  bool finalized = false;
  if (!abort_.failed()) {
    // Its last calls have ended then: until that it is in one of them, and sees its GPU break.
    Look();
    for (Pause pause; log_.calls() > 0 && !abort_.failed(); pause()) Look();
  }
  if (!abort_.failed()) {
    absl::Status status = Settle(ncclCommFinalize(communicator_), "ncclCommFinalize",
                                 [] { return "the end of all ranks' calls"; });
    finalized = status.ok() && !abort_.failed();
    if (!status.ok()) device_.Fail(std::move(status));
  }
  // In both cases it is gone, whatever they return.
  (void)(finalized ? ncclCommDestroy(communicator_) : ncclCommAbort(communicator_));
  communicator_ = nullptr;
}

class NcclGroup final : public Group {
 public:
  NcclGroup(const CudaGroupOptions& options, Abort& abort) : meeting_(options, abort) {}
  absl::Status GetId() {
    const ncclResult_t result = ncclGetUniqueId(&meeting_.id);
    return result == ncclSuccess ? absl::OkStatus()
                                 : ToError(result, "ncclGetUniqueId", nullptr, "");
  }
  std::unique_ptr<Communicator> Join(int rank, Device& device) override {
    auto joined =
        std::make_unique<NcclCommunicator>(meeting_, rank, static_cast<CudaDevice&>(device));
    joined->SetUp();
    return joined;
  }

 private:
  Meeting meeting_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Group>> MakeNcclGroup(const CudaGroupOptions& options,
                                                     Abort& abort) {
  absl::Status status = CheckNccl();
  if (!status.ok()) return status;
  auto group = std::make_unique<NcclGroup>(options, abort);
  status = group->GetId();
  if (!status.ok()) return status;
  return group;
}

}  // namespace zerobox::cuda

namespace zerobox {

absl::Status CheckNccl() {
  const std::string problem = cuda::NcclProblem();
  if (problem.empty()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "several GPUs need NCCL, by which they send each other what they have: ", problem,
      ". Install NCCL (libnccl2), or set NCCL_HOME to where it is"));
}

}  // namespace zerobox
