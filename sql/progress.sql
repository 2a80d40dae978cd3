-- What handlers report with run.progress(). Each write is fenced like an outcome, and holds the
-- run's row, so that a value from before cannot follow the one that is written with the outcome.

-- name: report
-- Write the progress of attempts, each only if its run is still ours. A run that is locked is about
-- to finish: its last progress is written with its outcome.
insert into yamlsched.attempt_progress (run_id, attempt, reported_at, done, total, worker, note)
select r.id, g.attempt, :now, g.done, g.total, g.token,
       g.note
from unnest(%(ids)s::bigint[], %(attempts)s::int[], %(tokens)s::text[], %(dones)s::float8[],
            %(totals)s::float8[], %(notes)s::text[]) as g (id, attempt, token, done, total, note)
join yamlsched.job_runs r on r.id = g.id
where r.status = 'running' and r.attempts = g.attempt and r.locked_by = g.token
for no key update of r skip locked
on conflict (run_id, attempt) do update
set reported_at = excluded.reported_at, done = excluded.done, total = excluded.total,
    worker = excluded.worker, note = excluded.note
returning run_id;

-- name: of_runs
-- The last progress of the attempts of runs; with `only_latest`, of the latest ones.
select p.run_id, p.attempt, p.worker, p.done, p.total, p.note,
       case when p.total > 0 then least(100, floor(100 * p.done / p.total))::integer end as percent,
       p.reported_at
from yamlsched.job_runs r
join yamlsched.attempt_progress p on p.run_id = r.id
where r.id = any (%(ids)s::bigint[])
  and (not %(only_latest)s or p.attempt = r.attempts and p.worker = r.locked_by)
order by p.attempt;

-- name: write_outputs
-- The end of what attempts print, of those that still have their runs. A row that is locked is
-- about to be finished.
insert into yamlsched.running_outputs (run_id, attempt, worker, written_at, omitted_bytes, output)
select r.id, g.attempt, g.token, clock_timestamp(), g.omitted_bytes, g.output
from unnest(%(ids)s::bigint[], %(attempts)s::int[], %(tokens)s::text[], %(omitted)s::bigint[],
    %(outputs)s::text[])
  as g (id, attempt, token, omitted_bytes, output)
join yamlsched.job_runs r on r.id = g.id
where r.status = 'running' and r.attempts = g.attempt and r.locked_by = g.token
for no key update of r skip locked
on conflict (run_id, attempt) do update
set worker = excluded.worker, written_at = excluded.written_at,
    omitted_bytes = excluded.omitted_bytes,
    output = excluded.output;

-- name: forget_outputs
delete from yamlsched.running_outputs o
using unnest(%(ids)s::bigint[], %(attempts)s::int[], %(tokens)s::text[]) as g (id, attempt, token)
where o.run_id = g.id and o.attempt = g.attempt and o.worker = g.token;
