#!/bin/sh
# `make run`: runs the example schedule on the embedded database. A new job has no past slots, so a few runs are enqueued
# by hand. The tick is the command that crontab starts each minute.
set -eu
yamlsched=${1:-yamlsched}

step() {
    echo
    echo "\$ yamlsched $*"
    "$yamlsched" "$@"
}

"$yamlsched" db start >/dev/null              # one server for all steps
trap '"$yamlsched" db stop >/dev/null' EXIT
trap 'exit 130' INT TERM

step validate
step sync
for job in cleanup_nightly refresh_cache weekly_activity invoice_reminders billing_check sales_report fetch_rates; do
    step enqueue "$job"
done
step tick
step runs
echo
echo "The handlers wrote mails, reports and the cache to var/. Next, try:"
echo "    $yamlsched status          the health of all jobs"
echo "    $yamlsched show 1          a run with its attempts"
echo "    $yamlsched next            the next slot of each job"
echo "    $yamlsched web             the same as a page, on http://127.0.0.1:8040/"
