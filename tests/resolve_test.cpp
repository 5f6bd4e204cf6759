// SPDX-License-Identifier: Apache-2.0
#include "trainer/resolve.h"

#include <map>
#include <string>
#include <vector>

#include "absl/flags/reflection.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace zerobox {
namespace {

using ::testing::HasSubstr;

const Machine kMachine = {.cores = 6, .available_memory = 1000000};
const Machine kMachineWithGpu = {.cores = 6,
                                 .available_memory = 1000000,
                                 .count_gpus = [] { return 1; },
                                 .free_gpu_memory = [](int) { return 2000; }};

absl::StatusOr<ResolvedTrain> Resolve(std::vector<std::string> arguments,
                                      const std::string& data = "book.txt",
                                      const Machine& machine = kMachine) {
  const absl::FlagSaver saver;
  if (!data.empty()) arguments.push_back("--data=" + data);
  const absl::StatusOr<CommandLine> line = ParseArguments(kTrainCommand, arguments);
  if (!line.ok()) return line.status();
  return ResolveTrain(*line, machine);
}

std::string ErrorOf(const std::vector<std::string>& arguments, const Machine& machine = kMachine) {
  const absl::StatusOr<ResolvedTrain> resolved = Resolve(arguments, "book.txt", machine);
  return resolved.ok() ? "" : std::string(resolved.status().message());
}

TEST(Resolve, FillsInEveryDefault) {
  const ResolvedTrain resolved = Resolve({}).value();
  const TrainSettings& settings = resolved.settings;
  EXPECT_EQ(settings.data, "book.txt");
  EXPECT_EQ(settings.out, "");
  EXPECT_EQ(settings.device, "host");
  EXPECT_EQ(settings.devices, 4);
  EXPECT_EQ(settings.threads, 6);
  EXPECT_EQ(settings.device_memory_bytes, 225000);  // 90% of a million, by 4
  EXPECT_EQ(settings.model.n_layer, 4);
  EXPECT_EQ(settings.model.n_head, 4);
  EXPECT_EQ(settings.model.n_embd, 128);
  EXPECT_EQ(settings.model.seq_len, 128);
  EXPECT_EQ(settings.model.vocab_size, 256);
  EXPECT_EQ(settings.global_batch(), 16);
  EXPECT_EQ(settings.optimizer.warmup_steps, 20);
  EXPECT_EQ(settings.optimizer.total_steps, 400);
  EXPECT_EQ(settings.optimizer.clip_norm, 1.0);
}

TEST(Resolve, SaysWhereEachValueComesFrom) {
  const ResolvedTrain resolved =
      Resolve({"--model=gpt2", "--n_layer=2", "--steps=50", "--device_memory=1GiB"}).value();
  std::map<std::string, std::pair<std::string, std::string>> found;
  for (const ResolvedFlag& flag : resolved.flags) {
    found[flag.name] = {Text(flag.value), flag.source};
  }
  const auto is = [](const char* value, const char* source) {
    return std::pair<std::string, std::string>(value, source);
  };
  EXPECT_EQ(found["model"], is("gpt2", "flag"));
  EXPECT_EQ(found["n_layer"], is("2", "flag"));
  EXPECT_EQ(found["n_head"], is("12", "model"));
  EXPECT_EQ(found["vocab_size"], is("50257", "model"));
  EXPECT_EQ(found["warmup"], is("2", "derived"));
  EXPECT_EQ(found["threads"], is("6", "derived"));
  EXPECT_EQ(found["device_memory"], is("1073741824", "flag"));
  EXPECT_EQ(found["lr"], is("0.001", "default"));
  EXPECT_EQ(found["dry_run"], is("false", "default"));
  // Every flag of the command, once, and no other.
  size_t expected = 0;
  for (const FlagInfo& flag : AllFlags()) expected += (flag.commands & kTrainCommand) != 0;
  EXPECT_EQ(resolved.flags.size(), expected);
  EXPECT_EQ(found.size(), expected);
}

TEST(Resolve, KnowsTheShapesOfGpt2) {
  const auto parameters = [](const char* name) {
    const ModelConfig m = ModelPreset(name).value();
    return m.vocab_size * m.n_embd + m.seq_len * m.n_embd +
           m.n_layer * (12 * m.n_embd * m.n_embd + 13 * m.n_embd) + 2 * m.n_embd;
  };
  EXPECT_EQ(parameters("tiny"), 842496);
  EXPECT_EQ(parameters("gpt2"), 124439808);
  EXPECT_EQ(parameters("gpt2-medium"), 354823168);
  EXPECT_EQ(parameters("gpt2-large"), 774030080);
  EXPECT_EQ(parameters("gpt2-xl"), 1557611200);
  for (const char* name : {"tiny", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"}) {
    EXPECT_EQ(ModelPreset(name)->n_embd % ModelPreset(name)->n_head, 0) << name;
  }
  EXPECT_FALSE(ModelPreset("gpt3").has_value());
}

TEST(Resolve, RefusesWhatDoesNotGoTogether) {
  EXPECT_THAT(ErrorOf({"--n_embd=130"}),
              testing::AllOf(HasSubstr("--n_embd=130 with --n_head=4"), HasSubstr("--n_embd=132")));
  EXPECT_THAT(ErrorOf({"--model=gpt2", "--seq_len=1025"}),
              testing::AllOf(HasSubstr("wanted at most 1024"), HasSubstr("found 1025")));
  EXPECT_EQ(ErrorOf({"--model=gpt2", "--seq_len=1024"}), "");
  EXPECT_EQ(ErrorOf({"--seq_len=2048"}), "");
  EXPECT_THAT(ErrorOf({"--lr=1e-5", "--min_lr=1e-4"}),
              HasSubstr("--min_lr=0.0001 with --lr=1e-05"));
  EXPECT_THAT(ErrorOf({"--steps=10", "--warmup=11"}), HasSubstr("--warmup=11 with --steps=10"));
  EXPECT_THAT(ErrorOf({"--model=gpt5"}), HasSubstr("found 'gpt5'"));
  EXPECT_THAT(ErrorOf({"--out="}), HasSubstr("--out is empty"));
}

TEST(Resolve, RefusesWhatThisBuildDoesNotHave) {
  EXPECT_THAT(ErrorOf({"--device=cuda"}),
              testing::AllOf(HasSubstr("this build has no CUDA devices ("),
                             HasSubstr("; use --device=host")));
  EXPECT_THAT(ErrorOf({"--device=tpu"}), HasSubstr("wanted auto, host or cuda, found 'tpu'"));
}

// The value of a flag as the run has it, and where it comes from.
std::pair<std::string, std::string> Found(const ResolvedTrain& resolved, const std::string& name) {
  for (const ResolvedFlag& flag : resolved.flags) {
    if (flag.name == name) return {Text(flag.value), flag.source};
  }
  return {};
}

std::pair<std::string, std::string> Is(const char* value, const char* source) {
  return {value, source};
}

TEST(Resolve, TakesTf32OnAGpuOnly) {
  EXPECT_FALSE(Resolve({"--dtype=fp32"}, "book.txt", kMachineWithGpu)->settings.tf32);
  EXPECT_TRUE(Resolve({"--dtype=fp32", "--tf32"}, "book.txt", kMachineWithGpu)->settings.tf32);
  EXPECT_THAT(ErrorOf({"--tf32", "--device=host"}, kMachineWithGpu),
              testing::AllOf(HasSubstr("--tf32 with --device=host"), HasSubstr("wanted a GPU")));
}

TEST(Resolve, RefusesHeadsThatTheGpusKernelsAreNotMadeFor) {
  EXPECT_EQ(ErrorOf({"--n_embd=512", "--n_head=4"}, kMachineWithGpu), "");
  EXPECT_EQ(ErrorOf({"--n_embd=520", "--n_head=4", "--device=host"}, kMachineWithGpu), "");
  EXPECT_THAT(ErrorOf({"--n_embd=520", "--n_head=4"}, kMachineWithGpu),
              testing::AllOf(HasSubstr("--n_embd=520 with --n_head=4"),
                             HasSubstr("at most 128 channels on a GPU, found 130"),
                             HasSubstr("--n_head=5 would do")));
}

TEST(Resolve, DerivesAFinalLearningRateBelowALowPeak) {
  const ResolvedTrain low = Resolve({"--lr=5e-5"}).value();
  EXPECT_EQ(low.settings.optimizer.min_learning_rate, 5e-5 / 10);
  EXPECT_EQ(Found(low, "min_lr").second, "derived");
  EXPECT_EQ(Found(Resolve({"--lr=1e-4"}).value(), "min_lr"), Is("1e-04", "default"));
  EXPECT_EQ(Found(Resolve({"--lr=5e-5", "--min_lr=5e-5"}).value(), "min_lr"), Is("5e-05", "flag"));
}

TEST(Resolve, SaysWhatAutoCameTo) {
  for (const std::vector<std::string>& flags :
       std::vector<std::vector<std::string>>{{}, {"--device=auto", "--grad_accum_dtype=auto"}}) {
    const ResolvedTrain resolved = Resolve(flags).value();
    EXPECT_EQ(Found(resolved, "device"), Is("host", "derived"));
    EXPECT_EQ(Found(resolved, "grad_accum_dtype"), Is("fp32", "derived"));
  }
  EXPECT_EQ(Found(Resolve({"--device=host"}).value(), "device"), Is("host", "flag"));
}

TEST(Resolve, KeepsGradientsInTheTypeOfTrainingWhereNothingIsAccumulated) {
  const struct {
    std::vector<std::string> flags;
    DType gradients;
    const char* source;
  } cases[] = {
      {{"--dtype=bf16"}, DType::kBFloat16, "derived"},
      {{"--dtype=bf16", "--grad_accum=2"}, DType::kFloat32, "derived"},
      {{"--dtype=bf16", "--grad_accum=2", "--grad_accum_dtype=auto"}, DType::kFloat32, "derived"},
      {{"--dtype=bf16", "--grad_accum=2", "--grad_accum_dtype=bf16"}, DType::kBFloat16, "flag"},
      {{"--dtype=bf16", "--grad_accum_dtype=fp32"}, DType::kFloat32, "flag"},
      {{"--grad_accum_dtype=fp32"}, DType::kFloat32, "flag"},
  };
  for (const auto& [flags, gradients, source] : cases) {
    const ResolvedTrain resolved = Resolve(flags).value();
    SCOPED_TRACE(testing::PrintToString(flags));
    EXPECT_EQ(resolved.settings.grad_accum_dtype, gradients);
    EXPECT_EQ(Found(resolved, "grad_accum_dtype"),
              Is(gradients == DType::kFloat32 ? "fp32" : "bf16", source));
  }
  EXPECT_EQ(Resolve({"--dtype=bf16"})->settings.dtype, DType::kBFloat16);
  EXPECT_EQ(Resolve({"--dtype=fp32"})->settings.dtype, DType::kFloat32);
}

TEST(Resolve, RefusesTypesThatItDoesNotKnowOrThatDoNotGoTogether) {
  EXPECT_THAT(ErrorOf({"--dtype=fp16"}), HasSubstr("wanted fp32 or bf16, found 'fp16'"));
  EXPECT_THAT(ErrorOf({"--grad_accum_dtype=fp64"}),
              HasSubstr("wanted auto, bf16 or fp32, found 'fp64'"));
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {"--grad_accum_dtype=bf16"}, {"--dtype=fp32", "--grad_accum_dtype=bf16"}}) {
    EXPECT_THAT(ErrorOf(flags),
                testing::AllOf(HasSubstr("--grad_accum_dtype=bf16 with --dtype=fp32"),
                               HasSubstr("give --dtype=bf16 too")));
  }
}

