// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "trainer/table_rows.h"
#include "trainer/tables.h"

namespace zerobox {
namespace {

constexpr std::array<Collective, kCollectives> kShownCollectives = {
    Collective::kAllGather, Collective::kReduceScatter, Collective::kAllReduce,
    Collective::kBroadcast};

// `paper` is empty where the paper has no figure.
std::string TrafficRow(const std::string& name, const std::string& calls, const std::string& paper,
                       int64_t predicted, const int64_t* counted, const Style& style) {
  return absl::StrCat(
      "  ", Left(name, 16), Right(calls, 6), Right(paper, 15), Right(WithCommas(predicted), 15),
      " ", Agreement(counted != nullptr, counted != nullptr && *counted == predicted, style),
      Right(counted != nullptr ? WithCommas(*counted) : "", 15),
      Right(HumanBytes(counted != nullptr ? *counted : predicted), 9), "\n");
}

std::string TrafficTitles(bool known) {
  return absl::StrCat("  ", Left("", 16), Right("calls", 6), Right("paper", 15),
                      Right("predicted", 15), "  ", Right(known ? "counted" : "", 15), "\n");
}

// Copies between a device and the host, on streams of their own.
std::string CopyRows(const RunPlan& plan, const RankPlan& planned, const RankResult* measured,
                     const Style& style) {
  const auto row = [&](const char* name, int64_t CopiedBytes::*way) {
    const int64_t paper = plan.paper_copies.*way;
    return TrafficRow(name, "", paper > 0 ? WithCommas(paper) : "", planned.step_copies.*way,
                      measured != nullptr ? &(measured->step_copies.*way) : nullptr, style);
  };
  return row("copied to host", &CopiedBytes::to_host) +
         row("copied from host", &CopiedBytes::from_host);
}

std::string TrafficBlock(const RunPlan& plan, const RankPlan& planned, const RankResult* measured,
                         const Style& style) {
  std::string block;
  int64_t paper = 0, predicted = 0, counted = 0;
  for (const Collective collective : kShownCollectives) {
    const auto i = static_cast<size_t>(collective);
    const CollectiveCount& plan_count = planned.step_traffic.collectives[i];
    const CollectiveCount count =
        measured != nullptr ? measured->step_traffic.collectives[i] : plan_count;
    if (plan.paper_bytes[i] == 0 && plan_count.calls == 0 && count.calls == 0) continue;
    paper += plan.paper_bytes[i];
    predicted += plan_count.bytes_sent;
    counted += count.bytes_sent;
    block +=
        TrafficRow(absl::StrReplaceAll(std::string(Name(collective)), {{"_", "-"}}),
                   absl::StrCat(count.calls), WithCommas(plan.paper_bytes[i]),
                   plan_count.bytes_sent, measured != nullptr ? &count.bytes_sent : nullptr, style);
  }
  absl::StrAppend(&block, "  ", style.Dim(Rule(77)), "\n",
                  TrafficRow("sum", "", WithCommas(paper), predicted,
                             measured != nullptr ? &counted : nullptr, style),
                  CopyRows(plan, planned, measured, style));
  const CollectiveCount& scalars =
      measured != nullptr ? measured->step_traffic.scalars : planned.step_traffic.scalars;
  absl::StrAppend(&block, "  and scalars (for the gradient norm): ", WithCommas(scalars.bytes_sent),
                  " bytes in ", Plural(scalars.calls, "call", "calls"));
  if (const int64_t foretold = planned.step_traffic.scalars.bytes_sent;
      foretold != scalars.bytes_sent) {
    absl::StrAppend(&block, ", ", style.Red("predicted " + WithCommas(foretold)));
  }
  return block + "\n";
}

// Why the prediction is not the paper's figure, and what nobody explained.
std::string TrafficDifferences(const RunPlan& plan, const Style& style) {
  std::string text;
  const auto row = [&](Collective collective, int64_t bytes, const std::string& reason) {
    absl::StrAppend(
        &text,
        Lines(absl::StrCat(
                  "  ", Left(absl::StrReplaceAll(std::string(Name(collective)), {{"_", "-"}}), 16),
                  Right(SignedCommas(bytes), 15), " "),
              reason, 36));
  };
  for (const Collective collective : kShownCollectives) {
    const auto i = static_cast<size_t>(collective);
    int64_t unexplained =
        plan.ranks[0].step_traffic.collectives[i].bytes_sent - plan.paper_bytes[i];
    for (const TrafficDifference& difference : plan.differences) {
      if (difference.collective != collective) continue;
      unexplained -= difference.bytes;
      if (difference.bytes != 0) row(collective, difference.bytes, difference.reason);
    }
    if (unexplained != 0) row(collective, unexplained, style.Red("unexplained"));
  }
  return text.empty()
             ? ""
             : "  Predicted is more (+) or less (-) than the paper's formula because of\n" + text;
}

// What is copied, and what nobody explained.
std::string CopyParts(const RunPlan& plan, const Style& style) {
  std::string text;
  const auto parts = [&](const char* name, int64_t CopiedBytes::*way) {
    const auto row = [&](int64_t bytes, const std::string& what) {
      if (bytes == 0) return;
      text +=
          Lines(absl::StrCat("  ", Left(name, 16), Right(WithCommas(bytes), 15), " "), what, 36);
      name = "";
    };
    int64_t unexplained = plan.ranks[0].step_copies.*way;
    for (const CopiedPart& part : plan.copies) {
      unexplained -= part.bytes.*way;
      row(part.bytes.*way, part.what);
    }
    row(unexplained, style.Red("unexplained"));
  };
  parts("to host", &CopiedBytes::to_host);
  parts("from host", &CopiedBytes::from_host);
  return text.empty() ? "" : "  Copied are\n" + text;
}

template <typename Rank>
bool SameTraffic(const Rank& a, const Rank& b) {
  return a.step_traffic == b.step_traffic && a.step_copies == b.step_copies;
}

}  // namespace

std::string TrafficTable(const RunPlan& plan, const std::vector<RankResult>& measured,
                         const Style& style) {
  const bool known = !measured.empty();
  const size_t ranks = plan.ranks.size();
  if (ranks == 1) {
    return absl::StrCat(TableTitle("Traffic in one step, in bytes", style),
                        "  One device has nobody to send to.\n", TrafficTitles(known),
                        CopyRows(plan, plan.ranks[0], known ? &measured[0] : nullptr, style),
                        CopyParts(plan, style));
  }
  const std::vector<RankGroup> groups = GroupRanks(ranks, [&](size_t a, size_t b) {
    return SameTraffic(plan.ranks[a], plan.ranks[b]) &&
           (!known || SameTraffic(measured[a], measured[b]));
  });
  std::string table;
  for (const RankGroup& group : groups) {
    const size_t rank = group.ranks.front();
    const std::string subject = GroupName(group, ranks);
    if (&group == &groups.front()) {
      table += TableTitle(
          absl::StrCat("Bytes that ", subject,
                       group.ranks.size() == 1 || group.ranks.size() == ranks ? " sends" : " send",
                       " in one step"),
          style);
      table += TrafficTitles(known);
    } else {
      absl::StrAppend(&table, "  ", style.Bold("but " + subject), "\n");
    }
    table += TrafficBlock(plan, plan.ranks[rank], known ? &measured[rank] : nullptr, style);
  }
  return table + TrafficDifferences(plan, style) + CopyParts(plan, style);
}

std::string ExposedCommunication(const RunResult& result, const Style& style) {
  constexpr size_t kWarmUp = 2;
  std::vector<double> exposed, whole;
  for (size_t i = kWarmUp; i < result.step_metrics.size(); ++i) {
    exposed.push_back(result.step_metrics[i].exposed_seconds * 1000);
    whole.push_back(result.step_metrics[i].step_seconds * 1000);
  }
  if (exposed.empty() || result.ranks.size() < 2) return "";
  const double milliseconds = Median(exposed), of = Median(whole);
  return absl::StrCat("  ", style.Bold("exposed communication"), "   ",
                      absl::StrFormat("%.1f ms of %.1f ms a step (%.0f%%)", milliseconds, of,
                                      of > 0 ? 100 * milliseconds / of : 0),
                      "\n");
}

}  // namespace zerobox
