#!/usr/bin/env bash
# Checks and tests the alerts with Debian's promtool.
set -euo pipefail
"$(dirname "${BASH_SOURCE[0]}")/setup_prometheus.sh"
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

.prometheus/usr/bin/promtool check rules monitoring/rules.yml
.prometheus/usr/bin/promtool test rules monitoring/rules_test.yml
