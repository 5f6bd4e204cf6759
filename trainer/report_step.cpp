// SPDX-License-Identifier: Apache-2.0
#include "trainer/report_step.h"

#include <string_view>

#include "nlohmann/json.hpp"

namespace zerobox {
namespace {

using Json = nlohmann::ordered_json;

// An array, also where it has one element or none.
template <typename... T>
Json Row(const T&... values) {
  Json row = Json::array();
  (row.push_back(values), ...);
  return row;
}

Json OpsJson(const StepTrace& trace) {
  Json ops = Json::array();
  for (const TraceOp& op : trace.ops) {
    ops.push_back(Row(Name(op.kind), Name(op.stream), Name(op.phase), op.layer, op.unit,
                      op.elements, op.bytes, Name(op.purpose), op.micro_batch));
  }
  return ops;
}

Json SpansJson(const StepTrace& trace) {
  Json spans = Json::array();
  for (size_t rank = 0; rank < trace.ranks.size(); ++rank) {
    for (const TraceSpan& span : trace.ranks[rank].spans) {
      spans.push_back(Row(span.op, rank, span.begin_ns, span.end_ns));
    }
  }
  return spans;
}

Json RegionsJson(const StepTrace& trace) {
  Json regions = Json::array();
  for (size_t rank = 0; rank < trace.ranks.size(); ++rank) {
    for (const TraceRegion& region : trace.ranks[rank].regions) {
      const bool holds = region.extent != Extent::kNone;
      regions.push_back(Row(
          rank, Name(region.category), holds ? Name(region.holds) : std::string_view(), region.unit,
          Name(region.extent), region.bytes, region.begin_ns, region.end_ns, region.label));
    }
  }
  return regions;
}

}  // namespace

Json StepJson(const StepTrace& trace, const std::string& clock) {
  return {{"index", trace.step},
          {"duration_ns", trace.duration_ns},
          {"clock", clock},
          {"op_fields", Row("kind", "stream", "phase", "layer", "unit", "elements", "bytes",
                            "purpose", "micro_batch")},
          {"ops", OpsJson(trace)},
          {"span_fields", Row("op", "rank", "begin_ns", "end_ns")},
          {"spans", SpansJson(trace)},
          {"region_fields", Row("rank", "category", "holds", "unit", "extent", "bytes", "begin_ns",
                                "end_ns", "label")},
          {"regions", RegionsJson(trace)}};
}

}  // namespace zerobox
