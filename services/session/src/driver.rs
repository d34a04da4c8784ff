//! Runs one turn: feeds the machine what happens and does what it asks.

mod moves;
mod step;
mod model;
mod calls;
mod hooks;
mod people;
mod compact;
mod own;
mod keep;
mod replay;
mod delegate;
mod title;
#[cfg(test)]
mod tests;

use std::{
    mem,
    pin::pin,
    sync::{Arc, Mutex},
    task::Poll,
    time::Duration,
};

use chassis::{Caller, telemetry};
use jiff_sqlx::Timestamp as Time;
use proto::{
    event::v1::Usage,
    session::v1::TurnView,
    tools::v1::{Permissions, Tool},
};
use tokio::{
    sync::{OnceCell, mpsc},
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, info_span, warn};

use crate::{
    agent::Agent,
    compaction::Method,
    error::{Error, Result},
    flusher::{Signal, Stopped, Writer},
    host::Host,
    ids::WorkspaceId,
    memory,
    message::{Message, MessageStatus, Role},
    passing,
    store::{
        self,
        turns::{Claim, Context, Interrupt, Trace},
    },
    subagent::Origin,
    surroundings::Surroundings,
    turn::{Hooks, Input, Purpose, Step, Stop, Told, Turn},
};
use keep::Keeping;
use replay::Recorded;

/// How many claims a turn survives that ended with its worker, and how many more when it has begun
/// and somebody only brings it to its end.
const MAX_ATTEMPTS: i32 = 3;
const MAX_ADOPTIONS: i32 = 3;

/// How often a turn is loaded that cannot be read.
const MAX_LOADS: u32 = 5;

/// A model that answers within this time shares the commit of the question. Nobody sees
/// the difference, and it is one commit less.
const QUICK: Duration = Duration::from_millis(20);

/// How long to wait before loading is tried again.
const AGAIN: Duration = Duration::from_millis(500);

/// The way to the machine. What comes together is taken together, and costs one commit.
type Inputs = mpsc::Sender<Vec<Input>>;

/// How a turn comes to be driven.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Start {
    /// It was claimed and is run to its end.
    Claimed,
    /// Its owner died: it is brought to its end where it stands. What was said and done stays.
    Orphaned,
}

/// What a turn begins with, from whoever submitted it just now.
#[derive(Debug)]
pub struct Known {
    /// All that the model can see, the message of the turn included.
    pub messages: Vec<Message>,
    pub submitted_at: Time,
}

/// Drives a turn until it has ended or the session is lost. What is not `known` it loads. `cut` ends
/// it early.
pub async fn run(
    host: Arc<Host>,
    claim: Claim,
    context: Context,
    mut known: Option<Known>,
    start: Start,
    cut: CancellationToken,
) {
    let id = claim.session_id;
    let _driving = host.driven.begin(&claim);
    let span = info_span!(
        "turn",
        session.id = %id,
        turn.id = %claim.turn_id,
        tenant.id = %claim.tenant,
        otel.kind = "internal",
    );
    if let Some(parent) = &context.trace_parent {
        telemetry::set_parent(&span, parent);
    }
    let drive = async {
        let writer = Arc::new(host.flusher.writer(&claim));
        // To load it may be what ends its workers.
        if claim.attempts > most_attempts(start) {
            let workers = claim.attempts - 1;
            let message = format!("the turn ended its worker {workers} times and is given up");
            let stop = wish(&claim, &context, &writer).map_or(Stop::Internal { message }, stop);
            return moves::refuse(&host, &writer, &claim, context.view, stop).await;
        }
        // A session we own and do not drive would be busy for ever. While Postgres is away only the
        // end of the process ends these tries; others take over then.
        let mut load = 1;
        let driver = loop {
            let error = match Driver::load(&host, &claim, &context, &writer, known.take()).await {
                Ok(driver) => break driver,
                Err(error) => error,
            };
            let wish = wish(&claim, &context, &writer);
            let error = match error {
                Error::Database(error) if !passing::is_about_reading(&error) => error,
                Error::Database(error) if load < MAX_LOADS && wish.is_none() => {
                    load += 1;
                    error
                }
                error => {
                    warn!(?error, "cannot load session {id}, giving its turn up");
                    let message = error.to_string();
                    let stop = wish.map_or(Stop::Internal { message }, stop);
                    return moves::refuse(&host, &writer, &claim, context.view, stop).await;
                }
            };
            warn!(%error, "cannot load session {id}, trying again");
            if cut.run_until_cancelled(sleep(AGAIN)).await.is_none() {
                return Ok(());
            }
        };
        driver.drive(start, context, cut).await
    };
    if let Err(stopped) = drive.instrument(span).await {
        warn!(%stopped, session.id = %id, "a turn of session {id} ended early");
    }
}

