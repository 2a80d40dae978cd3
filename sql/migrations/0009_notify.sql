-- Notifications: the targets of the file in force, and what each was told and is to be told. Adds a column with a constant
-- default to job_definitions, which writes no row, and creates two small tables.
-- oldest_supported: 3
--
-- All follows from one row per target, and one row per target and subject: a job, or a problem that is not one job's. A row
-- is written in the transaction that has a run die (`note`), and once a minute by `settle_notes`: late, recovered, ended. It
-- holds what is so now and what the target was told last, and no list of events, so nothing piles up. due_at says when there
-- is something to tell: at once for the first death and for the first delay, else a pause after the message before. The
-- pause starts with an hour and doubles up to a day. A day without trouble starts over. Who sends (extras/notify) takes a
-- target for a minute by next_at, tells what is due then, and writes that it was told. A send that fails changes no row but
-- the target's; what could not be told for a day is deleted. Who holds locks of runs and gates takes those of rows last, in
-- the order of the primary key, and then commits.

alter table yamlsched.job_definitions add column notify text[] not null default '{}';  -- names of targets

create table yamlsched.notify_targets (
    namespace     text not null,
    name          text not null,
    url_env       text not null,       -- the variable that has the address, which is a secret and is stored nowhere
    events        text[] not null,
    next_at       timestamptz not null default '-infinity',  -- a minute after the latest message, later after a failure
    failing_since timestamptz,         -- when the first send failed since one that did not
    error         text,                -- of the latest one
    primary key (namespace, name),
    constraint failing_has_an_error check ((failing_since is null) = (error is null))
);

create table yamlsched.notifications (
    namespace     text not null,
    target        text not null,
    subject       text not null,       -- the job's name; of a problem its kind, a colon, and its job if it has one
    definition_id bigint references yamlsched.job_definitions (id) on delete cascade,  -- null: a problem
    slot          timestamptz,         -- the latest one that died or was late: a success of it or of a later one is the recovery
    run_id        bigint,              -- that died last
    dead_at       timestamptz,
    dead_runs     integer not null default 0,  -- that have died and the target was not told
    late_since    timestamptz,         -- null: the job is not late
    what          text,                -- the problem
    active_at     timestamptz not null,  -- when there was trouble last
    ended_at      timestamptz,         -- when it has recovered, or the problem was gone
    told          text[] not null default '{}',  -- events that are not told at once again
    is_told       boolean not null default false,  -- of the trouble, and not yet of its end
    quiet_until   timestamptz,         -- a pause after the latest message about trouble
    pause         interval not null default '1 hour',  -- the next one, doubled with each message
    due_at        timestamptz,         -- null: there is nothing to tell
    primary key (namespace, target, subject),
    foreign key (namespace, target) references yamlsched.notify_targets on delete cascade
);
create index notifications_due on yamlsched.notifications (namespace, target, due_at) where due_at is not null;

-- Note what has happened to jobs (dead, late), or problems, for the targets that are to be told of it. What is late or a
-- problem is noted each minute, and is news only once. Jobs that are paused, disabled or retired are left out.
create function yamlsched.note(of_namespace text, event text, subjects jsonb, now timestamptz) returns void
    language sql set search_path = pg_catalog, pg_temp
as $$
    insert into yamlsched.notifications as n
        (namespace, target, subject, definition_id, slot, run_id, dead_at, dead_runs, late_since, what, active_at, due_at)
    select of_namespace, t.name, coalesce(d.job_type, s.subject), d.id, s.slot, s.run_id, s.dead_at, coalesce(s.dead_runs, 0),
           s.late_since, s.what, now, now
    from jsonb_populate_recordset(null::yamlsched.notifications, subjects) s
    left join yamlsched.job_definitions d on d.id = s.definition_id
    join yamlsched.notify_targets t on t.namespace = of_namespace and event = any (t.events)
                                   and (d.id is null or t.name = any (d.notify) and not yamlsched.is_withheld(d, now))
    order by 2, 3
    on conflict (namespace, target, subject) do update
    set slot = greatest(n.slot, excluded.slot), run_id = coalesce(excluded.run_id, n.run_id), what = excluded.what,
        dead_at = coalesce(excluded.dead_at, n.dead_at), dead_runs = n.dead_runs + excluded.dead_runs,
        late_since = coalesce(excluded.late_since, n.late_since), active_at = now, ended_at = null,
        due_at = case when event = any (n.told) then greatest(now, n.quiet_until) else least(n.due_at, now) end
    where case event when 'dead' then true when 'problem' then n.ended_at is not null
               else n.late_since is null and coalesce(n.slot < excluded.slot, true) end
