//! What Windlass promises, one file per promise: real processes, a real Postgres and
//! Redis, and nothing but the public API.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod first_status;
mod crash;
mod what_dies;
mod restart;
mod servers;
mod model;
mod callers;
mod readme;
mod trace;
mod facts;
mod bad_input;
mod queue;
mod approval;
mod tool_call_with_large_result;
mod permission_and_sandbox_fact;
mod process_stdin_and_output_spill;
mod hook_input_rewrite;
mod turn_hooks;
mod interrupt;
mod status;
mod question;
mod queued_sends_fire_in_order;
mod queue_and_resume;
mod submit_is_idempotent;
mod per_turn_agent_override;
mod fork_and_sidecar;
mod agents;
mod remote_channel_reconnect;
mod abort_is_not_disconnect;
mod slow_reader;
mod expired_cursor;
mod watch_tenant;
mod inspection_export;
mod old_session_recovery;
mod seals;
mod rebuild;
mod contract;
mod compaction;
mod compaction_ladder;
mod memory;
mod mcp;
mod own_work;
mod model_switch;
mod model_routing_single_candidate;
mod local_server;
mod rewind_past_compaction;
mod rewind_with_files;
mod workspaces;
mod system_prompt;
mod usage;
mod quota_or_rate_limit;
mod ledger;