TEST(Resolve, ReadsWhatIsCheckpointedAndOffloaded) {
  const TrainSettings none = Resolve({"--offload=none"})->settings;
  EXPECT_EQ(none.activation_checkpointing, ActivationCheckpointing::kNone);
  EXPECT_FALSE(none.offload_optimizer || none.offload_activations);
  EXPECT_EQ(none.logits_bytes, 64 << 20);
  EXPECT_FALSE(Resolve({"--offload= none "})->settings.offload_optimizer);
  EXPECT_TRUE(Resolve({"--offload=optimizer"})->settings.offload_optimizer);
  for (const char* both : {"--offload=optimizer,activations", "--offload=activations,optimizer",
                           "--offload=optimizer, activations"}) {
    const ResolvedTrain resolved =
        Resolve({both, "--activation_checkpointing=full", "--logits_bytes=1KiB"}).value();
    EXPECT_TRUE(resolved.settings.offload_optimizer && resolved.settings.offload_activations);
    EXPECT_EQ(resolved.settings.activation_checkpointing, ActivationCheckpointing::kFull);
    EXPECT_EQ(resolved.settings.logits_bytes, 1024);
    EXPECT_EQ(Found(resolved, "offload"), Is("optimizer,activations", "flag"));
  }
  const TrainSettings selective =
      Resolve({"--offload=activations", "--activation_checkpointing=selective"})->settings;
  EXPECT_EQ(selective.activation_checkpointing, ActivationCheckpointing::kSelective);
  EXPECT_TRUE(selective.offload_activations && !selective.offload_optimizer);
}

