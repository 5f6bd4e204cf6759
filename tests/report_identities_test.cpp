// SPDX-License-Identifier: Apache-2.0
//
// What docs/report_data.md says holds in every report, of real runs.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/small_run.h"
#include "trainer/report.h"

namespace zerobox {
namespace {

using Json = ReportObject;

struct Region {
  int64_t rank, bytes, begin, end, unit;
  std::string category, holds, extent;
};
struct Op {
  std::string kind, stream, phase, layer, purpose;
  int64_t unit, bytes;
};
struct Span {
  int64_t op, rank, begin, end;
};

// Columns by their names, as the page reads them.
class Table {
 public:
  Table(const Json& fields, const Json& rows) : fields_(fields), rows_(rows) {}
  size_t size() const { return rows_.size(); }
  template <typename T>
  T Get(size_t row, const char* field) const {
    const auto at = std::find(fields_.begin(), fields_.end(), field) - fields_.begin();
    return rows_.at(row).at(static_cast<size_t>(at)).get<T>();
  }

 private:
  const Json& fields_;
  const Json& rows_;
};

struct Case {
  int stage;
  bool bf16 = false;
  int micro_batches = 2;
  bool offload = false;
  std::string name() const {
    return "stage" + std::to_string(stage) + (bf16 ? "_bf16" : "_fp32") + "_" +
           std::to_string(micro_batches) + (offload ? "_offload" : "");
  }
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name(); }

class ReportIdentities : public testing::TestWithParam<Case> {
 protected:
  static constexpr int64_t kRanks = 3;

  void SetUp() override {
    ResolvedTrain resolved;
    TrainSettings& settings = resolved.settings;
    settings = SmallSettings();
    settings.zero_stage = GetParam().stage;
    settings.devices = kRanks;
    settings.grad_accum = GetParam().micro_batches;
    settings.steps = 3;
    settings.eval_interval = 0;
    settings.trace_step = kTraceLast;
    settings.offload_optimizer = GetParam().offload;
    if (GetParam().bf16) settings.dtype = DType::kBFloat16;
    settings.grad_accum_dtype = settings.dtype;
    settings.bucket_bytes = 16 << 10;  // several buckets a unit, in some a rank owns padding alone
    const SmallRun small = RunSmall(settings);
    ASSERT_TRUE(small.result.status.ok()) << small.result.status;
    // As the page has it.
    report_ =
        ParseReport("run",
                    ReportText(MakeReport(
                        {.resolved = &resolved, .plan = &small.plan, .result = &small.result})))
            .value();
    const Json& step = run()["step"];
    ASSERT_TRUE(step.is_object());
    duration_ = step["duration_ns"];
    const Table ops(step["op_fields"], step["ops"]);
    for (size_t i = 0; i < ops.size(); ++i) {
      ops_.push_back({ops.Get<std::string>(i, "kind"), ops.Get<std::string>(i, "stream"),
                      ops.Get<std::string>(i, "phase"), ops.Get<std::string>(i, "layer"),
                      ops.Get<std::string>(i, "purpose"), ops.Get<int64_t>(i, "unit"),
                      ops.Get<int64_t>(i, "bytes")});
    }
    const Table spans(step["span_fields"], step["spans"]);
    for (size_t i = 0; i < spans.size(); ++i) {
      spans_.push_back({spans.Get<int64_t>(i, "op"), spans.Get<int64_t>(i, "rank"),
                        spans.Get<int64_t>(i, "begin_ns"), spans.Get<int64_t>(i, "end_ns")});
    }
    const Table regions(step["region_fields"], step["regions"]);
    for (size_t i = 0; i < regions.size(); ++i) {
      Region region = {.rank = regions.Get<int64_t>(i, "rank"),
                       .bytes = regions.Get<int64_t>(i, "bytes"),
                       .begin = regions.Get<int64_t>(i, "begin_ns"),
                       .end = regions.Get<int64_t>(i, "end_ns"),
                       .unit = regions.Get<int64_t>(i, "unit"),
                       .category = regions.Get<std::string>(i, "category"),
                       .holds = regions.Get<std::string>(i, "holds"),
                       .extent = regions.Get<std::string>(i, "extent")};
      if (region.end < 0) region.end = duration_ + 1;
      regions_.push_back(region);
    }
  }

  const Json& run() const { return report_["runs"][0]; }
  int64_t padded() const { return report_["model"]["padded_parameters"]; }

