-- no-transaction
-- What a try that failed left of the next one.
drop index concurrently if exists session.task_due_by_tenant;
