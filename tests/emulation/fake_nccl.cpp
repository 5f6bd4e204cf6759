// SPDX-License-Identifier: Apache-2.0
#include "tests/emulation/fake_nccl.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ops/cuda/nccl_library.h"
#include "tests/emulation/fake_collective.h"
#include "tests/emulation/fake_machine.h"
#include "tests/emulation/fake_runtime.h"

namespace zerobox::fake_nccl {
namespace {

using fake_cuda::Access;
using fake_cuda::Machine;
using fake_cuda::Meeting;
using fake_cuda::Operation;
using fake_cuda::Report;

constexpr int kMostPolls = 3;

struct Clique {
  int size = 0;
  std::map<int, int> devices;                                 // of the ranks that have joined
  std::vector<std::shared_ptr<Collective>> calls;             // by number
  std::set<std::tuple<Kind, int, ncclDataType_t>> connected;  // kinds, classes of size, types
  int finalized = 0;
};

// A communicator is in progress until `others` holds, then for some polls, then `finish` is done.
struct Progress {
  std::function<bool()> others;
  int polls = 0;
  std::function<ncclResult_t()> finish;
};

}  // namespace
}  // namespace zerobox::fake_nccl

// What NCCL's handle points to. It stays until the machine is reset, so that a use of one that is
// gone is seen.
struct ncclComm {
  std::shared_ptr<zerobox::fake_nccl::Clique> clique;
  int rank = 0, device = 0;
  int64_t thread = 0;
  bool gone = false, finalized = false;
  size_t calls = 0, begun = 0;
  std::vector<std::pair<cudaStream_t, std::shared_ptr<zerobox::fake_cuda::Meeting>>> in_streams;
  ncclResult_t error = ncclSuccess;
  std::optional<zerobox::fake_nccl::Progress> progress;  // else it is ready
};

