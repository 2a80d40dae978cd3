-- Four roles to grant to logins, each with the least privileges it needs. Run this script after
-- each "yamlsched migrate", as a superuser, or as the database's owner with CREATEROLE. Running it
-- again is safe.
--
--     yamlsched migrate --roles | psql -d app
--     grant yamlsched_worker   to scheduler;   -- crontab, work, operators: retry, cancel, pause
--     grant yamlsched_enqueuer to webapp;      -- calls yamlsched.enqueue; sees no table
--     grant yamlsched_reader   to grafana;     -- reads everything, payloads, results and outputs
--                                              -- included; changes nothing
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

-- The owner role owns the tables, so that each member can migrate what another member created. The
-- former owner loses its privileges. It does not become a member: roles belong to the whole server,
-- so it would own yamlsched in every other database too.
do $$
begin
    execute format('grant create on database %I to yamlsched_owner', current_database());
    alter schema yamlsched owner to yamlsched_owner;
end
$$;

-- By default everyone may execute functions, and those that enqueue act with their owner's
-- privileges. Without "in schema", because this default can be revoked only for the whole database.
alter default privileges for role yamlsched_owner revoke execute on functions from public;

-- Each role gets what is listed here, and loses what an earlier release or its former owner
-- granted. In one transaction, so that a tick beside it always has its privileges.
begin;
-- Names below are compared with their schema, which is left out if it is in the search_path: that
-- of a login "yamlsched" has it by default.
set local search_path = pg_catalog, pg_temp;
revoke all on schema yamlsched
    from public, yamlsched_worker, yamlsched_enqueuer, yamlsched_reader;
revoke all on all tables in schema yamlsched
    from public, yamlsched_worker, yamlsched_enqueuer, yamlsched_reader;
revoke all on all sequences in schema yamlsched
    from public, yamlsched_worker, yamlsched_enqueuer, yamlsched_reader;
revoke all on all functions in schema yamlsched
    from public, yamlsched_worker, yamlsched_enqueuer, yamlsched_reader;
grant usage on schema yamlsched to yamlsched_worker, yamlsched_enqueuer, yamlsched_reader;

-- Only what is listed is transferred to the owner role: any other view would read with its
-- privileges. Workers can add rows to the audit trails (job_failures, operator_actions, edits,
-- edited_jobs), but not change or delete them. However, a worker prunes: it may delete runs, and
-- the failures, outputs and progress of a run are deleted with it. If history must be protected
-- from workers, copy it to another place.
do $$
declare
    object record;
begin
    for object in
        select 'yamlsched.' || u.name as name, l.privileges,
               c.relowner <> 'yamlsched_owner'::regrole as is_foreign
        from (values
            ('select', 'migrations database_identity open_runs dead_runs stuck_runs job_queues
                        job_health late_jobs effects_in_doubt definition_changes
                        queue_load
                        queue_servers'),
            ('select, insert', 'job_failures operator_actions edits edited_jobs'),
            ('select, insert, update', 'namespaces job_definitions
                                        attempt_outputs queue_states'),
            ('select, insert, update, delete', 'job_runs awaits gates permits attempt_progress
                running_outputs effects used_keys files hosts notify_targets notifications
                skipped_slots job_days workers')) as l (privileges, names)
        cross join lateral regexp_split_to_table(l.names, '\s+') as u (name)
        join pg_class c on c.relnamespace = 'yamlsched'::regnamespace and c.relname = u.name
    loop
        if object.is_foreign then
            execute format('alter table %s owner to yamlsched_owner', object.name);
        end if;
        execute format('grant %s on %s to yamlsched_worker', object.privileges, object.name);
        execute format('grant select on %s to yamlsched_reader', object.name);
    end loop;
end
$$;

-- Functions that act with the privileges of their callers need no list. A reader calls what changes
-- nothing, and report_file, which writes nothing for a reader.
do $$
declare
    object record;
begin
    for object in
        select p.oid::regprocedure as name, p.proowner <> 'yamlsched_owner'::regrole as is_foreign,
               p.provolatile <> 'v' or p.proname = 'report_file' as reads,
               p.prosecdef as enqueues
        from pg_proc p
        where p.pronamespace = 'yamlsched'::regnamespace
          and (not p.prosecdef or p.oid = any (array[
              'yamlsched.enqueue(text,jsonb,timestamptz,text,text,text,interval,text)',
              'yamlsched.enqueue_many(text,jsonb[],text[],timestamptz,text,bigint,text,interval,'
                  'text[])']::regprocedure[]))
    loop
        if object.is_foreign then
            execute format('alter function %s owner to yamlsched_owner', object.name);
        end if;
        execute format('grant execute on function %s to yamlsched_worker%s%s', object.name,
                       case when object.reads then ', yamlsched_reader' end,
                       case when object.enqueues then ', yamlsched_enqueuer' end);
    end loop;
end
$$;

commit;
