-- no-transaction
-- The one before finds for versions before what this one found.
drop index concurrently if exists session.run_state_ready;