TEST(Resolve, RefusesWhatCannotBeCheckpointedOrOffloaded) {
  EXPECT_THAT(ErrorOf({"--activation_checkpointing=some"}),
              HasSubstr("wanted none, selective or full, found 'some'"));
  for (const char* offload : {"", "all", "optimizer,optimizer", "none,optimizer", "optimizer,",
                              "optimizer activations", ",activations"}) {
    EXPECT_THAT(
        ErrorOf({std::string("--offload=") + offload, "--activation_checkpointing=full"}),
        testing::AllOf(HasSubstr("each once"), HasSubstr("found '" + std::string(offload) + "'")));
  }
  for (const char* offload : {"activations", "optimizer,activations"}) {
    EXPECT_THAT(ErrorOf({std::string("--offload=") + offload}),
                testing::AllOf(HasSubstr(std::string("--offload=") + offload +
                                         " with --activation_checkpointing=none"),
                               HasSubstr("--activation_checkpointing=selective or full too")));
  }
}

TEST(Resolve, RefusesABudgetBelowOneRowOfLogits) {
  const std::string fp32 = "--logits_bytes=" + std::to_string(4 * 50257);
  const std::string bf16 = "--logits_bytes=" + std::to_string(2 * 50257);
  EXPECT_EQ(ErrorOf({"--model=gpt2", fp32}), "");
  EXPECT_EQ(ErrorOf({"--model=gpt2", "--dtype=bf16", bf16}), "");
  EXPECT_THAT(ErrorOf({"--model=gpt2", bf16}),
              testing::AllOf(HasSubstr("50257 vocab_size x 4 bytes"), HasSubstr("found 100514"),
                             HasSubstr("--logits_bytes=201028 would do")));
  EXPECT_THAT(ErrorOf({"--model=gpt2", "--dtype=bf16", "--logits_bytes=100513"}),
              HasSubstr("--logits_bytes=100514 would do"));
}