namespace zerobox::fake_nccl {
namespace {

// Under the machine's lock.
struct State {
  std::map<std::string, std::shared_ptr<Clique>> cliques;  // by id
  std::deque<ncclComm> communicators;
  Counts counts;
  uint64_t seed = 1;
  std::string last_error;
};

State& TheState() {
  static State* state = [] {
    auto* made = new State;
    Machine::Get().OnReset([made] { *made = {}; });
    return made;
  }();
  return *state;
}

ncclResult_t Fail(ncclResult_t error, const std::string& why) {
  TheState().last_error = why;
  return error;
}
ncclResult_t Misuse(const char* function, const std::string& why) {
  Report(std::string("NCCL: ") + function + ": " + why);
  return Fail(ncclInvalidUsage, why);
}

// A thread that ends must have given its communicators back.
struct ThreadEnd {
  ~ThreadEnd() {
    const std::lock_guard<std::mutex> lock(Machine::Get().mutex());
    for (const ncclComm& communicator : TheState().communicators) {
      if (communicator.thread != thread || communicator.gone) continue;
      Report("NCCL: the thread of rank " + std::to_string(communicator.rank) +
             " ends and has neither destroyed nor aborted its communicator");
    }
  }
  int64_t thread = 0;
};

// Null when it may be used.
const char* Complaint(ncclComm_t communicator) {
  if (communicator == nullptr) return "there is no communicator";
  if (communicator->gone) return "the communicator is destroyed or aborted";
  if (communicator->thread != Machine::Get().thread().id) {
    return "the communicator is another thread's";
  }
  return nullptr;
}

// Runs body() under the lock, unless the call is to fail.
template <typename Body>
ncclResult_t Call(const char* function, const Body& body) {
  Machine& machine = Machine::Get();
  const std::lock_guard<std::mutex> lock(machine.mutex());
  fake_cuda::HostThread& thread = machine.thread();
  thread.Acts();
  machine.NoteProgress();
  if (machine.CountCall(function, thread.device) != cudaSuccess) {
    return Fail(ncclInternalError, "the test wants it");
  }
  return body();
}

// The same with a communicator, which must be one that may be used now.
template <typename Body>
ncclResult_t Call(const char* function, ncclComm_t communicator, const Body& body) {
  return Call(function, [&]() -> ncclResult_t {
    if (const char* complaint = Complaint(communicator)) return Misuse(function, complaint);
    if (communicator->progress.has_value()) {
      return Misuse(function, "the communicator is in progress");
    }
    if (communicator->finalized) return Misuse(function, "the communicator is finalized");
    if (communicator->error != ncclSuccess) return communicator->error;
    if (Machine::Get().broken(communicator->device) != cudaSuccess) {
      return Fail(ncclUnhandledCudaError, "the device is broken");
    }
    return body();
  });
}

// `finish` is done after a few polls, but not before `others` holds (null: it does).
ncclResult_t Begin(ncclComm_t communicator, std::function<bool()> others,
                   std::function<ncclResult_t()> finish) {
  uint64_t hash = TheState().seed;
  for (const size_t value : {static_cast<size_t>(communicator->rank), ++communicator->begun}) {
    hash = (hash ^ value) * 0xBF58476D1CE4E5B9ull;
    hash ^= hash >> 31;
  }
  const int polls = static_cast<int>(hash % (kMostPolls + 1));
  if (others == nullptr && polls == 0) return finish();
  communicator->progress = Progress{std::move(others), polls, std::move(finish)};
  return ncclInProgress;
}

ncclResult_t Poll(ncclComm_t communicator) {
  Machine& machine = Machine::Get();
  Progress& progress = *communicator->progress;
  if (progress.others != nullptr) {
    if (!progress.others()) {
      ++TheState().counts.in_progress;
      if (machine.Poll(communicator, progress.others)) return ncclInProgress;
      communicator->progress.reset();
      return communicator->error = Fail(ncclSystemError, "the other ranks do not come");
    }
    progress.others = nullptr;
  }
  machine.thread().Acts();
  if (progress.polls-- > 0) {
    ++TheState().counts.in_progress;
    return ncclInProgress;
  }
  const auto finish = std::move(progress.finish);
  communicator->progress.reset();
  return communicator->error = finish();
}

// ---- collectives ----

int SizeClass(size_t bytes) { return bytes <= 16 << 10 ? 0 : bytes <= 512 << 10 ? 1 : 2; }

// The clique's call of this number, which the rank makes too.
Collective& Join(Clique& clique, size_t number, const Signature& signature, int rank) {
  if (clique.calls.size() <= number) clique.calls.resize(number + 1);
  if (clique.calls[number] == nullptr) {
    auto made = std::make_shared<Collective>();
    made->signature = signature;
    made->from.resize(static_cast<size_t>(clique.size));
    made->to.resize(static_cast<size_t>(clique.size));
    made->meeting->size = static_cast<size_t>(clique.size);
    made->meeting->work = [call = made.get()] {
      Run(*call);
      ++TheState().counts.collectives;
    };
    made->connects =
        clique.connected
            .insert({signature.kind, SizeClass(WholeBytes(signature, clique.size)), signature.type})
            .second;
    clique.calls[number] = std::move(made);
  }
  Collective& call = *clique.calls[number];
  if (call.signature.Tie() != signature.Tie()) {
    Report("NCCL: call number " + std::to_string(number) + " of rank " + std::to_string(rank) +
           " is " + Describe(signature) + ", and that of another rank is " +
           Describe(call.signature) + ": it never ends");
    call.meeting->never = true;
  }
  return call;
}

ncclResult_t Enqueue(ncclComm_t communicator, const Signature& signature, const Collective& call,
                     cudaStream_t stream) {
  const auto rank = static_cast<size_t>(communicator->rank);
  std::vector<Access> accesses = Accesses(signature, call.from[rank], call.to[rank],
                                          communicator->rank, communicator->clique->size);
  std::erase_if(communicator->in_streams, [](const auto& in) { return in.second->done; });
  communicator->in_streams.emplace_back(stream, call.meeting);
  const cudaError_t error = Machine::Get().Push(stream, {.kind = Operation::Kind::kMeeting,
                                                         .name = signature.function,
                                                         .accesses = std::move(accesses),
                                                         .work = nullptr,
                                                         .record = nullptr,
                                                         .meeting = call.meeting,
                                                         .host = {}});
  return error == cudaSuccess ? ncclSuccess
                              : Fail(ncclUnhandledCudaError, "the stream does not take it");
}

ncclResult_t CallCollective(const Signature& signature, const void* from, void* to,
                            ncclComm_t communicator, cudaStream_t stream) {
  const char* const function = signature.function;
  return Call(function, communicator, [&]() -> ncclResult_t {
    Clique& clique = *communicator->clique;
    const int rank = communicator->rank;
    if (BytesOf(signature.type) == 0 || signature.operation != ncclSum) {
      return Misuse(function, "a type or an operation that is not known here");
    }
    if (signature.root < 0 || signature.root >= clique.size) return Misuse(function, "the root");
    if (WronglyInPlace(signature, from, to, rank, clique.size)) {
      return Misuse(function, "both buffers overlap, and it is not in place");
    }
    if (signature.elements == 0) return ncclSuccess;
    Collective& call = Join(clique, communicator->calls++, signature, rank);
    call.from[static_cast<size_t>(rank)] = from;
    call.to[static_cast<size_t>(rank)] = to;
    ++call.calls;
    std::function<bool()> others;
    if (call.connects) {
      ++TheState().counts.connected;
      others = [&call, &clique] { return call.calls == clique.size; };
    }
    return Begin(communicator, std::move(others), [communicator, signature, &call, stream] {
      return Enqueue(communicator, signature, call, stream);
    });
  });
}

// ---- communicators ----

ncclResult_t FindDuplicateGpus(const Clique& clique) {
  for (const auto& [rank, device] : clique.devices) {
    for (const auto& [other, device_of_other] : clique.devices) {
      if (other <= rank || device != device_of_other) continue;
      return Fail(ncclInvalidUsage, "Duplicate GPU detected: rank " + std::to_string(rank) +
                                        " and rank " + std::to_string(other) +
                                        " both on CUDA device " + std::to_string(device));
    }
  }
  return ncclSuccess;
}

ncclResult_t Initialize(ncclComm_t* communicator, int ranks, const ncclUniqueId& id, int rank,
                        const ncclConfig_t& config) {
  const char* const function = "ncclCommInitRankConfig";
  const ncclConfig_t initial = NCCL_CONFIG_INITIALIZER;
  if (config.size != initial.size || config.magic != initial.magic) {
    return Misuse(function, "the configuration is not initialized");
  }
  if (config.blocking != 0) return Misuse(function, "the communicator is a blocking one");
  const auto found = TheState().cliques.find(id.internal);
  if (found == TheState().cliques.end()) return Misuse(function, "the id is unknown");
  const std::shared_ptr<Clique>& clique = found->second;
  if (clique->size == 0) clique->size = ranks;
  const int device = Machine::Get().thread().device;
  if (clique->size != ranks || rank < 0 || rank >= ranks ||
      !clique->devices.emplace(rank, device).second) {
    return Misuse(function, "this rank, of so many, does not fit to the others");
  }
  ncclComm& made = TheState().communicators.emplace_back();
  made.clique = clique;
  made.rank = rank;
  made.device = device;
  made.thread = Machine::Get().thread().id;
  thread_local ThreadEnd end;
  end.thread = made.thread;
  ++TheState().counts.living;
  *communicator = &made;
  const auto all_are_there = [clique] {
    return static_cast<int>(clique->devices.size()) == clique->size;
  };
  return Begin(&made, all_are_there, [clique] { return FindDuplicateGpus(*clique); });
}

ncclResult_t Finalize(ncclComm_t communicator) {
  ++communicator->clique->finalized;
  const auto quiescent = [communicator] {
    const auto& calls = communicator->in_streams;
    return communicator->clique->finalized == communicator->clique->size &&
           std::all_of(calls.begin(), calls.end(),
                       [](const auto& call) { return call.second->done; });
  };
  return Begin(communicator, quiescent, [communicator] {
    communicator->finalized = true;
    return ncclSuccess;
  });
}

// Also where it is to fail: then it is gone too.
ncclResult_t GiveBack(const char* function, ncclComm_t communicator, bool abort) {
  bool entered = false;
  const auto give_back = [&]() -> ncclResult_t {
    entered = true;
    if (const char* complaint = Complaint(communicator)) return Misuse(function, complaint);
    if (!abort && !communicator->finalized) Misuse(function, "the communicator is not finalized");
    for (const auto& [stream, meeting] : communicator->in_streams) {
      if (!meeting->done) Machine::Leave(stream, meeting);
    }
    communicator->gone = true;
    communicator->progress.reset();
    Counts& counts = TheState().counts;
    --counts.living;
    ++(abort ? counts.aborted : counts.destroyed);
    return ncclSuccess;
  };
  const ncclResult_t result = Call(function, give_back);
  if (entered) return result;
  const std::lock_guard<std::mutex> lock(Machine::Get().mutex());
  give_back();
  return result;
}

}  // namespace

void SetSeed(uint64_t seed) {
  const std::lock_guard<std::mutex> lock(Machine::Get().mutex());
  TheState().seed = seed;
}

void FailAsynchronously(int device, ncclResult_t error) {
  const std::lock_guard<std::mutex> lock(Machine::Get().mutex());
  for (ncclComm& communicator : TheState().communicators) {
    if (communicator.device != device) continue;
    communicator.progress.reset();
    communicator.error = Fail(error, "the test wants it");
  }
}

Counts CountsNow() {
  const std::lock_guard<std::mutex> lock(Machine::Get().mutex());
  return TheState().counts;
}

}  // namespace zerobox::fake_nccl

