// SPDX-License-Identifier: Apache-2.0
#include "trainer/tables.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "trainer/table_rows.h"

namespace zerobox {
namespace {

constexpr std::array<std::string_view, 4> kStageNames = {
    "everything whole on every device", "P_os: optimizer states are shared",
    "P_os+g: optimizer states and gradients are shared",
    "P_os+g+p: optimizer states, gradients and parameters are shared"};

// "4 devices", "1 GPU", "4 devices of one GPU"
std::string OnDevices(const TrainSettings& settings) {
  if (settings.virtual_devices) {
    return absl::StrCat(Plural(settings.devices, "device", "devices"), " of one GPU");
  }
  return settings.device == "cuda" ? Plural(settings.devices, "GPU", "GPUs")
                                   : Plural(settings.devices, "device", "devices");
}

}  // namespace

std::string Header(const TrainSettings& settings, const std::string& model, const RunPlan& plan,
                   const DataFacts* data, const std::string& about_devices, const Style& style) {
  const ModelConfig& shape = settings.model;
  const int64_t batch = settings.global_batch();
  const int64_t tokens = batch * shape.seq_len;
  std::string text;
  const auto row = [&](const std::string& name, const std::string& value) {
    absl::StrAppend(&text, "  ", style.Dim(Left(name, 10)), value, "\n");
  };
  const auto more = [&](const std::string& value) { row("", value); };
  text += TableTitle(absl::StrCat("A GPT on ", OnDevices(settings), ", ZeRO-", settings.zero_stage),
                     style);
  more(settings.devices == 1 && settings.zero_stage > 0
           ? "one device has nobody to share with: every stage is stage 0 there"
           : std::string(kStageNames[static_cast<size_t>(settings.zero_stage)]));
  if (!about_devices.empty()) {
    constexpr int kColumn = 12;
    text += Lines("  " + style.Dim(Left("devices", kColumn - 3)), about_devices, kColumn);
  }
  row("model", absl::StrCat(model, ": Ψ = ", WithCommas(plan.parameters), " parameters in ",
                            std::string(Name(settings.dtype)), ", gradients in ",
                            std::string(Name(settings.grad_accum_dtype))));
  more(absl::StrCat(Plural(shape.n_layer, "layer", "layers"), ", ",
                    Plural(shape.n_head, "head", "heads"), ", width ", WithCommas(shape.n_embd),
                    ", sequence ", WithCommas(shape.seq_len), ", vocabulary ",
                    WithCommas(shape.vocab_size)));
  if (settings.dropout > 0) more(absl::StrCat("dropout ", settings.dropout));
  row("memory", absl::StrCat("activation checkpointing ",
                             std::string(Name(settings.activation_checkpointing)), "; offload ",
                             std::string(OffloadName(settings.offload_optimizer,
                                                     settings.offload_activations))));
  row("batch", absl::StrCat(settings.micro_batch, " micro_batch × ", settings.grad_accum,
                            " grad_accum × ", Plural(settings.devices, "device", "devices"), " = ",
                            WithCommas(batch), batch == 1 ? " sequence" : " sequences"));
  more(absl::StrCat(WithCommas(batch), " × ", WithCommas(shape.seq_len), " = ", WithCommas(tokens),
                    " tokens a step, ", WithCommas(settings.steps), " steps = ",
                    HumanCount(static_cast<double>(tokens) * static_cast<double>(settings.steps)),
                    " tokens"));
  if (!settings.data.empty()) row("data", Shortened(settings.data, kScreenWidth - 12));
  if (data != nullptr) {
    const double epochs = static_cast<double>(batch) * static_cast<double>(settings.steps) /
                          static_cast<double>(data->train_sequences);
    more(absl::StrCat(HumanCount(static_cast<double>(data->train_tokens)), " tokens, ",
                      WithCommas(data->train_sequences), " sequences (",
                      WithCommas(data->validation_sequences),
                      " more held out): ", absl::StrFormat("%.2f", epochs), " epochs"));
  }
  const OptimizerSettings& optimizer = settings.optimizer;
  row("optimizer",
      absl::StrCat("AdamW, lr ", optimizer.learning_rate,
                   optimizer.warmup_steps > 0
                       ? absl::StrCat(" after ", Plural(optimizer.warmup_steps, "step", "steps"))
                       : "",
                   ", to ", optimizer.min_learning_rate, "; decay ", optimizer.weight_decay,
                   optimizer.clip_norm > 0 ? absl::StrCat(", clip ", optimizer.clip_norm) : ""));
  const int64_t needed = LargestReservation(plan);
  row("machine", absl::StrCat(Plural(settings.threads, "thread", "threads"), "; a device takes ",
                              HumanBytes(needed),
                              needed <= settings.device_memory_bytes ? " of its " : ", but has ",
                              HumanBytes(settings.device_memory_bytes)));
  return text;
}

std::string FlagsTable(const std::vector<ResolvedFlag>& flags, const Style& style) {
  std::string table;
  for (size_t i = 0; i < flags.size(); ++i) {
    const ResolvedFlag& flag = flags[i];
    if (i == 0 || flags[i - 1].topic != flag.topic) {
      table += TableTitle(std::string(zerobox::Title(flag.topic)), style);
    }
    std::string value = Text(flag.value);
    if (value.empty()) value = "-";
    const FlagInfo* const info = FindFlag(flag.name);
    if (value == "-" && !info->default_text.empty()) value = info->default_text;
    if (info->placeholder == "SIZE") {
      const int64_t bytes = std::get<int64_t>(flag.value);
      value = absl::StrCat(WithCommas(bytes), " (", HumanBytes(bytes), ")");
    }
    absl::StrAppend(&table, "  ", Left(flag.name, 26), Left(Shortened(value, 40), 40), "  ",
                    flag.source == "default" ? style.Dim(flag.source) : flag.source, "\n");
  }
  return table;
}

std::string ProgramTable(const TrainSettings& settings, const RunPlan& plan, const Style& style) {
  std::string table =
      TableTitle(settings.grad_accum == 1
                     ? "The step program"
                     : absl::StrCat("The step program, ", settings.grad_accum, " times a step"),
                 style);
  absl::StrAppend(&table, "  ", Right("visit", 5), "  ", Left("pass", 10), Left("layer", 12),
                  Right("unit", 4), "  parameters\n");
  for (const Visit& visit : plan.program) {
    const char* what = !visit.needs_parameters  ? "not needed"
                       : visit.keeps_parameters ? "acquired, and kept for the next visit"
                                                : "acquired, then released";
    absl::StrAppend(&table, "  ", Right(absl::StrCat(visit.index), 5), "  ",
                    Left(visit.pass == Pass::kForward ? "forward" : "backward", 10),
                    Left(visit.layer, 12), Right(absl::StrCat(visit.unit), 4), "  ", what, "\n");
  }
  return table;
}

std::string YardstickTable(const std::vector<Yardstick>& yardsticks, const Style& style) {
  std::string table =
      TableTitle("Held-out loss in nats a token, beside models that only count", style);
  double longest = 0;
  for (const Yardstick& yardstick : yardsticks) {
    if (std::isfinite(yardstick.loss)) longest = std::max(longest, yardstick.loss);
  }
  for (const Yardstick& yardstick : yardsticks) {
    const std::string row = absl::StrCat(Left(yardstick.name, 40),
                                         absl::StrFormat("%7.4f  ", WithoutNanSign(yardstick.loss)),
                                         Bar(longest > 0 ? yardstick.loss / longest : 0, 0, 26));
    absl::StrAppend(&table, "  ", yardstick.ours ? style.Bold(row) : row, "\n");
  }
  return table;
}

std::string SampleBlock(const std::string& text, const Style& style) {
  constexpr int kColumns = kScreenWidth - 4;
  std::string block = absl::StrCat("  ", style.Dim("│"), " ");
  const std::string fresh_line = "\n" + block;
  int column = 0;
  for (const char c : Printable(text)) {
    const bool starts_character = (static_cast<unsigned char>(c) >> 6) != 2;
    if (c == '\n' || (starts_character && column == kColumns)) {
      block += fresh_line;
      column = 0;
    }
    if (c == '\n') continue;
    block += c == '\t' ? ' ' : c;
    column += starts_character ? 1 : 0;
  }
  return block + "\n";
}

std::string EvalText(const EvalMetrics& metrics, const Style& style) {
  const double loss = WithoutNanSign(metrics.val_loss);
  return absl::StrCat("step ", metrics.step, "   held-out loss ",
                      style.Bold(absl::StrFormat("%.4f", loss)),
                      absl::StrFormat("   perplexity %.2f\n", std::exp(loss)));
}

}  // namespace zerobox