struct Driver {
    host: Arc<Host>,
    claim: Claim,
    caller: Caller,
    writer: Arc<Writer>,
    agent: Arc<Agent>,
    /// What the agent may do, and what people allowed it beyond that.
    permissions: Permissions,
    workspace_id: WorkspaceId,
    model: String,
    headless: bool,
    /// What the workspace says about itself, once somebody could ask it.
    surroundings: OnceCell<Arc<Surroundings>>,
    /// The tools there are. What changes with them is for the next turn.
    tools: OnceCell<Arc<Vec<Tool>>>,
    memories: Vec<memory::Line>,
    /// The day the turn was submitted on.
    day: String,
    /// How far the summary of the history has come, over all tries.
    ladder: Arc<Mutex<Ladder>>,
    history: Vec<Message>,
    turn: Turn,
    view: TurnView,
    /// Why the turn failed, once it has.
    reason: String,
    tasks: JoinSet<()>,
    /// How much the last part has grown since it was stored.
    unfolded: usize,
    /// The model was asked just now.
    asked: bool,
    /// The workspace was kept as it was before this turn, or is about to be.
    files_kept: bool,
    keeping: Option<Keeping>,
    /// The turn that runs again here.
    recorded: Option<Arc<Recorded>>,
    /// Whose child the session is.
    origin: Option<Origin>,
    /// Whether there are children in the background of whose end the conversation does not say yet.
    background: bool,
    /// Those that have, and that the turn hears of next.
    ended: Vec<Told>,
    /// How many children run, as far as this turn has counted.
    children: Option<i64>,
    /// How many of them the turn has not heard of yet, so that nobody else can count them.
    coming: i64,
    trace: Trace,
}

/// The summary of a history under way: what is done is not done again after a failure.
#[derive(Debug, Default)]
struct Ladder {
    /// Whether it is on record that it began.
    begun: bool,
    method: Method,
    /// The summaries of the pieces so far.
    done: Vec<String>,
    usage: Usage,
    cost_micros: i64,
    model: String,
}