namespace zerobox::cuda {
std::string NcclProblem() { return ""; }
}  // namespace zerobox::cuda

using namespace zerobox::fake_nccl;  // NOLINT(google-build-using-namespace)

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return Call("ncclGetUniqueId", [&] {
    *id = {};
    std::snprintf(id->internal, sizeof id->internal, "clique %zu", TheState().cliques.size());
    TheState().cliques[id->internal] = std::make_shared<Clique>();
    return ncclSuccess;
  });
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* communicator, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  *communicator = nullptr;
  return Call("ncclCommInitRankConfig",
              [&] { return Initialize(communicator, ranks, id, rank, *config); });
}

// A thread that asks between two questions for something else still waits for that.
ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* error) {
  const char* const function = "ncclCommGetAsyncError";
  Machine& machine = Machine::Get();
  const std::lock_guard<std::mutex> lock(machine.mutex());
  if (machine.CountCall(function, machine.thread().device) != cudaSuccess) {
    return Fail(ncclInternalError, "the test wants it");
  }
  if (const char* complaint = Complaint(communicator)) return Misuse(function, complaint);
  *error = communicator->progress.has_value() ? Poll(communicator) : communicator->error;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t communicator) {
  return Call("ncclCommFinalize", communicator, [&] { return Finalize(communicator); });
}

ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  return GiveBack("ncclCommDestroy", communicator, /*abort=*/false);
}

ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  return GiveBack("ncclCommAbort", communicator, /*abort=*/true);
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t elements, ncclDataType_t type,
                           ncclRedOp_t operation, ncclComm_t communicator, cudaStream_t stream) {
  return CallCollective({Kind::kAllReduce, "ncclAllReduce", elements, type, 0, operation}, from, to,
                        communicator, stream);
}

ncclResult_t ncclReduceScatter(const void* from, void* to, size_t elements, ncclDataType_t type,
                               ncclRedOp_t operation, ncclComm_t communicator,
                               cudaStream_t stream) {
  return CallCollective({Kind::kReduceScatter, "ncclReduceScatter", elements, type, 0, operation},
                        from, to, communicator, stream);
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t elements, ncclDataType_t type,
                           ncclComm_t communicator, cudaStream_t stream) {
  return CallCollective({Kind::kAllGather, "ncclAllGather", elements, type}, from, to, communicator,
                        stream);
}

ncclResult_t ncclBroadcast(const void* from, void* to, size_t elements, ncclDataType_t type,
                           int root, ncclComm_t communicator, cudaStream_t stream) {
  return CallCollective({Kind::kBroadcast, "ncclBroadcast", elements, type, root}, from, to,
                        communicator, stream);
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

const char* ncclGetLastError(ncclComm_t) {
  thread_local std::string error;
  const std::lock_guard<std::mutex> lock(Machine::Get().mutex());
  error = TheState().last_error;
  return error.c_str();
}

}  // extern "C"