TEST(Resolve, RefusesLogitsInChunksBeyondCounting) {
  // 64 x 65,536 rows of 256 fp32 numbers, 64 of them in a chunk.
  const std::vector<std::string> flags = {"--seq_len=65536", "--micro_batch=64",
                                          "--logits_bytes=65536"};
  EXPECT_EQ(ErrorOf(flags), "");
  std::vector<std::string> less = flags;
  less.back() = "--logits_bytes=65535";  // 63
  EXPECT_THAT(ErrorOf(less),
              testing::AllOf(HasSubstr("--logits_bytes=65535 with --micro_batch=64 "
                                       "--seq_len=65536 --vocab_size=256: wanted at most 65536 "
                                       "chunks of logits in a micro-batch, found 66577"),
                             HasSubstr("; --logits_bytes=65536 would do")));
  // Also where the flag was left out.
  EXPECT_THAT(ErrorOf({"--seq_len=65536", "--micro_batch=512", "--vocab_size=1048576"}),
              HasSubstr("--logits_bytes=2147483648 would do"));
}

TEST(Resolve, ReadsWhichStepIsTraced) {
  const auto traced = [](const std::string& flag) {
    return Resolve({"--steps=20", flag}).value().settings.trace_step;
  };
  EXPECT_EQ(Resolve({}).value().settings.trace_step, kTraceLast);
  EXPECT_EQ(traced("--trace=auto"), kTraceLast);
  EXPECT_EQ(traced("--trace=off"), kTraceOff);
  EXPECT_EQ(traced("--trace=1"), 1);
  EXPECT_EQ(traced("--trace=20"), 20);
}