impl Driver {
    async fn load(
        host: &Arc<Host>,
        claim: &Claim,
        context: &Context,
        writer: &Arc<Writer>,
        known: Option<Known>,
    ) -> Result<Driver> {
        let caller = Caller::service(claim.tenant.clone(), context.subject.clone());
        let surroundings = host.surroundings(&caller, context.workspace_id);
        let (conversation, surroundings, hooks) = tokio::join!(
            conversation(host, claim, known),
            surroundings,
            hooks::hooks(host, &caller)
        );
        let Conversation { history, steps, day } = conversation?;
        // An override holds from its message on, until another message overrides it.
        // Answers say which agent gave them, so that this holds however little is loaded.
        let agent = history.iter().rev().find_map(|message| message.metadata.agent.as_ref());
        let agent = host.agent(&claim.tenant, agent.unwrap_or(&context.agent)).await?;
        let agent = match &context.child {
            Some(origin) => Arc::new(delegate::confined(&agent, origin)),
            None => agent,
        };
        let mut asked = history.iter().rev().filter(|message| message.role == Role::User);
        let metadata = asked.find(|message| message.turn_id == claim.turn_id);
        let metadata = metadata.map(|message| message.metadata.clone()).unwrap_or_default();
        let purpose = match metadata.compact {
            true => Purpose::Compact,
            false => Purpose::Answer,
        };
        let recorded = match &metadata.replay {
            Some(replay) => Some(Arc::new(Recorded::load(host, replay).await?)),
            None => None,
        };
        let hooks = match &recorded {
            Some(recorded) if recorded.stands_in_for_tools() => recorded.hooks(),
            _ => Hooks { session_start: hooks.session_start && hooks::begins(&history), ..hooks },
        };
        let turn = match steps.is_empty() {
            true => Turn::new(agent.limits(), purpose),
            false => Turn::restore(agent.limits(), purpose, steps),
        };
        Ok(Driver {
            writer: writer.clone(),
            host: host.clone(),
            claim: claim.clone(),
            caller,
            headless: metadata.headless,
            workspace_id: context.workspace_id,
            permissions: people::permissions(&agent, &context.rules, metadata.trigger.as_ref()),
            model: metadata.model.unwrap_or_else(|| agent.manifest.model.clone()),
            surroundings: OnceCell::new_with(surroundings.ok()),
            tools: OnceCell::new(),
            memories: context.memories.clone(),
            day: recorded.as_ref().map_or(day, |recorded| recorded.day.clone()),
            ladder: Arc::default(),
            agent,
            history,
            turn: turn.with_hooks(hooks),
            view: context.view.clone(),
            reason: String::new(),
            tasks: JoinSet::new(),
            unfolded: 0,
            asked: false,
            files_kept: false,
            keeping: None,
            recorded,
            origin: context.child.clone(),
            background: context.background,
            ended: vec![],
            children: None,
            coming: 0,
            trace: Trace::current(),
        })
    }

    async fn drive(
        mut self,
        start: Start,
        context: Context,
        cut: CancellationToken,
    ) -> Result<(), Stopped> {
        let (inputs, mut arriving): (Inputs, _) = mpsc::channel(64);
        let mut signals = self.writer.signals();
        let seconds = self.agent.turn_seconds();
        let deadline = Instant::now() + Duration::from_secs(seconds);

        let first = match (start, context.interrupt) {
            (Start::Orphaned, _) => Input::Orphaned,
            (Start::Claimed, Some(interrupt)) => Input::Stopped(stop(interrupt)),
            (Start::Claimed, None) if context.resumes => {
                Input::Resumed(people::decided(context.actions, context.ended))
            }
            (Start::Claimed, None) => {
                if context.title.is_empty() && self.origin.is_none() {
                    self.name_session();
                }
                Input::Began {
                    agent: self.agent.id.clone(),
                    agent_version: self.agent.version,
                    attempt: self.claim.attempts,
                }
            }
        };
        self.take(first, &inputs).await?;
        while !self.turn.rests() {
            let asked = mem::take(&mut self.asked);
            if !asked {
                self.writer.send();
            }
            let arrived = tokio::select! {
                Some(arrived) = arriving.recv() => arrived,
                () = sleep(QUICK), if asked => continue,
                Ok(()) = signals.changed() => {
                    let signal = signals.borrow_and_update().clone();
                    match signal {
                        Signal::Interrupt(interrupt) if interrupt.turn_id == self.claim.turn_id => {
                            vec![Input::Stopped(stop(interrupt))]
                        }
                        Signal::GoOn | Signal::Interrupt(_) => continue,
                        Signal::Stopped => return self.stopped().await,
                    }
                }
                () = sleep_until(deadline) => vec![Input::Stopped(Stop::Timeout { seconds })],
                () = cut.cancelled() => vec![Input::Stopped(Stop::HostRestart)],
            };
            for input in arrived {
                // People must not be left with a question that nobody waits for any more.
                if matches!(input, Input::Stopped(_)) && self.turn.asks() {
                    people::withdraw(&self.host, &self.claim).await;
                }
                self.take(input, &inputs).await?;
                if self.turn.rests() {
                    break;
                }
            }
        }
        // Of one that waits for people or children nothing stays here.
        if self.turn.is_over() {
            self.keep();
        }
        Ok(())
    }

