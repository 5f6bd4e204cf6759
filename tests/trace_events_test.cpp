// SPDX-License-Identifier: Apache-2.0
#include "trainer/trace_events.h"

#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/small_report.h"
#include "tests/small_run.h"

namespace zerobox {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<Json> Events(const StepTrace& trace, const std::string& phase) {
  const Json json = Json::parse(TraceEventsText(trace));
  std::vector<Json> events;
  for (const Json& event : json["traceEvents"]) {
    if (event["ph"] == phase) events.push_back(event);
  }
  return events;
}

// In nanoseconds.
int64_t Nanoseconds(const Json& microseconds) {
  return std::llround(microseconds.get<double>() * 1000);
}

TEST(TraceEvents, NameRanksAndTheirStreams) {
  std::vector<std::string> names;
  for (const Json& event : Events(SmallTrace(), "M")) {
    if (event["name"] == "process_name" || event["name"] == "thread_name") {
      names.push_back(event["pid"].dump() + " " + event.value("tid", Json("-")).dump() + " " +
                      event["args"]["name"].get<std::string>());
    }
  }
  EXPECT_THAT(names, ElementsAre("1 \"-\" device 0", "1 10 compute", "1 11 communication",
                                 "1 13 from_host", "2 \"-\" device 1", "2 20 compute",
                                 "2 21 communication", "2 23 from_host"));
}

TEST(TraceEvents, SayWhatWasDoneWhenInMicroseconds) {
  const std::vector<Json> events = Events(SmallTrace(), "X");
  ASSERT_EQ(events.size(), 12u);
  EXPECT_EQ(events[1], Json::parse(R"({"ph":"X","name":"all-gather block 0","cat":"all_gather",
      "pid":1,"tid":11,"ts":0.02,"dur":0.1,
      "args":{"op":1,"phase":"forward","micro_batch":0,"unit":1,"elements":100,"bytes":200,
              "purpose":"parameters"}})"));
  std::vector<std::string> names;
  for (size_t i = 0; i < 6; ++i) names.push_back(events[i]["name"].get<std::string>());
  EXPECT_THAT(names, ElementsAre("forward lookup", "all-gather block 0", "forward block 0",
                                 "forward block 0", "all-reduce scalars", "copy batch"));
}

TEST(TraceEvents, KeepNanosecondsOfALongStep) {
  StepTrace trace = SmallTrace();
  trace.ranks[1].spans.back() = {4, 3600000000001, 3600000000008};
  const Json last = Events(trace, "X").back();
  EXPECT_EQ(Nanoseconds(last["ts"]), 3600000000001);
  EXPECT_EQ(Nanoseconds(last["dur"]), 7);
  EXPECT_THAT(TraceEventsText(trace), HasSubstr("\"ts\":3600000000.001,"));
}

TEST(TraceEvents, JoinACollectiveFromTheFirstRankToTheLast) {
  StepTrace trace = SmallTrace();
  trace.ranks.push_back(trace.ranks[0]);
  for (TraceSpan& span : trace.ranks[2].spans) {
    if (span.op == 1) span = {1, 40, 120};
    if (span.op == 3) span = {3, 700, 700};  // of no length: no arrow can end in it
  }
  std::vector<std::string> arrows;
  const Json json = Json::parse(TraceEventsText(trace));
  for (const Json& event : json["traceEvents"]) {
    const auto phase = event["ph"].get<std::string>();
    if (phase != "s" && phase != "t" && phase != "f") continue;
    EXPECT_EQ(event.value("bp", ""), phase == "f" ? "e" : "");
    arrows.push_back(event["id"].dump() + phase + " " + event["tid"].dump() + " " +
                     std::to_string(Nanoseconds(event["ts"])));
  }
  EXPECT_THAT(arrows, ElementsAre("2s 11 20", "2t 31 40", "2f 21 60", "4s 11 600", "4f 21 650"));
}

TEST(TraceEvents, BeginAnArrowInTheLongestPieceOfACollective) {
  StepTrace trace = SmallTrace();
  std::vector<TraceSpan>& spans = trace.ranks[0].spans;
  spans.insert(spans.begin() + 1, {1, 5, 10});
  EXPECT_EQ(Nanoseconds(Events(trace, "s").at(0)["ts"]), 20);
}

TEST(TraceEvents, CountMemoryByCategoryWheneverItChanges) {
  std::vector<std::string> points;
  for (const Json& event : Events(SmallTrace(), "C")) {
    if (event["pid"] == 2) continue;  // the same
    points.push_back(event["name"].get<std::string>() + " " +
                     std::to_string(Nanoseconds(event["ts"])) + " " +
                     event["args"]["bytes"].dump());
  }
  EXPECT_THAT(points,
              ElementsAre("memory: parameters 0 1000", "memory: activations 150 50",
                          "memory: activations 600 0", "memory: communication_buffers 20 400",
                          "memory: communication_buffers 600 0"));
}

// A real step, of every stage: the same step as the trace has it.
TEST(TraceEvents, AreWholeForARealStepOfEveryStage) {
  for (int stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE(stage);
    TrainSettings settings = SmallSettings();
    settings.zero_stage = stage;
    settings.devices = 3;
    settings.grad_accum = 2;
    settings.steps = 3;
    settings.trace_step = kTraceLast;
    const SmallRun run = RunSmall(settings);
    ASSERT_TRUE(run.result.status.ok()) << run.result.status;
    ASSERT_TRUE(run.result.trace.has_value());
    const StepTrace& trace = *run.result.trace;
    const Json json = Json::parse(TraceEventsText(trace));

    size_t spans = 0;
    std::map<std::pair<int, int>, std::vector<std::pair<int64_t, int64_t>>> threads;
    std::map<int, std::string> flows;
    std::map<std::string, std::map<int64_t, int64_t>> counters;
    for (const Json& event : json["traceEvents"]) {
      const auto phase = event["ph"].get<std::string>();
      ASSERT_THAT(phase, testing::AnyOf("M", "X", "C", "s", "t", "f"));
      if (phase == "M") continue;
      const int64_t at = Nanoseconds(event["ts"]);
      ASSERT_GE(at, 0);
      ASSERT_LE(at, trace.duration_ns);
      if (phase == "X") {
        ++spans;
        ASSERT_GE(Nanoseconds(event["dur"]), 0);
        ASSERT_LE(at + Nanoseconds(event["dur"]), trace.duration_ns);
        threads[{event["pid"], event["tid"]}].emplace_back(at, at + Nanoseconds(event["dur"]));
      } else if (phase == "C") {
        ASSERT_GE(event["args"]["bytes"].get<int64_t>(), 0);
        counters[event["pid"].dump() + event["name"].get<std::string>()][at] =
            event["args"]["bytes"];
      } else {
        flows[event["id"]] += phase;
        // It lies in a span of its thread.
        bool inside = false;
        for (const auto& [begin, end] : threads.at({event["pid"], event["tid"]})) {
          inside = inside || (begin <= at && at < end);
        }
        ASSERT_TRUE(inside) << event;
      }
    }
    size_t expected = 0, changes = 0;
    for (const StepTrace::Rank& rank : trace.ranks) {
      expected += rank.spans.size();
      changes += 2 * rank.regions.size();
    }
    EXPECT_EQ(spans, expected);
    EXPECT_FALSE(flows.empty());
    for (const auto& [id, phases] : flows) EXPECT_THAT(phases, testing::MatchesRegex("st?f"));
    // At every point, what lives of the category by its regions.
    size_t points = 0;
    for (size_t rank = 0; rank < trace.ranks.size(); ++rank) {
      for (int c = 0; c < kCategories; ++c) {
        const auto category = static_cast<Category>(c);
        for (const auto& [at, bytes] :
             counters[std::to_string(rank + 1) + "memory: " + std::string(Name(category))]) {
          ++points;
          int64_t live = 0;
          for (const TraceRegion& region : trace.ranks[rank].regions) {
            if (region.category == category && region.begin_ns <= at &&
                (region.end_ns < 0 || region.end_ns > at)) {
              live += region.bytes;
            }
          }
          EXPECT_EQ(bytes, live) << Name(category) << " at " << at;
        }
      }
    }
    EXPECT_GT(points, 3u * kCategories);
    EXPECT_LE(points, changes);
  }
}

}  // namespace
}  // namespace zerobox
