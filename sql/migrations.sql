-- name: lock
-- One process at a time, until its transaction ends. Only the owner of the tables may take this
-- lock.
lock table yamlsched.migrations in share row exclusive mode;

-- name: exists
select to_regclass('yamlsched.migrations') is not null as found;

-- name: schema
-- Who owns the schema, and what is in it. The owner can replace each table and function, and so
-- decides what a migration and each later statement do: it must be the current user, a role that it
-- was made a member of, or a superuser. A superuser counts as a member of every role, so that
-- pg_has_role would accept any. The script of the roles gives the schema to yamlsched_owner, and
-- superusers may migrate after it.
with recursive memberships (role) as (
    select r.oid from pg_catalog.pg_roles r where r.rolname = current_user
    union
    select m.roleid from pg_catalog.pg_auth_members m join memberships s on s.role = m.member
)
select o.rolname as owner, current_user as who,
       o.oid in (select s.role from memberships s) or o.rolsuper
       or (o.rolname = 'yamlsched_owner'
           and (select r.rolsuper from pg_catalog.pg_roles r
               where r.rolname = current_user)) as is_trusted,
       exists (select from pg_catalog.pg_class c where c.relnamespace = n.oid)
       or exists (select from pg_catalog.pg_proc p where p.pronamespace = n.oid)
       or exists (select from pg_catalog.pg_type t where t.typnamespace = n.oid) as has_objects
from pg_catalog.pg_namespace n
join pg_catalog.pg_roles o on o.oid = n.nspowner
where n.nspname = 'yamlsched';

-- name: applied
select m.version, m.checksum from yamlsched.migrations m order by m.version;

-- name: record
insert into yamlsched.migrations (version, name, checksum)
values (%(version)s, %(name)s, %(checksum)s);

-- name: connections
-- How many connections the server, the role and the database may have; -1: any number, as for a
-- superuser.
select current_setting('max_connections')::integer
           - current_setting('superuser_reserved_connections')::integer as of_server,
       r.rolname as role, case when r.rolsuper then -1 else r.rolconnlimit end as of_role,
       d.datname as database, case when r.rolsuper then -1 else d.datconnlimit end as of_database
from pg_catalog.pg_roles r
cross join pg_catalog.pg_database d
where r.rolname = session_user and d.datname = current_database();

-- name: support
select current_setting('server_version_num')::integer as version,
       current_setting('server_version') as version_text,
       current_setting('server_encoding') as encoding;
