-- Four roles to grant to logins, each with the least privileges it needs. Run this script after
-- each "yamlsched migrate", as a superuser, or as the database's owner with CREATEROLE. Running it
-- again is safe.
--
--     yamlsched migrate --roles | psql -d app
--     grant yamlsched_worker   to scheduler;   -- crontab, work, and operators: retry, cancel, pause
--     grant yamlsched_enqueuer to webapp;      -- calls yamlsched.enqueue; sees no table
--     grant yamlsched_reader   to grafana;     -- reads everything, payloads, results and outputs included; changes nothing
--     grant yamlsched_owner    to deployer;    -- migrates; not needed in daily operation

do $$
declare
    name text;
begin
    foreach name in array array['yamlsched_owner', 'yamlsched_worker', 'yamlsched_enqueuer',
        'yamlsched_reader'] loop
        begin
            execute format('create role %I nologin', name);
        exception
            -- roles belong to the whole server: another database, or another session, has created
            -- it
            when duplicate_object or unique_violation then null;
        end;
    end loop;
end
$$;

-- The owner role owns the tables, so that each member can migrate what another member created. Only
-- what the migrations create is transferred: any other function or view in the schema would act
-- with the owner's privileges. The former owner does not become a member: roles belong to the whole
-- server, so it would own yamlsched in every other database too.
do $$
declare
    object record;
    former text;
begin
    -- Names below are compared with their schema, which is left out if it is in the search_path:
    -- that of a login "yamlsched" has it by default.
    perform set_config('search_path', 'pg_catalog, pg_temp', true);
    execute format('grant create on database %I to yamlsched_owner', current_database());
    for former in
        select distinct r.rolname
        from pg_catalog.pg_roles r
        where r.rolname <> 'yamlsched_owner' and not r.rolsuper
          and (r.oid = (select n.nspowner from pg_catalog.pg_namespace n
              where n.nspname = 'yamlsched')
               or r.oid = (select c.relowner from pg_catalog.pg_class c
                   where c.oid = 'yamlsched.job_runs'::regclass))
    loop
        raise notice '% owned the tables, and has lost its privileges. To let it migrate and work in every database of '
            'this server that has these roles: grant yamlsched_owner, yamlsched_worker to %',
            former, quote_ident(former);
    end loop;
    alter schema yamlsched owner to yamlsched_owner;
    for object in
        select c.oid::regclass::text as name, c.relname::text = any (array[
            'migrations', 'database_identity', 'namespaces', 'job_definitions', 'job_runs',
            'job_failures',
            'attempt_outputs', 'running_outputs', 'attempt_progress', 'skipped_slots',
            'effects', 'used_keys',
            'files', 'hosts', 'operator_actions',
            'edits', 'edited_jobs', 'cannot_start', 'gates', 'permits', 'awaits', 'open_runs',
            'dead_runs',
            'stuck_runs', 'effects_in_doubt', 'job_queues', 'job_states', 'job_health',
            'overdue_jobs',
            'definition_changes', 'seen_hosts',
            'notify_targets', 'notifications', 'workers', 'queue_states',
            'queue_load']) as is_ours
        from pg_catalog.pg_class c
        where c.relnamespace = 'yamlsched'::regnamespace and c.relkind in ('r', 'v', 'm', 'f', 'p')
          and c.relowner <> 'yamlsched_owner'::regrole
    loop
        if object.is_ours then
            execute format('alter table %s owner to yamlsched_owner', object.name);
        else
            raise warning '% is not a table of yamlsched: it keeps its owner', object.name;
        end if;
    end loop;
    for object in
        select p.oid::regprocedure::text as name, p.oid::regprocedure::text = any (array[
            'yamlsched.block(text,bigint[],text[],timestamp with time zone)',
            'yamlsched.block_closed(text,bigint,bigint,integer,timestamp with time zone)',
            'yamlsched.claim_gated(text,bigint[],smallint[],text,timestamp with time zone)',
            'yamlsched.continue_edits(text,timestamp with time zone)',
            'yamlsched.gates_of(yamlsched.job_runs,yamlsched.job_definitions,'
                'timestamp with time zone)',
            'yamlsched.grant_permits(text,bigint[],smallint[],text[],timestamp with time zone)',
            'yamlsched.queue_levels(text)',
            'yamlsched.leave_gates(bigint[],timestamp with time zone)',
            'yamlsched.limit_line(text,text)',
            'yamlsched.limit_value(jsonb,text[])',
            'yamlsched.lock_gates(text,text[])',
            'yamlsched.offer(text,text[],integer,timestamp with time zone)',
            'yamlsched.promote(text,text[],integer,timestamp with time zone)',
            'yamlsched.release(text,bigint[],timestamp with time zone)',
            'yamlsched.remove_values(text)',
            'yamlsched.repair(text,timestamp with time zone)',
            'yamlsched.queue_load_of(text,text,integer,timestamp with time zone)',
            'yamlsched.queue_loads(text,integer,timestamp with time zone)',
            'yamlsched.rooms(text,text[],timestamp with time zone)',
            'yamlsched.sweep(text,boolean,timestamp with time zone)',
            'yamlsched.unclaimed(text,timestamp with time zone)',
            'yamlsched.waited_for(text)',
            'yamlsched.waits_elsewhere(yamlsched.job_runs,yamlsched.job_definitions,'
                'timestamp with time zone)',
            'yamlsched.late_from(yamlsched.job_runs,timestamp with time zone)',
            'yamlsched.delete_of_runs()', 'yamlsched.is_failing(yamlsched.job_runs)',
            'yamlsched.late(yamlsched.job_definitions,timestamp with time zone,boolean,'
                'timestamp with time zone)',
            'yamlsched.unfinished_slot(yamlsched.job_definitions)', 'yamlsched.had_turn(bigint)',
            'yamlsched.enqueue(text,jsonb,timestamp with time zone,text,text,text,interval,text)',
            'yamlsched.enqueue_fault(text,jsonb,text)',
            'yamlsched.enqueue_many(text,jsonb[],text[],timestamp with time zone,text,bigint,text,interval,text[])',
            'yamlsched.has_no_worker(yamlsched.job_runs,timestamp with time zone)',
            'yamlsched.is_closed(yamlsched.job_definitions,timestamp with time zone)',
            'yamlsched.on_dead_key(text,bigint,integer)', 'yamlsched.put_definitions(jsonb)',
            'yamlsched.due_work(text,timestamp with time zone)',
            'yamlsched.put_place(yamlsched.hosts,boolean)',
            'yamlsched.report_file(yamlsched.hosts,boolean,boolean,boolean,'
                'timestamp with time zone)',
            'yamlsched.end_due_at(text[],timestamp with time zone,timestamp with time zone)',
            'yamlsched.events_now(yamlsched.notifications,text[],timestamp with time zone)',
            'yamlsched.failing_run(bigint)',
            'yamlsched.has_succeeded(bigint,timestamp with time zone,timestamp with time zone)',
            'yamlsched.owed_slot(bigint,timestamp with time zone)',
            'yamlsched.is_still_dead(bigint,timestamp with time zone,timestamp with time zone)',
            'yamlsched.messages_due(text,timestamp with time zone)',
            'yamlsched.note(text,text,jsonb,timestamp with time zone)',
            'yamlsched.note_runs(text,bigint[],timestamp with time zone)',
            'yamlsched.settle_notes(text,timestamp with time zone)',
            'yamlsched.upstream(bigint,timestamp with time zone,timestamp with time zone)',
            'yamlsched.upstream_results(bigint)', 'yamlsched.valid_trace_context(text)',
            'yamlsched.waits_for(yamlsched.job_runs)']) as is_ours
        from pg_catalog.pg_proc p
        where p.pronamespace = 'yamlsched'::regnamespace
          and p.proowner <> 'yamlsched_owner'::regrole
    loop
        if object.is_ours then
            execute format('alter function %s owner to yamlsched_owner', object.name);
        else
            raise warning '% is not a function of yamlsched: it keeps its owner', object.name;
        end if;
    end loop;
