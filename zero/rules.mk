# SPDX-License-Identifier: Apache-2.0
# The sources of zero/, one a line, sorted.
zero_sources := \

