//! What a model sees. Holding one is proof that somebody checked it.

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Prompt {
    pub system: String,
    pub messages: Vec<Message>,
    pub tools: Vec<Tool>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    pub role: Role,
    pub content: Vec<Content>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Role {
    User,
    Assistant,
    Tool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    Text(String),
    Reasoning { text: String, signature: String },
    ToolCall { tool_call_id: String, tool: String, input_json: String },
    ToolResult { tool_call_id: String, text: String, error: bool },
    Image { media_type: String, data: Vec<u8> },
}

#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    pub name: String,
    pub description: String,
    pub input_schema_json: String,
}

impl Prompt {
    /// The same conversation with an answer that broke off, to be ended by somebody else.
    pub fn continued(&self, answer: &str) -> Prompt {
        let say =
            |role, text: &str| Message { role, content: vec![Content::Text(text.to_owned())] };
        let mut prompt = self.clone();
        prompt.messages.push(say(Role::Assistant, answer.trim_end()));
        prompt.messages.push(say(Role::User, CONTINUE));
        prompt
    }
}

/// What somebody is told who goes on where another stopped.
const CONTINUE: &str = "Your answer above broke off because of a technical fault, and the reader \
has seen all of it. Go on exactly where it stopped, in the middle of the sentence if need be. \
Do not repeat anything, and do not mention the fault.";

impl Message {
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.content.iter().filter_map(|content| match content {
            Content::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }
}
