//! The names of things. Where one thing has exactly one of another, the second is
//! named after the first: nothing to store, nothing to look up, nothing to disagree.

chassis::id!(SessionId, "ses");
chassis::id!(ThreadId, "thread");
chassis::id!(MessageId, "msg");
chassis::id!(PartId, "prt");
chassis::id!(TurnId, "turn");
chassis::id!(StepId, "step");
chassis::id!(ToolCallId, "call");
chassis::id!(ActionId, "act");
chassis::id!(WorkspaceId, "ws");
chassis::id!(ReplicaId, "rep");
chassis::id!(ChannelId, "chn");
chassis::id!(TaskId, "task");
chassis::id!(RunId, "run");
chassis::id!(JobId, "job");
chassis::id!(ItemId, "item");
chassis::id!(TrialId, "trial");
chassis::id!(EvidenceId, "evd");
chassis::id!(SubagentId, "sub");

impl SessionId {
    /// A session has one thread.
    pub fn thread(self) -> ThreadId {
        ThreadId::from_uuid(self.uuid())
    }

    /// An event's id is its place in its session's log.
    pub fn event(self, sequence: i64) -> String {
        let session = self.to_string();
        format!("evt_{}_{sequence:010}", session.trim_start_matches("ses_"))
    }
}

impl ToolCallId {
    /// A person is asked about a call at most once.
    pub fn action(self) -> ActionId {
        ActionId::from_uuid(self.uuid())
    }

    /// A call spawns at most one child, however often it is tried.
    pub fn subagent(self) -> SubagentId {
        SubagentId::from_uuid(self.uuid())
    }
}

impl SubagentId {
    /// A child has one session.
    pub fn session(self) -> SessionId {
        SessionId::from_uuid(self.uuid())
    }

    /// What it is asked is the first message there, and in its parent's session the message that
    /// says how it ended is called the same.
    pub fn message(self) -> MessageId {
        MessageId::from_uuid(self.uuid())
    }
}

impl MessageId {
    /// A user message asks for one turn.
    pub fn turn(self) -> TurnId {
        TurnId::from_uuid(self.uuid())
    }

    /// A step is one model call, and that fills one assistant message.
    pub fn step(self) -> StepId {
        StepId::from_uuid(self.uuid())
    }
}

impl TaskId {
    /// A task has a session of its own.
    pub fn session(self) -> SessionId {
        SessionId::from_uuid(self.uuid())
    }
}

impl JobId {
    /// What happens to a job is in the log of a session of its own.
    pub fn session(self) -> SessionId {
        SessionId::from_uuid(self.uuid())
    }
}

impl RunId {
    /// A run is one turn, which one message asks for.
    pub fn message(self) -> MessageId {
        MessageId::from_uuid(self.uuid())
    }

    pub fn turn(self) -> TurnId {
        self.message().turn()
    }

    /// Of an item of a job: its session has this one turn.
    pub fn session(self) -> SessionId {
        SessionId::from_uuid(self.uuid())
    }
}