    /// Keeps what the turn that may follow soon need not load or store again.
    fn keep(self) {
        let steps = self.turn.into_steps();
        for digest in steps.iter().filter_map(|step| step.metadata.prompt_digest.clone()) {
            self.host.prompts.insert((self.claim.tenant.clone(), digest), ());
        }
        // What was summarized and what went wrong is loaded as it is stored.
        let plain = |step: &Step| step.status == MessageStatus::Completed && !step.is_compaction();
        let Some(reached) = self.writer.reached().filter(|_| steps.iter().all(plain)) else {
            return;
        };
        let turn_id = self.claim.turn_id;
        let mut messages = self.history;
        messages.extend(steps.into_iter().map(|step| Message {
            id: step.message_id,
            turn_id,
            role: Role::Assistant,
            metadata: step.metadata,
            parts: step.parts,
        }));
        self.host.recent.keep(self.claim.session_id, reached, messages);
    }

    /// Waits for what is mostly known already. If it is not, what was written so far is shown
    /// meanwhile.
    async fn soon<T>(&self, answer: impl Future<Output = T>) -> T {
        let mut answer = pin!(answer);
        if let Poll::Ready(answer) = futures::poll!(&mut answer) {
            return answer;
        }
        self.writer.send();
        answer.await
    }
}

/// What the machine and the prompt are made of.
#[derive(Debug, PartialEq)]
struct Conversation {
    history: Vec<Message>,
    /// The turn so far.
    steps: Vec<Step>,
    /// On which it was submitted.
    day: String,
}

async fn conversation(host: &Host, claim: &Claim, known: Option<Known>) -> Result<Conversation> {
    let known = known.map(|Known { messages, submitted_at }| Conversation {
        history: messages,
        steps: vec![],
        day: day(submitted_at),
    });
    match known {
        Some(known) if !cfg!(debug_assertions) => return Ok(known),
        _ => {}
    }
    let stored = host.lanes.run(async |db: &mut _| {
        store::messages::visible(db, claim.session_id, claim.turn_id).await
    });
    let stored = stored.await?;
    let submitted = stored.iter().find(|message| message.turn_id == claim.turn_id);
    let day = submitted.map(|message| day(message.created_at)).unwrap_or_default();
    let (mut history, mut steps) = (Vec::new(), Vec::new());
    for message in stored {
        let streaming = message.status == "streaming";
        let message = message.into_message()?;
        if message.role == Role::Assistant && message.turn_id == claim.turn_id {
            let status = match streaming {
                true => MessageStatus::Streaming,
                false => MessageStatus::Completed,
            };
            let Message { id: message_id, metadata, parts, .. } = message;
            steps.push(Step { message_id, status, metadata, parts });
        } else {
            history.push(message);
        }
    }
    let loaded = Conversation { history, steps, day };
    debug_assert_eq!(known.as_ref().unwrap_or(&loaded), &loaded, "not what is stored");
    Ok(loaded)
}

fn day(submitted_at: Time) -> String {
    submitted_at.to_jiff().strftime("%Y-%m-%d").to_string()
}

fn most_attempts(start: Start) -> i32 {
    match start {
        Start::Claimed => MAX_ATTEMPTS,
        Start::Orphaned => MAX_ATTEMPTS + MAX_ADOPTIONS,
    }
}

/// Somebody's wish to have the turn stopped, from before it was claimed or since.
fn wish(claim: &Claim, context: &Context, writer: &Writer) -> Option<Interrupt> {
    let signal = writer.signals().borrow().clone();
    match signal {
        Signal::Interrupt(interrupt) if interrupt.turn_id == claim.turn_id => Some(interrupt),
        Signal::GoOn | Signal::Interrupt(_) | Signal::Stopped => context.interrupt.clone(),
    }
}

fn stop(interrupt: Interrupt) -> Stop {
    let Interrupt { subject, reason, .. } = interrupt;
    Stop::Interrupted { subject, reason }
}
