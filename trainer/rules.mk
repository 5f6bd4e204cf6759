# SPDX-License-Identifier: Apache-2.0
# The sources of trainer/, one a line, sorted.
trainer_sources := \
  trainer/activation_checkpoints.cpp \
  trainer/batch_feed.cpp \
  trainer/board.cpp \
  trainer/command_help.cpp \
  trainer/command_line.cpp \
  trainer/command_sample.cpp \
  trainer/command_train.cpp \
  trainer/fit.cpp \
  trainer/flags.cpp \
  trainer/gpt.cpp \
  trainer/help.cpp \
  trainer/main.cpp \
  trainer/memory_table.cpp \
  trainer/model_file.cpp \
  trainer/plan.cpp \
  trainer/plan_parts.cpp \
  trainer/replica.cpp \
  trainer/resolve.cpp \
  trainer/resolve_devices.cpp \
  trainer/resolver.cpp \
  trainer/run_folder.cpp \
  trainer/sampler.cpp \
  trainer/screen.cpp \
  trainer/signals.cpp \
  trainer/step_programs.cpp \
  trainer/step_trace.cpp \
  trainer/table_rows.cpp \
  trainer/tables.cpp \
  trainer/text.cpp \
  trainer/tracer.cpp \
  trainer/traffic_table.cpp \
  trainer/train.cpp \
  trainer/watch.cpp \
  trainer/worker.cpp \

