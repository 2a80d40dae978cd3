-- name: begin
-- A preview reads one snapshot from its first statement to its last, and cannot change anything.
set transaction isolation level repeatable read, read only;

-- name: other_namespaces
-- Other namespaces in which this place applied the file in use. A file that names another namespace
-- does not retire their jobs.
select n.namespace
from yamlsched.namespaces n
where n.host = %(host)s and n.path = %(path)s and n.namespace <> %(namespace)s
order by n.namespace;