  // By category.
  std::map<std::string, int64_t> Alive(int64_t rank, int64_t at) const {
    std::map<std::string, int64_t> bytes;
    for (const auto& category : report_["categories"]) bytes[category] = 0;
    for (const Region& region : regions_) {
      if (region.rank == rank && region.begin <= at && at < region.end) {
        bytes.at(region.category) += region.bytes;
      }
    }
    return bytes;
  }

  Json report_;
  int64_t duration_ = 0;
  std::vector<Op> ops_;
  std::vector<Span> spans_;
  std::vector<Region> regions_;
};

TEST_P(ReportIdentities, RegionsAddUpToTheLedgersPeak) {
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    int64_t most = 0;
    for (const Region& region : regions_) {
      if (region.rank != rank) continue;
      int64_t sum = 0;
      for (const auto& [category, bytes] : Alive(rank, std::max<int64_t>(region.begin, 0))) {
        sum += bytes;
      }
      most = std::max(most, sum);
    }
    const Json& measured = run()["memory"]["measured"][static_cast<size_t>(rank)];
    EXPECT_EQ(most, measured["peak_bytes"].get<int64_t>());
    for (const auto& [category, bytes] : Alive(rank, measured["peak_ns"])) {
      EXPECT_EQ(bytes, measured["at_peak"][category].get<int64_t>()) << category;
    }
  }
}

TEST_P(ReportIdentities, ModelStatesAreThePapers) {
  const int stage = GetParam().stage;
  const bool offload = GetParam().offload;
  const int64_t width = GetParam().bf16 ? 2 : 4;
  const int64_t states = offload || GetParam().bf16 ? 12 : 8;  // master weights and both moments
  EXPECT_EQ(run()["bytes_per_parameter"],
            (Json{{"parameters", width}, {"gradients", width}, {"optimizer", states}}));
  const auto expect = [&](const Json& found, int64_t bytes, bool sharded) {
    if (sharded) bytes /= kRanks;
    EXPECT_GE(found.get<int64_t>(), bytes);
    EXPECT_LT(found.get<int64_t>(), bytes + 3 * 128);  // each of three arrays is rounded up
  };
  for (size_t rank = 0; rank < kRanks; ++rank) {
    const Json& device = run()["memory"]["measured"][rank]["at_peak"];
    const Json& host = run()["memory"]["host_measured"][rank];
    expect(device["parameters"], width * padded(), stage == 3);
    const bool kept = !offload || stage < 2;
    expect(device["gradients"], kept ? width * padded() : 0, stage >= 2);
    expect((offload ? host : device)["optimizer_states"], states * padded(), stage >= 1);
    EXPECT_EQ((offload ? device : host)["optimizer_states"], 0);
  }
}

TEST_P(ReportIdentities, BytesOfTheOpsAreWhatWasCounted) {
  std::map<std::string, int64_t> bytes;
  for (const Op& op : ops_) {
    if (op.stream == "communication")
      bytes[op.purpose == "scalars" ? "scalars" : op.kind] += op.bytes;
  }
  std::map<std::string, int64_t> counted;
  for (const Json& row : run()["communication"]) {
    ASSERT_EQ(row["counted_bytes"].size(), static_cast<size_t>(kRanks));
    for (const Json& of_rank : row["counted_bytes"]) {
      EXPECT_EQ(of_rank, row["counted_bytes"][0]);
    }
    counted[row["collective"]] = row["counted_bytes"][0];
    // From the paper to the plan, nothing is left unexplained.
    int64_t explained = row["paper_bytes"];
    for (const Json& difference : run()["differences"]) {
      if (difference["collective"] == row["collective"]) {
        explained += difference["bytes"].get<int64_t>();
      }
    }
    if (row["collective"] != "scalars") {
      EXPECT_EQ(explained, row["expected_bytes"].get<int64_t>());
    }
    EXPECT_EQ(row["expected_bytes"], row["counted_bytes"][0]);
  }
  EXPECT_EQ(bytes, counted);
  // In units of element_bytes Psi' (N-1)/N; stage 3 keeps the last block from forward to backward.
  const int64_t psi = padded(), m = GetParam().micro_batches;
  const int64_t last = report_["units"].back()["padded_elements"];
  const int64_t width = GetParam().bf16 ? 2 : 4;
  const auto sent = [&](int64_t elements) { return width * elements * (kRanks - 1) / kRanks; };
  counted.erase("scalars");
  const std::map<std::string, int64_t> paper[] = {
      {{"all_reduce", sent(2 * psi)}},
      {{"reduce_scatter", sent(psi)}, {"all_gather", sent(psi)}},
      {{"reduce_scatter", sent(m * psi)}, {"all_gather", sent(psi)}},
      {{"reduce_scatter", sent(m * psi)}, {"all_gather", sent(2 * m * psi - m * last)}}};
  EXPECT_EQ(counted, paper[GetParam().stage]);
  for (const char* way : {"to_host", "from_host"}) {
    int64_t copied = 0;
    for (const Op& op : ops_) {
      if (op.kind == "copy" && op.stream == way) copied += op.bytes;
    }
    for (const Json& of_rank : run()["copies"][way]["counted_bytes"]) EXPECT_EQ(of_rank, copied);
  }
}

// In a region that holds the whole unit, and after the gather that filled or refreshed it.
TEST_P(ReportIdentities, UnitsAreComputedWhileTheyAreWhole) {
  int looked_at = 0;
  for (const Span& span : spans_) {
    const Op& op = ops_[static_cast<size_t>(span.op)];
    const bool computes = op.kind == "forward" || op.kind == "recompute" || op.kind == "backward";
    if (!computes || op.unit < 0 || (op.kind == "backward" && op.layer == "lookup")) continue;
    ++looked_at;
    const int64_t kept_as = GetParam().stage == 3 ? op.unit : -1;
    const auto home = std::find_if(regions_.begin(), regions_.end(), [&](const Region& region) {
      return region.rank == span.rank && region.unit == kept_as && region.holds == "parameters" &&
             region.extent == "full" && region.begin <= span.begin && span.end <= region.end;
    });
    ASSERT_NE(home, regions_.end()) << op.kind << " " << op.layer << " of rank " << span.rank;
    const bool gathered = std::any_of(spans_.begin(), spans_.end(), [&](const Span& other) {
      const Op& gather = ops_[static_cast<size_t>(other.op)];
      return gather.kind == "all_gather" && gather.unit == op.unit && other.rank == span.rank &&
             home->begin <= other.begin && other.end <= span.begin;
    });
    EXPECT_EQ(gathered, GetParam().stage > 0)
        << op.kind << " " << op.layer << " of rank " << span.rank;
  }
  // Lookup, two blocks and head, forward and backward but for the lookup's, in each micro-batch.
  EXPECT_GE(looked_at, kRanks * GetParam().micro_batches * 7);
}

TEST_P(ReportIdentities, SpansOfAStreamFollowEachOtherWithinTheStep) {
  std::map<std::pair<int64_t, std::string>, std::vector<std::pair<int64_t, int64_t>>> streams;
  std::set<std::pair<int64_t, int64_t>> done;  // rank, op
  for (const Span& span : spans_) {
    EXPECT_LE(0, span.begin);
    EXPECT_LE(span.begin, span.end);
    EXPECT_LE(span.end, duration_);
    streams[{span.rank, ops_[static_cast<size_t>(span.op)].stream}].emplace_back(span.begin,
                                                                                 span.end);
    done.emplace(span.rank, span.op);
  }
  // A rank that owns nothing but a bucket's padding has nothing to update in it.
  for (size_t op = 0; op < ops_.size(); ++op) {
    const bool may_miss = ops_[op].kind == "update";
    int64_t ranks = 0;
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      ranks += static_cast<int64_t>(done.count({rank, static_cast<int64_t>(op)}));
    }
    EXPECT_GE(ranks, may_miss && GetParam().stage > 0 ? 1 : kRanks) << ops_[op].kind << " " << op;
  }
  for (auto& [stream, times] : streams) {
    std::sort(times.begin(), times.end());
    for (size_t i = 1; i < times.size(); ++i) {
      EXPECT_LE(times[i - 1].second, times[i].first) << stream.second << " of " << stream.first;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, ReportIdentities,
                         testing::Values(Case{0}, Case{1}, Case{2}, Case{3}, Case{0, true, 1},
                                         Case{1, true, 1}, Case{2, true, 1}, Case{3, true, 1},
                                         Case{.stage = 2, .bf16 = true, .offload = true},
                                         Case{.stage = 3, .offload = true}),
                         [](const auto& info) { return info.param.name(); });

}  // namespace
}  // namespace zerobox
