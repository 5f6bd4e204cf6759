// SPDX-License-Identifier: Apache-2.0
#include "trainer/trace_events.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "nlohmann/json.hpp"
#include "trainer/step_programs.h"

namespace zerobox {
namespace {

using Json = nlohmann::ordered_json;

// Microseconds, exact to the nanosecond for steps below a month.
double Microseconds(int64_t ns) { return static_cast<double>(ns) / 1000; }

// Viewers take process 0 and thread 0 for the machine's idle ones.
int ProcessOf(size_t rank) { return static_cast<int>(rank) + 1; }
int ThreadOf(size_t rank, StreamId stream) {
  return ProcessOf(rank) * 10 + static_cast<int>(stream);
}

bool IsCollective(OpKind kind) {
  return kind == OpKind::kAllGather || kind == OpKind::kReduceScatter ||
         kind == OpKind::kAllReduce || kind == OpKind::kBroadcast;
}

// "forward block 3", "all-gather ends", "all-reduce scalars", "copy checkpoint of block 2".
std::string NameOf(const TraceOp& op) {
  const std::string kind = absl::StrReplaceAll(std::string(Name(op.kind)), {{"_", "-"}});
  const std::string purpose(Name(op.purpose));
  const std::string what = op.unit >= 0 ? UnitName(op.unit) : op.layer;
  if (op.kind == OpKind::kCopy) {
    return absl::StrCat(kind, " ", purpose, what.empty() ? "" : " of ", what);
  }
  if (IsCollective(op.kind)) return absl::StrCat(kind, " ", what.empty() ? purpose : what);
  const std::string& visit = op.layer.empty() ? what : op.layer;
  return absl::StrCat(kind, visit.empty() ? "" : " ", visit);
}

class Writer {
 public:
  explicit Writer(const StepTrace& trace) : trace_(trace) {}

  std::string Text() {
    for (size_t rank = 0; rank < trace_.ranks.size(); ++rank) {
      AddNames(rank);
      AddSpans(rank);
      AddMemory(rank);
    }
    AddFlows();
    return absl::StrCat("{\"displayTimeUnit\":\"ns\",\"otherData\":{\"step\":", trace_.step,
                        "},\"traceEvents\":[\n", events_, "\n]}\n");
  }

 private:
  void Add(const Json& event) {
    absl::StrAppend(&events_, events_.empty() ? "" : ",\n",
                    event.dump(-1, ' ', false, Json::error_handler_t::replace));
  }

  void AddNames(size_t rank) {
    const auto add = [&](const char* what, int thread, const Json& arguments) {
      Json event = {{"ph", "M"}, {"name", what}, {"pid", ProcessOf(rank)}};
      if (thread >= 0) event["tid"] = thread;
      event["args"] = arguments;
      Add(event);
    };
    add("process_name", -1, {{"name", absl::StrCat("device ", rank)}});
    add("process_sort_index", -1, {{"sort_index", rank}});
    for (int i = 0; i < kStreams; ++i) {
      const auto stream = static_cast<StreamId>(i);
      const bool used = std::any_of(trace_.ops.begin(), trace_.ops.end(),
                                    [&](const TraceOp& op) { return op.stream == stream; });
      if (!used) continue;
      add("thread_name", ThreadOf(rank, stream), {{"name", Name(stream)}});
      add("thread_sort_index", ThreadOf(rank, stream), {{"sort_index", i}});
    }
  }

  void AddSpans(size_t rank) {
    for (const TraceSpan& span : trace_.ranks[rank].spans) {
      const TraceOp& op = trace_.ops.at(static_cast<size_t>(span.op));
      Json arguments = {{"op", span.op}, {"phase", Name(op.phase)}};
      if (op.micro_batch >= 0) arguments["micro_batch"] = op.micro_batch;
      if (op.unit >= 0) arguments["unit"] = op.unit;
      if (op.elements > 0) arguments["elements"] = op.elements;
      if (op.bytes > 0) arguments["bytes"] = op.bytes;
      if (op.purpose != OpPurpose::kNone) arguments["purpose"] = Name(op.purpose);
      Add({{"ph", "X"},
           {"name", NameOf(op)},
           {"cat", Name(op.kind)},
           {"pid", ProcessOf(rank)},
           {"tid", ThreadOf(rank, op.stream)},
           {"ts", Microseconds(span.begin_ns)},
           {"dur", Microseconds(span.end_ns - span.begin_ns)},
           {"args", std::move(arguments)}});
    }
  }

  // What lives of each category, whenever that changes.
  void AddMemory(size_t rank) {
    PerCategory<std::map<int64_t, int64_t>> changes;
    for (const TraceRegion& region : trace_.ranks[rank].regions) {
      std::map<int64_t, int64_t>& of_category = changes[static_cast<size_t>(region.category)];
      of_category[std::max<int64_t>(region.begin_ns, 0)] += region.bytes;
      if (region.end_ns >= 0) of_category[region.end_ns] -= region.bytes;
    }
    for (size_t i = 0; i < kCategories; ++i) {
      const std::string name =
          absl::StrCat("memory: ", std::string(Name(static_cast<Category>(i))));
      int64_t live = 0;
      for (const auto& [ns, change] : changes[i]) {
        if (change == 0) continue;
        live += change;
        Add({{"ph", "C"},
             {"name", name},
             {"pid", ProcessOf(rank)},
             {"ts", Microseconds(ns)},
             {"args", {{"bytes", live}}}});
      }
    }
  }

  // An arrow for each collective, from the rank that began it first to the one that began it last.
  void AddFlows() {
    struct End {
      int64_t ns, duration;
      size_t rank;
    };
    std::map<int, std::vector<End>> collectives;  // by op; the longest piece of each rank
    for (size_t rank = 0; rank < trace_.ranks.size(); ++rank) {
      for (const TraceSpan& span : trace_.ranks[rank].spans) {
        const int64_t duration = span.end_ns - span.begin_ns;
        // An arrow's end is bound to the span around it, and nothing is in an empty one.
        if (duration == 0 || !IsCollective(trace_.ops[static_cast<size_t>(span.op)].kind)) continue;
        std::vector<End>& ends = collectives[span.op];
        if (ends.empty() || ends.back().rank != rank) {
          ends.push_back({span.begin_ns, duration, rank});
        } else if (duration > ends.back().duration) {
          ends.back() = {span.begin_ns, duration, rank};
        }
      }
    }
    for (auto& [op, ends] : collectives) {
      if (ends.size() < 2) continue;
      std::stable_sort(ends.begin(), ends.end(),
                       [](const End& a, const End& b) { return a.ns < b.ns; });
      const TraceOp& what = trace_.ops[static_cast<size_t>(op)];
      for (size_t i = 0; i < ends.size(); ++i) {
        const bool last = i + 1 == ends.size();
        Json event = {{"ph", i == 0 ? "s"
                             : last ? "f"
                                    : "t"},
                      {"id", op + 1},
                      {"name", NameOf(what)},
                      {"cat", "collective"},
                      {"pid", ProcessOf(ends[i].rank)},
                      {"tid", ThreadOf(ends[i].rank, what.stream)},
                      {"ts", Microseconds(ends[i].ns)}};
        if (last) event["bp"] = "e";
        Add(event);
      }
    }
  }

  const StepTrace& trace_;
  std::string events_;
};

}  // namespace

std::string TraceEventsText(const StepTrace& trace) { return Writer(trace).Text(); }

}  // namespace zerobox
