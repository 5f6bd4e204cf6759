# SPDX-License-Identifier: Apache-2.0
# The sources of data/, one a line, sorted.
data_sources := \

