tonic::include_proto!("windlass.error.v1");

use tonic::Code;

impl Reason {
    /// The gRPC code this reason travels under. The one table in the system.
    pub fn code(self) -> Code {
        match self {
            Reason::Unspecified => Code::Unknown,

            Reason::InvalidField
            | Reason::InvalidMetadata
            | Reason::InvalidCursor
            | Reason::ActionWrongAnswer
            | Reason::ImportInvalid
            | Reason::AgentInvalid
            | Reason::PathOutside
            | Reason::ProviderInvalidRequest
            | Reason::ScriptInvalid
            | Reason::ScheduleNeverFires => Code::InvalidArgument,

            Reason::Unauthenticated => Code::Unauthenticated,

            Reason::ScopeMissing | Reason::TargetForbidden => Code::PermissionDenied,

            Reason::Stopping | Reason::DependencyUnavailable | Reason::ProviderTransient => {
                Code::Unavailable
            }

            Reason::Overloaded
            | Reason::QueueFull
            | Reason::ReaderTooSlow
            | Reason::SessionLimit
            | Reason::WorkspaceFull
            | Reason::ProcessLimit
            | Reason::RateLimited
            | Reason::QuotaBlocked
            | Reason::BudgetExceeded
            | Reason::TriggerThrottled => Code::ResourceExhausted,

            Reason::NotImplemented => Code::Unimplemented,

            Reason::RequestIdReused | Reason::CallRepeated => Code::AlreadyExists,

            Reason::Internal => Code::Internal,

            Reason::DeadlineExceeded => Code::DeadlineExceeded,

            Reason::SessionNotFound
            | Reason::MessageNotFound
            | Reason::TurnNotFound
            | Reason::ActionNotFound
            | Reason::AgentNotFound
            | Reason::SubagentNotFound
            | Reason::TaskNotFound
            | Reason::JobNotFound
            | Reason::JobItemNotFound
            | Reason::MemoryNotFound
            | Reason::KeyNotFound
            | Reason::EvidenceNotFound
            | Reason::TrialNotFound
            | Reason::WorkspaceNotFound
            | Reason::PathNotFound
            | Reason::ProcessNotFound
            | Reason::OutputNotFound
            | Reason::PolicyNotFound
            | Reason::SnapshotNotFound
            | Reason::ModelNotFound
            | Reason::BudgetNotFound
            | Reason::TriggerNotFound
            | Reason::FiringNotFound => Code::NotFound,

            Reason::SessionBusy
            | Reason::TurnNotQueued
            | Reason::ActionResolved
            | Reason::TurnOver
            | Reason::SessionNotDeletable
            | Reason::NothingToRewind
            | Reason::ContextTooLarge
            | Reason::SubagentFinished
            | Reason::TaskWrongStatus
            | Reason::TaskCycle
            | Reason::JobWrongStatus
            | Reason::TrialRewarded
            | Reason::EpochStale
            | Reason::ProcessOver
            | Reason::ProcessInputClosed
            | Reason::SandboxUnavailable
            | Reason::WorkspaceBusy
            | Reason::WorkspaceNotEmpty
            | Reason::RoutingNotPossible
            | Reason::ProviderAuth
            | Reason::ContentRefused
            | Reason::ContextOverflow
            | Reason::TriggerNotActive
            | Reason::WakeupLimit => Code::FailedPrecondition,

            Reason::CursorExpired | Reason::CursorAhead => Code::OutOfRange,

            Reason::ProviderStreamCut => Code::Aborted,
        }
    }
}
