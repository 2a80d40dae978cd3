-- Workers, and when they are started: service/start_rule.py. What workers write decides nothing
-- about runs: only the lease does.

-- name: report
-- A worker has come, is there, or has ended, for each of its queues. A queue is not returned if
-- another process with this id is live there. One that was lost, or that its engine has started
-- again, takes its row over; `is_own`: in any case, because the id names this very process.
insert into yamlsched.workers as w
    (namespace, id, queue, host, path, revision, cannot_start, reported_at, seen_at, leaving_at,
     ended_at, runs)
select %(namespace)s, %(id)s, q.name, %(host)s, %(path)s, %(revision)s, %(cannot_start)s,
       coalesce(q.reported_at, c.now), c.now, case when %(is_leaving)s then c.now end,
       case when q.has_ended then c.now end, q.runs
from unnest(%(queues)s::text[], %(reported_ats)s::timestamptz[], %(runs)s::bigint[],
            %(has_ended)s::boolean[]) as q (name, reported_at, runs, has_ended)
cross join (select :now as now) c
on conflict (namespace, id, queue) do update
set host = excluded.host, path = excluded.path, revision = excluded.revision,
    cannot_start = excluded.cannot_start, reported_at = excluded.reported_at,
    seen_at = excluded.seen_at, error = null, runs = excluded.runs,
    leaving_at = case when excluded.leaving_at is not null
                      then coalesce(w.leaving_at, excluded.leaving_at) end,
    ended_at = excluded.ended_at
where %(is_own)s or w.reported_at = excluded.reported_at
   or w.reported_at is null or w.ended_at is not null
   or w.seen_at <= excluded.seen_at - interval '60 seconds'
returning w.queue, w.reported_at;

-- name: latest
-- Workers: those that are there first, then the latest.
select w.id, w.queue, w.host, w.path, w.revision, w.requested_at, w.start_by, w.reported_at,
       w.seen_at, w.leaving_at, w.ended_at, w.runs,
       w.error
from yamlsched.workers w
where w.namespace = %(namespace)s
order by w.ended_at is not null, coalesce(w.seen_at, w.requested_at) desc, w.id, w.queue
limit %(limit)s;

-- name: prune
-- Forget workers that ended, or were seen last, more than 7 days ago.
delete from yamlsched.workers w
where w.namespace = %(namespace)s
  and coalesce(w.ended_at, w.seen_at, w.requested_at)
      < :now - interval '7 days';

-- name: lock_queue
-- Lock the queue's row, and make it if it is missing. The time is read after that, with the state:
-- what is written under the lock has times in the order of the locks.
insert into yamlsched.queue_states (namespace, queue) values (%(namespace)s, %(queue)s)
on conflict (namespace, queue) do update set queue = excluded.queue;

-- name: state
select coalesce(q.failed_starts, 0) as failed_starts, q.failed_at, q.next_start_at, q.decided_at,
       :now as now
from (select) one
left join yamlsched.queue_states q on q.namespace = %(namespace)s and q.queue = %(queue)s;

-- name: rows
-- The workers of a queue that have not ended, or have since the last decision.
select w.id, w.requested_at, w.start_by, w.reported_at, w.seen_at, w.leaving_at, w.ended_at, w.runs,
       w.error
from yamlsched.workers w
where w.namespace = %(namespace)s and w.queue = %(queue)s
  and (w.ended_at is null or w.ended_at > coalesce(%(decided_at)s::timestamptz, '-infinity'))
order by w.id;

-- name: load
-- How many runs of a queue are due or execute, counted up to `most`: see queue_load_of.
select l.due + l.executing as runs, l.oldest_due_at
from yamlsched.queue_load_of(%(namespace)s, %(queue)s, %(most)s, :now) l;

-- name: request
-- Rows of workers that are about to be started: committed before their commands run.
insert into yamlsched.workers (namespace, id, queue, requested_at, start_by)
select %(namespace)s, i.id, %(queue)s, %(now)s, %(now)s + %(start_timeout)s
from unnest(%(ids)s::text[]) as i (id);

-- name: note_ends
-- Why workers count as ended, or their starts as failed.
update yamlsched.workers w
set ended_at = coalesce(w.ended_at, %(now)s), error = coalesce(w.error, e.error)
from unnest(%(ids)s::text[], %(errors)s::text[]) as e (id, error)
where w.namespace = %(namespace)s and w.queue = %(queue)s and w.id = e.id;

-- name: save_state
update yamlsched.queue_states q
set failed_starts = %(failed_starts)s, failed_at = %(failed_at)s,
    next_start_at = %(next_start_at)s, decided_at = %(decided_at)s
where q.namespace = %(namespace)s and q.queue = %(queue)s;

-- name: note_command
-- The command of a start has failed. A worker that has come all the same counts.
update yamlsched.workers w
set ended_at = :now, error = %(error)s
where w.namespace = %(namespace)s and w.queue = %(queue)s and w.id = %(id)s
  and w.reported_at is null and w.ended_at is null
returning w.id;

-- name: other_requests
-- For what a worker with this id was requested, if that is none of these queues.
select w.namespace, w.queue
from yamlsched.workers w
where w.id = %(id)s and w.requested_at is not null
  and not exists (select from yamlsched.workers o
                  where o.namespace = %(namespace)s and o.id = %(id)s
                    and o.queue = any (%(queues)s::text[]) and o.requested_at is not null)
order by w.requested_at limit 1;

-- name: refuse_above
-- Refuse a requested worker of a queue with `max_workers` live ones beside it: it ends, although
-- its start has not failed. One that nobody requested is not refused.
update yamlsched.workers w
set ended_at = %(now)s
where w.namespace = %(namespace)s and w.queue = %(queue)s and w.id = %(id)s
  and w.requested_at is not null and %(max_workers)s <= (
      select count(*) from yamlsched.workers o
      where o.namespace = w.namespace and o.queue = w.queue and o.id <> w.id
        and o.requested_at is not null and o.ended_at is null
        and o.seen_at > %(now)s - interval '60 seconds')
returning w.queue;
