// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "trainer/comparison.h"
#include "trainer/table_rows.h"

namespace zerobox {
namespace {

constexpr int kShortName = 5;  // "zero0"
constexpr int kLosses = 14, kStates = 9, kSaved = 8, kPeak = 9, kSent = 9, kPsi = 7, kSpeed = 8,
              kLargest = 8;

// "zero0, zero1 and zero2".
std::string Names(const std::vector<const ComparedRun*>& runs) {
  std::string names;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (i > 0) absl::StrAppend(&names, i + 1 == runs.size() ? " and " : ", ");
    absl::StrAppend(&names, runs[i]->combination->name);
  }
  return names;
}

// The first step that shows that a run differs; 0: only its parameters do.
int64_t FirstStep(const ComparedRun& run) {
  if (run.loss_difference) return run.loss_difference->step;
  const auto& difference = run.equality->first_difference;
  return difference ? difference->step.value_or(0) : 0;
}

bool Differs(const ComparedRun& run) { return run.equality && run.equality->equal() == false; }

std::string LossesCell(const Comparison& comparison, const ComparedRun& run, const Style& style) {
  switch (run.end) {
    case RunEnd::kPlanned:
      return Left("not run", kLosses);
    case RunEnd::kDoesNotFit:
      return style.Red(Left("does not fit", kLosses));
    case RunEnd::kStopped:
      return Left("stopped", kLosses);
    case RunEnd::kFailed:
      return style.Red(Left("failed", kLosses));
    case RunEnd::kDone:
      break;
  }
  if (&run == comparison.reference()) return Left("reference", kLosses);
  if (!run.equality) return Left("", kLosses);
  if (!run.equality->equal()) return Left("not compared", kLosses);
  if (*run.equality->equal()) return style.Green(Left("bitwise equal", kLosses));
  const int64_t step = FirstStep(run);
  const std::string text =
      Left(step > 0 ? absl::StrCat("≠ step ", step) : std::string("≠ at the end"), kLosses);
  return run.equality_promised ? style.Red(text) : text;
}

std::string Row(const Comparison& comparison, const ComparedRun& run, const Style& style) {
  const std::string bytes = absl::StrCat(
      Right(HumanBytes(run.state_bytes()), kStates),
      Right(absl::StrFormat("%.2f×", comparison.Saved(run)), kSaved),
      Right(HumanBytes(run.memory().peak_bytes), kPeak), Right(HumanBytes(run.sent_bytes()), kSent),
      Right(absl::StrFormat("%.2fΨ", run.sent_psi()), kPsi));
  const auto speed = run.tokens_per_second();
  const auto& largest = run.largest_model;
  const std::string model =
      !largest ? "none"
               : absl::StrCat(largest->n_layer == kMostLayers ? "≥" : "",
                              HumanCount(static_cast<double>(largest->parameters)));
  return absl::StrCat(LossesCell(comparison, run, style), bytes,
                      Right(speed ? HumanCount(*speed) : "-", kSpeed), Right(model, kLargest),
                      "\n");
}

std::string Titles(int names) {
  const auto line = [names](const char* losses, const char* states, const char* saved,
                            const char* peak, const char* sent, const char* psi, const char* speed,
                            const char* largest) {
    return absl::StrCat(std::string(static_cast<size_t>(names), ' '), Left(losses, kLosses),
                        Right(states, kStates), Right(saved, kSaved), Right(peak, kPeak),
                        Right(sent, kSent), Right(psi, kPsi), Right(speed, kSpeed),
                        Right(largest, kLargest), "\n");
  };
  return line("", "model", "times", "peak", "sent in", "of", "tokens", "largest") +
         line("losses", "states", "less", "memory", "a step", "Ψ", "/s", "model");
}

// Where two runs part, as a sentence.
std::string DifferenceText(const ComparedRun& run) {
  const Equality& equality = *run.equality;
  const std::string runs =
      absl::StrCat(run.combination->name, " differs from ", equality.reference);
  const auto& difference = equality.first_difference;
  const bool searched = difference && difference->step;
  std::string text = runs;
  if (difference && !difference->parameter.empty()) {
    const std::string when = !searched ? "in the trained parameters"
                             : *difference->step > 1
                                 ? absl::StrFormat("after step %d, not yet after step %d",
                                                   *difference->step, *difference->step - 1)
                                 : "after step 1";
    absl::StrAppend(
        &text, absl::StrFormat(" %s: %s (unit %d), element %d, is %.9g there and %.9g here;", when,
                               difference->parameter, difference->unit, difference->element,
                               difference->reference, difference->value));
  } else if (searched && run.loss_difference && run.loss_difference->steps_before() > 0) {
    absl::StrAppend(&text, " with equal parameters after step ",
                    run.loss_difference->steps_before(), ";");
  }
  if (const auto& loss = run.loss_difference) {
    const std::string where = loss->evaluation
                                  ? absl::StrCat("the held-out one after step ", loss->step)
                                  : absl::StrCat("that of step ", loss->step);
    absl::StrAppend(&text, text.ends_with(';') ? " the" : ": the", " first loss to differ is ",
                    where,
                    absl::StrFormat(", %.17g there and %.17g here", loss->reference, loss->value));
  } else if (text.ends_with(';')) {
    text.pop_back();
  }
  return text + ".";
}

}  // namespace