$$;

-- Whether a job's run that died is still what there is to say of the job: no run of a later slot exists, or, of a run that
-- was enqueued, for a day.
create function yamlsched.is_still_dead(died bigint, at timestamptz, now timestamptz) returns boolean
    language sql stable set search_path = pg_catalog, pg_temp
as $$
    select coalesce((
        select case when r.scheduled_for is null then r.dead_at > now - interval '1 day'
                    else not exists (select from yamlsched.job_runs l
                                     where l.definition_id = r.definition_id and l.scheduled_for > r.scheduled_for
                                       and (l.finished_at is null or l.finished_at > r.dead_at)) end
        from yamlsched.job_runs r where r.id = died and r.dead_at = at), false)
$$;

-- Bring the rows of a namespace up to date: what is late, what has recovered, what need not be told any more. A job has
-- recovered when a run of the slot or of a later one has succeeded, which is looked for among its last 10,000 runs.
create function yamlsched.settle_notes(of_namespace text, now timestamptz) returns void
    language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    late jsonb := (select jsonb_agg(to_jsonb(l)) from yamlsched.late_jobs l where l.namespace = of_namespace);
begin
    perform from yamlsched.notifications n where n.namespace = of_namespace order by n.target, n.subject for update;
    perform yamlsched.note(of_namespace, 'late', late, now);
    delete from yamlsched.notifications n
    where n.namespace = of_namespace and (
        n.due_at < now - interval '1 day'
        or n.active_at < now - interval '1 day' and (n.ended_at is not null or not n.is_told or n.slot is null)
        or n.definition_id is not null and not exists (
            select from yamlsched.job_definitions d
            where d.id = n.definition_id and n.target = any (d.notify) and not yamlsched.is_withheld(d, now)));
    with state as (
        select n.target, n.subject, 'recovered' = any (t.events) as tells_end,
               'late' = any (t.events) and jsonb_build_array(jsonb_build_object('definition_id', n.definition_id)) <@ coalesce(late, '[]') as is_late,
               n.ended_at is null and yamlsched.is_still_dead(n.run_id, n.dead_at, now) as is_dead,
               n.ended_at is null and n.slot is not null and exists (
                   select from (select l.status, l.scheduled_for from yamlsched.job_runs l
                                where l.definition_id = n.definition_id and l.finished_at > coalesce(n.dead_at, n.slot)
                                order by l.finished_at desc limit 10000) l
                   where l.status = 'succeeded' and l.scheduled_for >= n.slot) as has_recovered
        from yamlsched.notifications n join yamlsched.notify_targets t on (t.namespace, t.name) = (n.namespace, n.target)
        where n.namespace = of_namespace and n.definition_id is not null
    )
    update yamlsched.notifications n
    set late_since = case when s.is_late and not s.has_recovered then n.late_since end,
        active_at = case when s.is_late or s.is_dead then now else n.active_at end,
        told = case when n.active_at < now - interval '1 day' then '{}' else n.told end,
        pause = case when n.active_at < now - interval '1 day' then '1 hour' else n.pause end,
        ended_at = case when s.has_recovered then now else n.ended_at end,
        dead_at = case when not s.has_recovered then n.dead_at end,
        dead_runs = case when s.has_recovered then 0 else n.dead_runs end,
        due_at = case when s.has_recovered then case when n.is_told and s.tells_end then now end
                      when n.ended_at is not null or n.due_at > now or n.dead_runs > 0 or s.is_late or s.is_dead then n.due_at end
    from state s
    where n.namespace = of_namespace and (n.target, n.subject) = (s.target, s.subject);
end
$$;

-- The variables of the targets to which a message is due; null: there are no targets.
create function yamlsched.messages_due(of_namespace text, now timestamptz) returns text[]
    language sql stable set search_path = pg_catalog, pg_temp
as $$
    select array_agg(distinct case when t.next_at <= now and exists (
               select from yamlsched.notifications n
               where n.namespace = t.namespace and n.target = t.name and n.due_at <= now) then t.url_env end)
    from yamlsched.notify_targets t where t.namespace = of_namespace
$$;
