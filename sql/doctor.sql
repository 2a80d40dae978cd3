-- name: server
-- The server and this session. Standbys are physical ones, without running backups and logical
-- subscribers, which are no failover targets; without pg_read_all_stats their rows are visible, but
-- not their states. While a transaction is open, vacuum cannot remove the rows that were deleted or
-- updated since it started.
select current_setting('server_version_num')::integer as version,
       current_setting('server_version') as version_text,
       current_setting('server_encoding') as encoding, current_setting('TimeZone') as timezone,
       current_setting('fsync') = 'on' and current_setting('full_page_writes') = 'on' as is_safe,
       current_setting('synchronous_commit') <> 'off' as is_durable,
       pg_is_in_recovery() as is_standby,
       current_setting('transaction_read_only') = 'on' as is_read_only,
       (select s.reset_val from pg_catalog.pg_settings s
           where s.name = 'default_transaction_isolation') as isolation,
       pg_backend_pid() as pid, clock_timestamp() as now,
       (select count(*)::integer from pg_catalog.pg_stat_replication r
        where coalesce(r.state, '') <> 'backup'
          and not exists (select from pg_catalog.pg_replication_slots s
                          where s.active_pid = r.pid and s.slot_type = 'logical')) as standbys,
       current_setting('synchronous_standby_names') <> ''
       and current_setting('synchronous_commit') not in ('off', 'local') as is_synchronous,
       (select max(clock_timestamp() - a.xact_start) from pg_catalog.pg_stat_activity a
        where a.datname = current_database() and a.pid <> pg_backend_pid()) as oldest_transaction;

-- name: role
-- What the session's role may do, and which privileges it lacks that sync, work and tick need. Read
-- from the catalog, because a lookup by name fails if the schema is missing.
with needed as (
    select t.name, p.privilege,
           coalesce(has_schema_privilege(current_user, c.relnamespace, 'usage')
                    and has_table_privilege(current_user, c.oid, p.privilege), false) as is_granted
    from unnest(%(tables)s::text[], %(privileges)s::text[]) as g (names, privileges)
    cross join unnest(string_to_array(g.names, ' ')) as t (name)
    cross join unnest(string_to_array(g.privileges, ',')) as p (privilege)
    left join pg_catalog.pg_namespace n on n.nspname = 'yamlsched'
    left join pg_catalog.pg_class c on c.relnamespace = n.oid and c.relname = t.name
)
select current_user as name,
       (select r.rolsuper from pg_catalog.pg_roles r
           where r.rolname = current_user) as is_superuser,
       array(select n.name || ' (' || string_agg(lower(n.privilege), ', '
           order by n.privilege) || ')'
             from needed n where not n.is_granted group by n.name order by n.name) as lacks,
       not exists (select from needed n where n.privilege = 'SELECT'
           and not n.is_granted) as can_read,
       exists (select from pg_catalog.pg_proc p
               join pg_catalog.pg_namespace n on n.oid = p.pronamespace
               where n.nspname = 'yamlsched' and p.proname = 'enqueue'
                 and has_schema_privilege(current_user, n.oid, 'usage')
                 and has_function_privilege(current_user, p.oid, 'execute')) as can_enqueue;
