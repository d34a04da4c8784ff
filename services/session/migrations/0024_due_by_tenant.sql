-- no-transaction
-- Tasks that wait to be started are found tenant by tenant; versions before find them by `task_due`.
create index concurrently task_due_by_tenant on session.task (tenant_id, id) where status in ('queued', 'retrying');