end
$$;

-- By default everyone may execute functions, and those that enqueue act with their owner's
-- privileges. Without "in schema", because this default can be revoked only for the whole database.
alter default privileges for role yamlsched_owner revoke execute on functions from public;

-- Each role gets what is listed here, and loses what an earlier release or its former owner
-- granted: nobody executes a trigger function. In one step, so that a tick beside it always has its
-- privileges.
do $$
begin
    revoke all on schema yamlsched from public, yamlsched_worker, yamlsched_enqueuer,
    yamlsched_reader;
    revoke all on all tables in schema yamlsched from public, yamlsched_worker, yamlsched_enqueuer,
    yamlsched_reader;
    revoke all on all sequences in schema yamlsched from public, yamlsched_worker,
    yamlsched_enqueuer, yamlsched_reader;
    revoke all on all functions in schema yamlsched from public, yamlsched_worker,
    yamlsched_enqueuer, yamlsched_reader;

    grant usage on schema yamlsched to yamlsched_worker, yamlsched_enqueuer, yamlsched_reader;
    grant execute on function
        yamlsched.enqueue(text, jsonb, timestamptz, text, text, text, interval, text),
        yamlsched.enqueue_many(text, jsonb[], text[], timestamptz, text, bigint, text, interval,
            text[])
        to yamlsched_worker, yamlsched_enqueuer;
    grant execute on function
        yamlsched.has_no_worker(yamlsched.job_runs, timestamptz),
        yamlsched.is_failing(yamlsched.job_runs),
        yamlsched.late(yamlsched.job_definitions, timestamptz, boolean, timestamptz),
        yamlsched.unfinished_slot(yamlsched.job_definitions), yamlsched.had_turn(bigint),
        yamlsched.is_closed(yamlsched.job_definitions, timestamptz),
        yamlsched.waits_for(yamlsched.job_runs), yamlsched.limit_line(text, text),
        yamlsched.waited_for(text),
        yamlsched.upstream(bigint, timestamptz, timestamptz), yamlsched.upstream_results(bigint),
        yamlsched.gates_of(yamlsched.job_runs, yamlsched.job_definitions, timestamptz),
        yamlsched.queue_levels(text), yamlsched.limit_value(jsonb, text[]),
        yamlsched.rooms(text, text[], timestamptz),
        yamlsched.queue_load_of(text, text, integer, timestamptz),
        yamlsched.queue_loads(text, integer, timestamptz),
        yamlsched.due_work(text, timestamptz), yamlsched.messages_due(text, timestamptz),
        yamlsched.report_file(yamlsched.hosts, boolean, boolean, boolean, timestamptz)
        to yamlsched_worker, yamlsched_reader;
    grant execute on function
        yamlsched.end_due_at(text[], timestamptz, timestamptz),
        yamlsched.events_now(yamlsched.notifications, text[], timestamptz),
        yamlsched.failing_run(bigint),
        yamlsched.has_succeeded(bigint, timestamptz, timestamptz),
        yamlsched.is_failing(yamlsched.job_runs),
        yamlsched.note_runs(text, bigint[], timestamptz),
        yamlsched.is_still_dead(bigint, timestamptz, timestamptz),
        yamlsched.note(text, text, jsonb, timestamptz), yamlsched.settle_notes(text, timestamptz),
        yamlsched.block(text, bigint[], text[], timestamptz),
        yamlsched.block_closed(text, bigint, bigint, integer, timestamptz),
        yamlsched.claim_gated(text, bigint[], smallint[], text, timestamptz),
        yamlsched.continue_edits(text, timestamptz),
        yamlsched.late_from(yamlsched.job_runs, timestamptz),
        yamlsched.grant_permits(text, bigint[], smallint[], text[], timestamptz),
        yamlsched.leave_gates(bigint[], timestamptz),
        yamlsched.lock_gates(text, text[]),
        yamlsched.offer(text, text[], integer, timestamptz),
        yamlsched.promote(text, text[], integer, timestamptz),
        yamlsched.release(text, bigint[], timestamptz),
        yamlsched.remove_values(text),
        yamlsched.repair(text, timestamptz),
        yamlsched.sweep(text, boolean, timestamptz),
        yamlsched.unclaimed(text, timestamptz),
        yamlsched.waits_elsewhere(yamlsched.job_runs, yamlsched.job_definitions, timestamptz),
        yamlsched.on_dead_key(text, bigint, integer),
        yamlsched.put_definitions(jsonb),
        yamlsched.put_place(yamlsched.hosts, boolean)
        to yamlsched_worker;

    grant select on
        yamlsched.migrations, yamlsched.database_identity, yamlsched.namespaces,
        yamlsched.job_definitions,
        yamlsched.job_runs, yamlsched.job_failures, yamlsched.attempt_outputs,
        yamlsched.attempt_progress,
        yamlsched.running_outputs, yamlsched.skipped_slots,
        yamlsched.effects, yamlsched.used_keys,
        yamlsched.files, yamlsched.hosts, yamlsched.operator_actions, yamlsched.edits,
        yamlsched.edited_jobs,
        yamlsched.open_runs, yamlsched.dead_runs, yamlsched.stuck_runs, yamlsched.effects_in_doubt,
        yamlsched.job_queues, yamlsched.job_states, yamlsched.job_health, yamlsched.overdue_jobs,
        yamlsched.definition_changes, yamlsched.cannot_start, yamlsched.gates, yamlsched.permits,
        yamlsched.awaits, yamlsched.seen_hosts,
        yamlsched.notify_targets, yamlsched.notifications,
        yamlsched.workers, yamlsched.queue_states, yamlsched.queue_load
        to yamlsched_reader, yamlsched_worker;

    -- Workers can add rows to the audit trails (job_failures, operator_actions, edits,
    -- edited_jobs), but not change or delete them. However, a worker prunes: it may delete runs,
    -- and the failures, outputs and progress of a run are deleted with it. If history must be
    -- protected from workers, copy it to another place.
    grant insert on yamlsched.job_failures, yamlsched.operator_actions, yamlsched.edits,
    yamlsched.edited_jobs
        to yamlsched_worker;
    grant insert, update on yamlsched.awaits, yamlsched.namespaces,
    yamlsched.job_definitions, yamlsched.skipped_slots,
        yamlsched.attempt_outputs, yamlsched.queue_states to yamlsched_worker;
    grant insert, update, delete on yamlsched.job_runs, yamlsched.gates, yamlsched.permits,
    yamlsched.attempt_progress,
    yamlsched.running_outputs, yamlsched.effects,
        yamlsched.used_keys, yamlsched.files, yamlsched.hosts, yamlsched.notify_targets,
        yamlsched.notifications, yamlsched.workers to yamlsched_worker;
end
$$;