TEST(Resolve, RefusesToTraceAStepThatIsNone) {
  for (const std::string step : {"0", "21", "-1", "last", "1.5", "", "99999999999999999999"}) {
    EXPECT_THAT(ErrorOf({"--steps=20", "--trace=" + step}),
                testing::AllOf(HasSubstr("--trace=" + step +
                                         ": wanted auto, off or the number of "
                                         "a step from 1 to 20, the last of --steps, found '" +
                                         step + "'"),
                               HasSubstr("leave the flag out")));
  }
}

TEST(Resolve, RefusesMoreRowsThanKernelsNumber) {
  const std::vector<std::string> small = {"--n_layer=1",      "--n_head=1",      "--n_embd=1",
                                          "--vocab_size=256", "--seq_len=65536", "--devices=1"};
  const auto error = [&](const std::string& micro_batch) {
    std::vector<std::string> flags = small;
    flags.push_back("--micro_batch=" + micro_batch);
    return ErrorOf(flags);
  };
  EXPECT_EQ(error("32767"), "");
  EXPECT_THAT(error("32768"),
              testing::AllOf(HasSubstr("--micro_batch=32768 with --seq_len=65536"),
                             HasSubstr("fewer than 2^31 tokens in a micro-batch, found 2147483648"),
                             HasSubstr("lower --micro_batch")));
}

TEST(Resolve, NeedsDataUnlessNothingIsTrained) {
  EXPECT_THAT(std::string(Resolve({}, "").status().message()), HasSubstr("--data is missing"));
  EXPECT_TRUE(Resolve({"--dry_run"}, "").ok());
}

TEST(Resolve, RefusesProductsBeyondAnyMachine) {
  EXPECT_THAT(ErrorOf({"--n_layer=1024", "--n_embd=65536", "--seq_len=65536", "--micro_batch=65536",
                       "--n_head=1024", "--vocab_size=1048576"}),
              HasSubstr("make some of them smaller"));
  EXPECT_THAT(ErrorOf({"--steps=1000000000", "--grad_accum=65536", "--micro_batch=1000",
                       "--seq_len=1000", "--n_layer=1"}),
              HasSubstr("fewer than 2^62"));
  EXPECT_THAT(ErrorOf({"--steps=1000000000", "--grad_accum=65536"}), "");
}

TEST(Resolve, GivesSampleItsSettings) {
  const absl::FlagSaver saver;
  const std::vector<std::string> arguments = {"--run=runs/x", "--bytes=7", "--top_k=3"};
  const CommandLine line = ParseArguments(kSampleCommand, arguments).value();
  const SampleSettings settings = ResolveSample(line, kMachine).value().settings;
  EXPECT_EQ(settings.run, "runs/x");
  EXPECT_EQ(settings.prompt, "");
  EXPECT_EQ(settings.bytes, 7);
  EXPECT_EQ(settings.top_k, 3);
  EXPECT_EQ(settings.temperature, 0.8);
  EXPECT_EQ(settings.seed, 1337u);
  EXPECT_EQ(settings.threads, 6);
}

TEST(ThisMachine, HasCoresAndMemory) {
  EXPECT_GE(ThisMachine().cores, 1);
  EXPECT_GT(ThisMachine().available_memory, 1 << 20);
}

}  // namespace
}  // namespace zerobox
