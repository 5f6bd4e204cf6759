// SPDX-License-Identifier: Apache-2.0
#include "trainer/report.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/process.h"
#include "tests/small_report.h"
#include "trainer/embedded.h"

namespace zerobox {
namespace {

using Json = ReportObject;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Psi of unit 0 is (16 + 4) 8 + 2 8 elements, of a block 12 8 8 + 13 8; each is padded to a
// multiple of 2 shards x 64.
constexpr int64_t kEnds = 176, kBlock = 872, kPsi = kEnds + 2 * kBlock;
constexpr int64_t kPaddedEnds = 256, kPaddedBlock = 896, kPadded = kPaddedEnds + 2 * kPaddedBlock;

std::vector<std::string> Keys(const Json& json) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  return keys;
}

TEST(Report, HasEveryPartInItsPlace) {
  const SmallReport small;
  const Json report = MakeReport(small.run());
  EXPECT_THAT(Keys(report), ElementsAre("schema", "title", "command", "created", "program",
                                        "machine", "model", "units", "categories", "runs"));
  ASSERT_EQ(report["runs"].size(), 1u);
  const Json& run = report["runs"][0];
  EXPECT_THAT(Keys(run),
              ElementsAre("id", "label", "stage", "world", "micro_batches", "status", "failure",
                          "offload", "activation_checkpointing", "dtype", "grad_accum_dtype",
                          "bytes_per_parameter", "tokens_per_step", "device_memory_bytes", "memory",
                          "communication", "differences", "copies", "step", "metrics", "equality",
                          "largest_model", "settings"));
  EXPECT_THAT(Keys(run["step"]), ElementsAre("index", "duration_ns", "clock", "op_fields", "ops",
                                             "span_fields", "spans", "region_fields", "regions"));
  EXPECT_THAT(Keys(run["memory"]), ElementsAre("reserved_bytes", "predicted", "measured",
                                               "host_predicted", "host_measured"));
  EXPECT_EQ(report["schema"], "zerobox.report/1");
  EXPECT_EQ(report["created"], "2023-11-14T22:13:20Z");
  EXPECT_EQ(report["program"]["name"], "zerobox");
  EXPECT_EQ(report["machine"]["collectives"], "shared memory");
}

TEST(Report, HasTheModelAndItsUnits) {
  const SmallReport small;
  const Json report = MakeReport(small.run());
  EXPECT_EQ(report["model"], (Json{{"name", "tiny"},
                                   {"parameters", kPsi},
                                   {"padded_parameters", kPadded},
                                   {"layers", 2},
                                   {"hidden", 8},
                                   {"heads", 2},
                                   {"vocabulary", 16},
                                   {"context", 4}}));
  ASSERT_EQ(report["units"].size(), 3u);
  EXPECT_EQ(report["units"][0], (Json{{"name", "ends"},
                                      {"short", "ends"},
                                      {"kind", "ends"},
                                      {"elements", kEnds},
                                      {"padded_elements", kPaddedEnds}}));
  EXPECT_EQ(report["units"][2], (Json{{"name", "block 1"},
                                      {"short", "b1"},
                                      {"kind", "block"},
                                      {"elements", kBlock},
                                      {"padded_elements", kPaddedBlock}}));
}

TEST(Report, SaysWhatARunIs) {
  SmallReport small;
  Json run = MakeReport(small.run())["runs"][0];
  EXPECT_EQ(run["id"], "zero3");
  EXPECT_EQ(run["label"], "ZeRO-3");
  EXPECT_EQ(run["stage"], 3);
  EXPECT_EQ(run["world"], 2);
  EXPECT_EQ(run["status"], "ok");
  EXPECT_EQ(run["offload"], "none");
  EXPECT_EQ(run["activation_checkpointing"], "none");
  EXPECT_EQ(run["dtype"], "fp32");
  EXPECT_EQ(run["tokens_per_step"], 3 * 2 * 4);
  EXPECT_EQ(run["bytes_per_parameter"],
            Json::parse(R"({"parameters":4,"gradients":4,"optimizer":8})"));
  EXPECT_EQ(run["settings"], Json::parse(R"([
      {"key":"data","value":"book.txt","source":"flag","alias":""},
      {"key":"zero_stage","value":"3","source":"flag","alias":"zero_optimization.stage"},
      {"key":"bucket_bytes","value":"25MiB","source":"default",
       "alias":"zero_optimization.reduce_bucket_size"}])"));

  small.resolved.settings.offload_optimizer = true;
  small.plan.types = {DType::kBFloat16, DType::kFloat32};
  run = MakeReport(small.run())["runs"][0];
  EXPECT_EQ(run["id"], "zero3-offload-optimizer");
  EXPECT_EQ(run["label"], "ZeRO-3, optimizer offloaded");
  EXPECT_EQ(run["offload"], "optimizer");
  EXPECT_EQ(run["bytes_per_parameter"],
            Json::parse(R"({"parameters":2,"gradients":4,"optimizer":12})"));
  ReportRun named = small.run();
  named.id = "a", named.label = "A";
  run = MakeReport(named)["runs"][0];
  EXPECT_EQ(run["id"], "a");
  EXPECT_EQ(run["label"], "A");
}

TEST(Report, HasTheStepAsThreeTables) {
  const SmallReport small;
  const Json step = MakeReport(small.run())["runs"][0]["step"];
  EXPECT_EQ(step["index"], 7);
  EXPECT_EQ(step["duration_ns"], 1000);
  EXPECT_EQ(step["clock"], "host clock");
  EXPECT_EQ(step["op_fields"],
            Json::parse(R"(["kind","stream","phase","layer","unit","elements","bytes","purpose",
                            "micro_batch"])"));
  EXPECT_EQ(step["ops"], Json::parse(R"([
      ["forward","compute","forward","lookup",0,0,0,"",0],
      ["all_gather","communication","forward","",1,100,200,"parameters",0],
      ["forward","compute","forward","block 0",1,0,0,"",0],
      ["all_reduce","communication","step","",-1,2,16,"scalars",-1],
      ["copy","from_host","forward","",-1,0,32,"batch",0]])"));
  EXPECT_EQ(step["span_fields"], Json::parse(R"(["op","rank","begin_ns","end_ns"])"));
  EXPECT_EQ(step["spans"], Json::parse(R"([
      [0,0,0,100],[1,0,20,120],[2,0,150,400],[2,0,500,600],[3,0,600,700],[4,0,700,700],
      [0,1,50,150],[1,1,60,120],[2,1,150,400],[2,1,500,600],[3,1,650,700],[4,1,700,700]])"));
  EXPECT_EQ(step["region_fields"],
            Json::parse(R"(["rank","category","holds","unit","extent","bytes","begin_ns","end_ns",
                            "label"])"));
  ASSERT_EQ(step["regions"].size(), 6u);
  EXPECT_EQ(step["regions"][3], Json::parse(R"([1,"parameters","parameters",-1,"shard",1000,-1,-1,
                                                "parameter shard"])"));
  EXPECT_EQ(step["regions"][4], Json::parse(R"([1,"communication_buffers","parameters",1,"full",
                                                400,20,600,"gathered unit"])"));
  EXPECT_EQ(step["regions"][5],
            Json::parse(R"([1,"activations","",-1,"",50,150,600,"</script>"])"));
}

TEST(Report, HasMemoryByCategoryInTheOrderOfTheStack) {
  SmallReport small;
  for (size_t i = 0; i < kCategories; ++i) {
    const auto n = static_cast<int64_t>(i);
    small.plan.ranks[0].memory.at_peak[i] = 100 + n;
    small.result.ranks[1].memory.at_peak[i] = 200 + n;
    small.plan.ranks[0].host_memory.at_peak[i] = 300 + n;
    small.result.ranks[1].host_memory.at_peak[i] = 400 + n;
  }
  small.result.ranks[1].memory.peak_bytes = 7 * 200 + 21;
  small.plan.ranks[0].regions = {1, 2, 3, 4};
  small.plan.ranks[1].regions = {1, 2, 3, 5};
  const Json report = MakeReport(small.run());
  const auto categories =
      ElementsAre("parameters", "gradients", "optimizer_states", "workspace",
                  "activation_checkpoints", "activations", "communication_buffers");
  EXPECT_THAT(report["categories"].get<std::vector<std::string>>(), categories);
  const Json& memory = report["runs"][0]["memory"];
  const auto from = [](int64_t n) {
    return Json{{"parameters", n},
                {"gradients", n + 1},
                {"optimizer_states", n + 2},
                {"workspace", n + 6},
                {"activation_checkpoints", n + 4},
                {"activations", n + 3},
                {"communication_buffers", n + 5}};
  };
  EXPECT_THAT(Keys(memory["predicted"]), categories);
  EXPECT_EQ(memory["predicted"], from(100));
  EXPECT_EQ(memory["host_predicted"], from(300));
  EXPECT_EQ(memory["host_measured"][1], from(400));
  EXPECT_EQ(memory["measured"][1],
            (Json{{"peak_bytes", 1421}, {"peak_ns", 150}, {"at_peak", from(200)}}));
  EXPECT_EQ(memory["reserved_bytes"], 11);

  small.result.trace.reset();
  const Json without = MakeReport(small.run())["runs"][0];
  EXPECT_TRUE(without["step"].is_null());
  EXPECT_TRUE(without["memory"]["measured"][1]["peak_ns"].is_null());
}

TEST(Report, HasWhatIsSentByPaperPlanAndCount) {
  SmallReport small;
  small.plan.types = {DType::kBFloat16, DType::kFloat32};
  small.plan.paper_bytes = {10, 20, 0, 0};
  for (RankPlan& rank : small.plan.ranks) {
    rank.step_traffic = {.collectives = {{{3, 11}, {2, 22}, {0, 0}, {0, 0}}}, .scalars = {1, 16}};
    rank.step_copies = {.to_host = 5, .from_host = 6};
  }
  for (int64_t rank = 0; rank < 2; ++rank) {
    small.result.ranks[rank].step_traffic = {
        .collectives = {{{3, 100 + rank}, {2, 200 + rank}, {0, 0}, {0, 0}}}, .scalars = {1, 16}};
    small.result.ranks[rank].step_copies = {.to_host = 50 + rank, .from_host = 60 + rank};
  }
  small.plan.differences = {{Collective::kAllGather, "padding", 1}};
  small.plan.copies = {{"batches", {.to_host = 0, .from_host = 6}}};
  const Json run = MakeReport(small.run())["runs"][0];
  EXPECT_EQ(run["communication"], Json::parse(R"([
      {"collective":"all_gather","calls":3,"element_bytes":2,"paper_bytes":10,"expected_bytes":11,
       "counted_bytes":[100,101]},
      {"collective":"reduce_scatter","calls":2,"element_bytes":4,"paper_bytes":20,
       "expected_bytes":22,"counted_bytes":[200,201]},
      {"collective":"scalars","calls":1,"element_bytes":8,"paper_bytes":0,"expected_bytes":16,
       "counted_bytes":[16,16]}])"));
  EXPECT_EQ(run["differences"],
            Json::parse(R"([{"collective":"all_gather","reason":"padding","bytes":1}])"));
  EXPECT_EQ(run["copies"], Json::parse(R"({
      "to_host":{"expected_bytes":5,"counted_bytes":[50,51]},
      "from_host":{"expected_bytes":6,"counted_bytes":[60,61]},
      "parts":[{"what":"batches","to_host":0,"from_host":6}]})"));
}

TEST(Report, HasTheMetricsWithNullForWhatIsNotFinite) {
  SmallReport small;
  small.result.step_metrics[1].loss = std::nan("");
  small.result.step_metrics[1].grad_norm = std::numeric_limits<double>::infinity();
  small.result.step_metrics[1].skipped = true;
  const Json metrics = Json::parse(ReportText(MakeReport(small.run())))["runs"][0]["metrics"];
  EXPECT_EQ(metrics, Json::parse(R"({
      "step":[1,2],"loss":[2.5,null],"grad_norm":[0.5,null],"clip":[1.0,1.0],
      "learning_rate":[0.125,0.0625],"tokens_per_second":[0.0,0.0],"step_seconds":[0.0,0.0],
      "exposed_seconds":[0.0,0.0],"skipped":[2],"skipped_steps":1,"validation":{"step":[2],"loss":[2.125]},
      "references":[{"name":"counting, 0 tokens of context","loss":2.75}]})"));
}

TEST(Report, ThinsTheMetricsOfALongRunButHasItsLastStep) {
  SmallReport small;
  small.result.step_metrics.clear();
  for (int64_t step = 1; step <= 10001; ++step) {
    small.result.step_metrics.push_back(
        {.step = step, .loss = 0.5 * static_cast<double>(step), .skipped = step == 6});
  }
  const Json metrics = MakeReport(small.run())["runs"][0]["metrics"];
  std::vector<int64_t> steps;  // every third, as 10001 / 4096 rounded up is 3, and the last
  for (int64_t step = 1; step <= 10001; step += 3) steps.push_back(step);
  steps.push_back(10001);
  EXPECT_EQ(metrics["step"].get<std::vector<int64_t>>(), steps);
  EXPECT_EQ(metrics["loss"].size(), steps.size());
  EXPECT_EQ(metrics["loss"].back(), 5000.5);
  EXPECT_EQ(metrics["skipped"], Json::parse("[6]"));
}

TEST(Report, ThinsEvaluationsAndHasTheFirstSkippedStepsOfALongRun) {
  SmallReport small;
  small.result.step_metrics.clear();
  small.result.eval_metrics.clear();
  for (int64_t step = 1; step <= 10001; ++step) {
    small.result.step_metrics.push_back({.step = step, .skipped = step > 1});
    small.result.eval_metrics.push_back({.step = step, .val_loss = 0.5 * double(step)});
  }
  const Json metrics = MakeReport(small.run())["runs"][0]["metrics"];
  std::vector<int64_t> steps;  // every third, and the last
  for (int64_t step = 1; step <= 10001; step += 3) steps.push_back(step);
  steps.push_back(10001);
  EXPECT_EQ(metrics["validation"]["step"].get<std::vector<int64_t>>(), steps);
  EXPECT_EQ(metrics["validation"]["loss"].size(), steps.size());
  EXPECT_EQ(metrics["validation"]["loss"].back(), 5000.5);
  EXPECT_EQ(metrics["skipped"].size(), 4096u);
  EXPECT_EQ(metrics["skipped"].back(), 4097);
  EXPECT_EQ(metrics["skipped_steps"], 10000);
}

TEST(Report, HasNothingButThePlanOfARunThatDidNotFit) {
  const SmallReport small;
  ReportRun did_not_fit = small.run();
  did_not_fit.result = nullptr;
  did_not_fit.failure = "it needs 5 bytes, there are 4";
  did_not_fit.largest_model = LargestModel{.parameters = 123, .n_layer = 1};
  const Json run = MakeReport(did_not_fit)["runs"][0];
  EXPECT_EQ(run["status"], "out_of_memory");
  EXPECT_EQ(run["failure"], "it needs 5 bytes, there are 4");
  for (const char* part : {"step", "metrics", "equality", "copies"}) {
    EXPECT_TRUE(run[part].is_null()) << part;
  }
  EXPECT_EQ(run["communication"], Json::array());
  EXPECT_EQ(run["memory"]["measured"], Json::array());
  EXPECT_GT(run["memory"]["predicted"]["parameters"].get<int64_t>(), 0);
  EXPECT_EQ(run["largest_model"], Json::parse(R"({"parameters":123,"n_layer":1})"));
}

TEST(Report, SaysOfARunThatFailedAfterSomeStepsThatAndWhy) {
  SmallReport small;
  small.result.status = absl::InternalError("a cable was pulled");
  ReportRun failed = small.run();
  failed.failure = "a cable was pulled";
  const Json run = MakeReport(failed)["runs"][0];
  EXPECT_EQ(run["status"], "failed");
  EXPECT_EQ(run["failure"], "a cable was pulled");
  EXPECT_EQ(run["metrics"]["step"], Json::parse("[1,2]"));
  small.result.status = absl::OkStatus();
  small.result.stopped_by_signal = 2;
  EXPECT_EQ(MakeReport(small.run())["runs"][0]["status"], "ok");
}

TEST(Report, SaysWhetherARunEqualsAnother) {
  const SmallReport small;
  ReportRun compared = small.run();
  EXPECT_TRUE(MakeReport(compared)["runs"][0]["equality"].is_null());
  compared.equality =
      Equality{.reference = "zero0", .losses_equal = true, .parameters_equal = true};
  EXPECT_EQ(MakeReport(compared)["runs"][0]["equality"],
            Json::parse(R"({"reference":"zero0","equal":true,"losses_equal":true,
                            "parameters_equal":true,"first_difference":null})"));
  compared.equality->parameters_equal = false;
  compared.equality->first_difference = {.step = 3,
                                         .parameter = "wte.weight",
                                         .unit = 0,
                                         .element = 5,
                                         .reference = 0.5,
                                         .value = 0.25};
  EXPECT_EQ(MakeReport(compared)["runs"][0]["equality"],
            Json::parse(R"({"reference":"zero0","equal":false,"losses_equal":true,
                            "parameters_equal":false,
                            "first_difference":{"step":3,"parameter":"wte.weight","unit":0,
                                                "element":5,"reference":0.5,"value":0.25}})"));
  // Not searched for the step; then not even read.
  compared.equality->first_difference->step.reset();
  EXPECT_TRUE(MakeReport(compared)["runs"][0]["equality"]["first_difference"]["step"].is_null());
  compared.equality = Equality{.reference = "zero0", .losses_equal = true};
  EXPECT_EQ(MakeReport(compared)["runs"][0]["equality"],
            Json::parse(R"({"reference":"zero0","equal":null,"losses_equal":true,
                            "parameters_equal":null,"first_difference":null})"));
}

TEST(ReportText, KeepsIntegersAndIsAlwaysUtf8) {
  SmallReport small;
  small.result.trace->ranks[0].regions[0].bytes = 9007199254740993;  // 2^53 + 1
  ReportRun run = small.run();
  run.label = "broken \xff";
  const Json report = Json::parse(ReportText(MakeReport(run)));
  EXPECT_EQ(report["runs"][0]["step"]["regions"][0][5].get<int64_t>(), 9007199254740993);
  EXPECT_THAT(report["runs"][0]["label"].get<std::string>(), HasSubstr("broken "));
}

TEST(ReportPage, IsTheTemplateWithItsFilesAndTheReport) {
  const SmallReport small;
  const Json report = MakeReport(small.run());
  const std::string page = ReportPage(report);
  EXPECT_EQ(page.rfind("<!doctype html", 0), 0u);
  EXPECT_THAT(page, Not(HasSubstr("{report-data}")));
  EXPECT_THAT(page, Not(HasSubstr("/*{")));
  size_t pasted = 0;
  for (const EmbeddedFile& file : EmbeddedFiles()) {
    if (!file.path.ends_with(".css") && !file.path.ends_with(".js")) continue;
    EXPECT_NE(page.find(file.bytes), std::string::npos) << file.path;
    ++pasted;
  }
  EXPECT_GT(pasted, 0u);
  // What the browser reads back is the report, although a label in it ends a script.
  const std::string open = "<script type=\"application/json\" id=\"report-data\">";
  const size_t begin = page.find(open);
  ASSERT_NE(begin, std::string::npos);
  const size_t end = page.find("</script>", begin);
  ASSERT_NE(end, std::string::npos);
  const std::string data = page.substr(begin + open.size(), end - begin - open.size());
  EXPECT_THAT(data, Not(HasSubstr("<")));
  EXPECT_EQ(Json::parse(data), report);
}

TEST(Embedded, FilesAreThoseOfTheSource) {
  EXPECT_GE(EmbeddedFiles().size(), 2u);
  for (const EmbeddedFile& file : EmbeddedFiles()) {
    EXPECT_EQ(file.bytes, ReadFile(std::string(file.path))) << file.path;
    EXPECT_EQ(Embedded(file.path).data(), file.bytes.data());
  }
  EXPECT_FALSE(Embedded("trainer/report/template.html").empty());
}

TEST(CommandText, CanBeGivenToAShell) {
  const std::vector<std::string> plain = {"train", "--data=a/b.txt", "--lr=1e-3"};
  EXPECT_EQ(CommandText(plain), "zerobox train --data=a/b.txt --lr=1e-3");
  const std::vector<std::string> odd = {"train", "--data=my book*.txt", "it's", ""};
  EXPECT_EQ(CommandText(odd), "zerobox train '--data=my book*.txt' 'it'\\''s' ''");
}

}  // namespace
}  // namespace zerobox
