-- name: delete_runs
-- Delete all runs of all namespaces, and what belongs to them, in a database for tests.
truncate yamlsched.awaits, yamlsched.job_runs, yamlsched.job_failures, yamlsched.attempt_outputs,
yamlsched.attempt_progress, yamlsched.running_outputs, yamlsched.effects, yamlsched.used_keys,
    yamlsched.skipped_slots;
