//! Where a request names its workspace.

use std::collections::HashMap;

use anyhow::Context as _;
use prost::{
    Message as _,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field},
};
use prost_types::{DescriptorProto, FileDescriptorSet, field_descriptor_proto::Type};

/// The RPCs that a workspace is made by if it is not there.
const MAKES: [&str; 3] = [
    "/windlass.tools.v1.ToolService/Evaluate",
    "/windlass.tools.v1.ToolService/Execute",
    "/windlass.tools.v1.ProcessService/StartProcess",
];

/// How a request names what it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named {
    Workspace,
    Process,
}

/// Where a request of an RPC does so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Locator {
    pub named: Named,

    /// Whether the workspace is made by this request.
    pub makes: bool,

    /// The numbers of the fields that lead there, from the outside.
    fields: Vec<u32>,
}

/// All RPCs that are about a workspace, by path.
pub struct Methods(HashMap<String, Locator>);

impl Methods {
    pub fn read() -> anyhow::Result<Methods> {
        let files = FileDescriptorSet::decode(proto::DESCRIPTORS)?.file;
        let messages = files.iter().flat_map(|file| {
            let package = file.package();
            let name = move |message: &DescriptorProto| format!(".{package}.{}", message.name());
            file.message_type.iter().map(move |message| (name(message), message))
        });
        let messages: HashMap<String, &DescriptorProto> = messages.collect();
        let mut methods = HashMap::new();
        for file in files.iter().filter(|file| file.package().starts_with("windlass.tools.")) {
            for service in &file.service {
                for method in &service.method {
                    let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                    let input = messages.get(method.input_type()).context("no such message")?;
                    if let Some((named, fields)) = locate(&messages, input) {
                        let makes = MAKES.contains(&path.as_str());
                        methods.insert(path, Locator { named, makes, fields });
                    }
                }
            }
        }
        Ok(Methods(methods))
    }

    pub fn get(&self, path: &str) -> Option<&Locator> {
        self.0.get(path)
    }
}

/// In the message itself, or in its `call`.
fn locate(
    messages: &HashMap<String, &DescriptorProto>,
    message: &DescriptorProto,
) -> Option<(Named, Vec<u32>)> {
    let field = |name| message.field.iter().find(|field| field.name() == name);
    if let Some(field) = field("workspace_id") {
        return Some((Named::Workspace, vec![field.number() as u32]));
    }
    if let Some(field) = field("process_id") {
        return Some((Named::Process, vec![field.number() as u32]));
    }
    let call = field("call").filter(|field| field.r#type() == Type::Message)?;
    let (named, inner) = locate(messages, messages.get(call.type_name())?)?;
    Some((named, [vec![call.number() as u32], inner].concat()))
}

impl Locator {
    /// What an encoded request says there, as whoever decodes it will read it: of a field that
    /// is there twice, the last counts.
    pub fn find(&self, message: &[u8]) -> Option<String> {
        find(message, &self.fields)
    }
}

fn find(mut message: &[u8], fields: &[u32]) -> Option<String> {
    let (wanted, inner) = fields.split_first()?;
    let mut found = None;
    while !message.is_empty() {
        let (tag, kind) = decode_key(&mut message).ok()?;
        if tag != *wanted || kind != WireType::LengthDelimited {
            skip_field(kind, tag, &mut message, DecodeContext::default()).ok()?;
            continue;
        }
        let length = usize::try_from(decode_varint(&mut message).ok()?).ok()?;
        let (value, rest) = message.split_at_checked(length)?;
        message = rest;
        found = match inner.is_empty() {
            true => Some(String::from_utf8(value.to_vec()).ok()?),
            false => find(value, inner).or(found),
        };
    }
    found
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use proto::tools::v1::{Call, ExecuteRequest, ReadFileRequest};

    use super::*;

    #[test]
    fn every_rpc_about_a_workspace_is_known() {
        let methods = Methods::read().unwrap();
        let mut lines: Vec<_> = methods.0.iter().collect();
        lines.sort_by_key(|(path, _)| path.to_owned());
        let line = |(path, locator): (&String, &Locator)| {
            let made = if locator.makes { ", made" } else { "" };
            let path = path.trim_start_matches("/windlass.tools.v1.");
            format!("{path}: {:?} in {:?}{made}\n", locator.named, locator.fields)
        };
        expect![[r#"
            FileService/DeleteFile: Workspace in [1]
            FileService/DownloadFile: Workspace in [1]
            FileService/ListFiles: Workspace in [1]
            FileService/MoveFile: Workspace in [1]
            FileService/ReadFile: Workspace in [1]
            FileService/StatFile: Workspace in [1]
            FileService/UploadFile: Workspace in [1]
            FileService/WriteFile: Workspace in [1]
            ProcessService/AttachProcess: Process in [1]
            ProcessService/ResizeProcess: Process in [1]
            ProcessService/SignalProcess: Process in [1]
            ProcessService/StartProcess: Workspace in [7], made
            ProcessService/TerminateProcess: Process in [1]
            ProcessService/WriteProcessStdin: Process in [1]
            ToolService/Evaluate: Workspace in [1, 8], made
            ToolService/Execute: Workspace in [1, 8], made
            ToolService/ListTools: Workspace in [1]
            ToolService/RunHooks: Workspace in [4]
            WorkspaceService/DeleteWorkspace: Workspace in [1]
            WorkspaceService/GetWorkspace: Workspace in [1]
            WorkspaceService/ImportWorkspace: Workspace in [1]
            WorkspaceService/RestoreWorkspace: Workspace in [1]
            WorkspaceService/SnapshotWorkspace: Workspace in [1]
        "#]]
        .assert_eq(&lines.into_iter().map(line).collect::<String>());
    }

    #[test]
    fn it_reads_what_others_will_read() {
        let methods = Methods::read().unwrap();
        let read = methods.get("/windlass.tools.v1.FileService/ReadFile").unwrap();
        let request = ReadFileRequest {
            workspace_id: "ws_1".into(),
            path: "a".repeat(1000),
            offset: 77,
            ..ReadFileRequest::default()
        };
        assert_eq!(read.find(&request.encode_to_vec()), Some("ws_1".into()));
        assert_eq!(read.find(&[]), None);
        assert_eq!(read.find(b"\x0a\xff\xff\xff\xff\x0fnonsense"), None);

        let execute = methods.get("/windlass.tools.v1.ToolService/Execute").unwrap();
        let call = |id: &str, tool: &str| Call {
            workspace_id: id.into(),
            tool: tool.into(),
            ..Call::default()
        };
        // Two pieces of one message are merged, and the last of two values counts.
        for calls in [
            vec![call("ws_1", "bash")],
            vec![call("ws_1", ""), call("", "bash")],
            vec![call("ws_2", ""), call("ws_1", "bash")],
        ] {
            let pieces = calls.into_iter().map(|call| {
                ExecuteRequest { call: Some(call), ..ExecuteRequest::default() }.encode_to_vec()
            });
            let bytes = pieces.collect::<Vec<_>>().concat();
            let decoded = ExecuteRequest::decode(bytes.as_slice()).unwrap().call.unwrap();
            assert_eq!(decoded.workspace_id, "ws_1");
            assert_eq!(execute.find(&bytes), Some("ws_1".into()));
        }
    }
}
