-- Four roles to grant to logins, each with the least it needs. Run it as a superuser, or as the database's owner with
-- CREATEROLE, after each "yamlsched migrate"; it may be run again and again.
--
--     yamlsched migrate --roles | psql -d app
--     grant yamlsched_worker   to scheduler;   -- crontab, work, and operators: retry, cancel, pause
--     grant yamlsched_enqueuer to webapp;      -- may call yamlsched.enqueue, and see nothing
--     grant yamlsched_reader   to grafana;     -- sees everything, payloads and results included; changes nothing
--     grant yamlsched_owner    to deployer;    -- migrates; not needed by anything that runs every day

do $$
declare
    name text;
begin
    foreach name in array array['yamlsched_owner', 'yamlsched_worker', 'yamlsched_enqueuer', 'yamlsched_reader'] loop
        begin
            execute format('create role %I nologin', name);
        exception
            -- roles belong to the whole server: another database, or somebody just now, has made it
            when duplicate_object or unique_violation then null;
        end;
    end loop;
end
$$;

-- The owner owns, so that whoever is in it can migrate what another member made. Only what the migrations create is
-- handed over: a function or a view that somebody else has put into the schema would act with the owner's rights.
-- Whoever owned it so far keeps what it could do: a scheduler that has migrated by itself goes on.
do $$
declare
    thing  record;
    former text;
begin
    execute format('grant create on database %I to yamlsched_owner', current_database());
    for former in
        select distinct r.rolname
        from pg_catalog.pg_roles r
        where r.rolname <> 'yamlsched_owner' and not r.rolsuper
          and (r.oid = (select n.nspowner from pg_catalog.pg_namespace n where n.nspname = 'yamlsched')
               or r.oid = (select c.relowner from pg_catalog.pg_class c where c.oid = 'yamlsched.job_runs'::regclass))
    loop
        execute format('grant yamlsched_owner, yamlsched_worker to %I', former);
        raise notice '% owned the tables: it is now a member of yamlsched_owner and yamlsched_worker, and keeps its rights. '
            'If another login migrates: revoke yamlsched_owner from %', former, quote_ident(former);
    end loop;
    alter schema yamlsched owner to yamlsched_owner;
    for thing in
        select c.oid::regclass::text as name, c.relname::text = any (array[
            'migrations', 'database_identity', 'namespaces', 'job_definitions', 'job_runs', 'job_failures',
            'skipped_slots', 'effects', 'used_keys', 'schedule_files', 'operator_actions', 'open_runs', 'dead_runs',
            'stuck_runs', 'effects_in_doubt', 'job_health', 'overdue_jobs']) as is_ours
        from pg_catalog.pg_class c
        where c.relnamespace = 'yamlsched'::regnamespace and c.relkind in ('r', 'v', 'm', 'f', 'p')
          and c.relowner <> 'yamlsched_owner'::regrole
    loop
        if thing.is_ours then
            execute format('alter table %s owner to yamlsched_owner', thing.name);
        else
            raise warning '% is not a table of yamlsched: it keeps its owner', thing.name;
        end if;
    end loop;
    for thing in
        select p.oid::regprocedure::text as name, p.oid::regprocedure::text = any (array[
            'yamlsched.enqueue(text,jsonb,timestamp with time zone,text,text)',
            'yamlsched.enqueue_fault(text,jsonb,text)',
            'yamlsched.enqueue_many(text,jsonb[],text[],timestamp with time zone,text,bigint)',
            'yamlsched.on_dead_key(text,bigint,integer)',
            'yamlsched.put_definitions(jsonb)']) as is_ours
        from pg_catalog.pg_proc p
        where p.pronamespace = 'yamlsched'::regnamespace and p.proowner <> 'yamlsched_owner'::regrole
    loop
        if thing.is_ours then
            execute format('alter function %s owner to yamlsched_owner', thing.name);
        else
            raise warning '% is not a function of yamlsched: it keeps its owner', thing.name;
        end if;
    end loop;
end
$$;

-- Functions are everybody's by default, and those that enqueue act with their owner's rights.
revoke all on all functions in schema yamlsched from public;
-- Without "in schema": what everybody has by default can be taken away for the whole database only.
alter default privileges for role yamlsched_owner revoke execute on functions from public;
revoke all on schema yamlsched from public;
grant usage on schema yamlsched to yamlsched_worker, yamlsched_enqueuer, yamlsched_reader;

grant execute on all functions in schema yamlsched to yamlsched_worker, yamlsched_enqueuer;

grant select on all tables in schema yamlsched to yamlsched_reader, yamlsched_worker;

-- The audit trails (job_failures, operator_actions) can be added to, and their rows neither changed nor deleted. But a
-- worker prunes: it may delete runs, and with a run go its failures. Whoever must not be able to make history disappear
-- is not to be a worker; copy the trails elsewhere if that matters.
grant insert on yamlsched.job_failures, yamlsched.operator_actions to yamlsched_worker;
grant insert, update on yamlsched.namespaces, yamlsched.job_definitions, yamlsched.skipped_slots to yamlsched_worker;
grant insert, update, delete on yamlsched.job_runs, yamlsched.effects, yamlsched.used_keys, yamlsched.schedule_files
    to yamlsched_worker;
