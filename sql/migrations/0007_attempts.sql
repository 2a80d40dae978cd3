-- What an attempt was executed by, and what it used. Adds columns without defaults: the tables are locked for a moment, and no
-- row is written. A worker of an older release leaves them null.
-- oldest_supported: 3

-- Of the latest attempt: the commit of its code, abbreviated, or what YAMLSCHED_REVISION named. In peak_memory_bytes, a number
-- below zero is a bound: a program that took at most that much was not larger than the process that started it.
alter table yamlsched.job_runs
    add column cpu_seconds double precision,
    add column peak_memory_bytes bigint,
    add column revision text;
alter table yamlsched.job_failures
    add column cpu_seconds double precision,
    add column peak_memory_bytes bigint,
    add column revision text;