std::string CompareTable(const Comparison& comparison, const Style& style) {
  const ComparedRun& first = comparison.runs.front();
  const TrainSettings& settings = first.settings();
  const bool several = comparison.runs.size() > 1;
  std::string table = TableTitle(
      absl::StrCat(
          Plural(std::ssize(comparison.runs), "run", "runs"), several ? " of the same " : " of ",
          Plural(settings.steps, "step", "steps"),
          settings.devices == 1 ? "" : absl::StrCat(", each of ", settings.devices, " devices"),
          "; Ψ = ", WithCommas(first.plan->parameters)),
      style);
  int longest = 0;
  for (const ComparedRun& run : comparison.runs) {
    longest = std::max(longest, Columns(run.combination->name));
  }
  // A name that is too long for the table has a line of its own.
  const bool own_line = longest > kShortName;
  const int names = 3 + (own_line ? kShortName : longest);
  table += style.Dim(Titles(names));
  for (const ComparedRun& run : comparison.runs) {
    const std::string name = "  " + run.combination->name;
    table += own_line ? absl::StrCat(name, "\n", Left("", names)) : Left(name, names);
    table += Row(comparison, run, style);
  }
  for (const ComparedRun& run : comparison.runs) {
    if (!run.failure.empty()) {
      table += Lines("  " + run.combination->name + ":", run.failure, 4);
    }
    if (Differs(run)) table += Lines(" ", DifferenceText(run), 4);
  }
  return table;
}

std::string Verdict(const Comparison& comparison) {
  std::vector<const ComparedRun*> done, same, unknown, expected, broken;
  const ComparedRun* best = nullptr;
  for (const ComparedRun& run : comparison.runs) {
    if (run.end != RunEnd::kDone) continue;
    done.push_back(&run);
    if (best == nullptr || run.state_bytes() < best->state_bytes()) best = &run;
    if (Differs(run)) {
      (run.equality_promised ? broken : expected).push_back(&run);
    } else {
      const bool compared =
          &run == comparison.reference() || (run.equality && run.equality->equal());
      (compared ? same : unknown).push_back(&run);
    }
  }
  std::string missing;  // "; zero0 does not fit; zero3 failed"
  const auto add_missing = [&](RunEnd end, const char* one, const char* many) {
    std::vector<const ComparedRun*> runs;
    for (const ComparedRun& run : comparison.runs) {
      if (run.end == end) runs.push_back(&run);
    }
    if (!runs.empty()) absl::StrAppend(&missing, "; ", Names(runs), runs.size() == 1 ? one : many);
  };
  if (!unknown.empty()) {
    absl::StrAppend(&missing, "; the parameters of ", Names(unknown),
                    " were not compared, the losses are equal");
  }
  add_missing(RunEnd::kDoesNotFit, " does not fit", " do not fit");
  add_missing(RunEnd::kFailed, " failed", " failed");
  add_missing(RunEnd::kStopped, " was stopped", " were stopped");
  add_missing(RunEnd::kPlanned, " was not run", " were not run");
  if (done.empty()) {
    return absl::StrCat("No run was done", missing, ".");
  }
  const std::string reference = comparison.reference()->combination->name;
  std::string text;
  const auto differ = [&](const std::vector<const ComparedRun*>& runs) {
    return absl::StrCat(Names(runs), runs.size() == 1 ? " differs from " : " differ from ",
                        reference);
  };
  if (done.size() == 1) {
    text = absl::StrCat(reference, " has no other run to be compared to");
  } else if (!broken.empty()) {
    text = absl::StrCat(differ(broken),
                        ", which is an error of zerobox: these runs are promised to be bitwise "
                        "equal on host devices");
  } else if (!expected.empty()) {
    text = absl::StrCat(
        differ(expected), " in the last digits, as may be: ",
        expected.front()->settings().device == "host"
            ? "with several micro-batches a step, stages 2 and 3 take their sums in another order"
            : "on GPUs sums may be taken in another order each time");
  } else if (same.size() == 1) {
    text = absl::StrCat("no other run's parameters were compared to those of ", reference);
  } else if (!unknown.empty()) {
    text = absl::StrCat(Names(same), " came to the same losses and parameters, bit by bit");
  } else {
    text = absl::StrCat(done.size() == 2 ? "Both" : absl::StrCat("All ", done.size()),
                        " runs came to the same losses and parameters, bit by bit");
  }
  const double saved = comparison.Saved(*best);
  if (saved > 1.005) {
    absl::StrAppend(&text, "; ", best->combination->name, " keeps ",
                    absl::StrFormat("1/%.2f", saved), " of the model states that ",
                    comparison.runs.front().combination->name,
                    comparison.runs.front().end == RunEnd::kDone ? " does" : " would");
  }
  return text + missing + ".";
}

}  // namespace zerobox
