# SPDX-License-Identifier: Apache-2.0
# The sources of trainer/, one a line, sorted.
trainer_sources := \
  trainer/activation_checkpoints.cpp \
  trainer/batch_feed.cpp \
  trainer/board.cpp \
  trainer/combinations.cpp \
  trainer/command_compare.cpp \
  trainer/command_help.cpp \
  trainer/command_line.cpp \
  trainer/command_report.cpp \
  trainer/command_sample.cpp \
  trainer/command_train.cpp \
  trainer/compare_table.cpp \
  trainer/comparison.cpp \
  trainer/embedded.cpp \
  trainer/fit.cpp \
  trainer/flags.cpp \
  trainer/gpt.cpp \
  trainer/help.cpp \
  trainer/main.cpp \
  trainer/memory_picture.cpp \
  trainer/memory_table.cpp \
  trainer/model_file.cpp \
  trainer/picture.cpp \
  trainer/plan.cpp \
  trainer/plan_parts.cpp \
  trainer/replica.cpp \
  trainer/report.cpp \
  trainer/report_merge.cpp \
  trainer/report_page.cpp \
  trainer/report_step.cpp \
  trainer/resolve.cpp \
  trainer/resolve_devices.cpp \
  trainer/resolver.cpp \
  trainer/run_equality.cpp \
  trainer/run_folder.cpp \
  trainer/run_name.cpp \
  trainer/sampler.cpp \
  trainer/screen.cpp \
  trainer/signals.cpp \
  trainer/step_programs.cpp \
  trainer/step_trace.cpp \
  trainer/table_rows.cpp \
  trainer/tables.cpp \
  trainer/text.cpp \
  trainer/trace_events.cpp \
  trainer/tracer.cpp \
  trainer/traffic_table.cpp \
  trainer/train.cpp \
  trainer/training_run.cpp \
  trainer/watch.cpp \
  trainer/worker.cpp \

# Files that the program carries (trainer/embedded.h): what report.html is made of, and what memory.png is written with.
embedded_fonts := build/fonts/DejaVuSans.ttf build/fonts/DejaVuSans-Bold.ttf
embedded_files := $(sort $(wildcard trainer/report/*.html trainer/report/*.css trainer/report/*.js)) $(embedded_fonts)
