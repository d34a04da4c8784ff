//! Compiles the contracts. `protox` is a protobuf compiler written in Rust, so
//! a fresh clone builds with nothing installed but cargo.
//!
//! Beside the messages and services it writes three things that the `.proto`
//! files say in options: which scope each RPC needs, which dotted name each event
//! has, and the descriptors that reflection serves.

use std::{env, error::Error, fmt::Write as _, fs, path::Path, path::PathBuf};

use prost_reflect::{DescriptorPool, DynamicMessage, Value};

const ROOT: &str = "windlass";

/// What is stored or exported as JSON. Everything else only travels, and is quicker to
/// build without it.
const JSON: &[&str] = &[
    ".windlass.event.v1",
    ".windlass.session.v1.CostState",
    ".windlass.session.v1.HookRun",
    ".windlass.session.v1.Incident",
    ".windlass.session.v1.LimitState",
    ".windlass.session.v1.Manifest",
    ".windlass.session.v1.OutputRef",
    ".windlass.session.v1.PendingRequest",
    ".windlass.session.v1.QueuedTurn",
    ".windlass.session.v1.Snapshot",
    ".windlass.session.v1.StepView",
    ".windlass.session.v1.Thread",
    ".windlass.session.v1.ToolCallView",
    ".windlass.session.v1.Trigger",
    ".windlass.session.v1.TurnView",
    ".windlass.tools.v1.Permissions",
    ".windlass.tools.v1.Rule",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={ROOT}");
    let out = PathBuf::from(env::var("OUT_DIR")?);

    let mut compiler = protox::Compiler::new(["."])?;
    compiler.include_imports(true).include_source_info(true);
    compiler.open_files(proto_files(Path::new(ROOT))?)?;
    let pool = compiler.descriptor_pool();

    fs::write(out.join("descriptors.bin"), pool.encode_to_vec())?;
    fs::write(out.join("scopes.rs"), scopes(&pool)?)?;
    fs::write(out.join("payloads.rs"), payloads(&pool)?)?;

    pbjson_build::Builder::new()
        .register_descriptors(&pool.encode_to_vec())?
        .ignore_unknown_fields()
        .btree_map(["."])
        .build(JSON)?;
    // Sorted maps, so that a message has one encoding and a digest of it means something.
    tonic_prost_build::configure()
        .btree_map(".")
        // An event is large, and most items of these streams are a few bytes.
        .boxed(".windlass.tools.v1.ExecuteResponse.item.fact")
        .boxed(".windlass.models.v1.GenerateResponse.item.fact")
        .boxed(".windlass.session.v1.SubscribeResponse.item.event")
        .boxed(".windlass.session.v1.SubscribeResponse.item.snapshot")
        .extern_path(".google.protobuf", "::pbjson_types")
        .compile_well_known_types(true)
        .generate_default_stubs(true)
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}

fn proto_files(folder: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(proto_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "proto") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// A match from an RPC's path to the scope its `(windlass.auth.v1.scope)` names.
fn scopes(pool: &DescriptorPool) -> Result<String, Box<dyn Error>> {
    let option = pool.get_extension_by_name("windlass.auth.v1.scope").ok_or("no scope option")?;
    let scope = pool.get_enum_by_name("windlass.auth.v1.Scope").ok_or("no Scope")?;
    let mut arms = String::new();
    for service in pool.services() {
        for method in service.methods() {
            let path = format!("/{}/{}", service.full_name(), method.name());
            let options: DynamicMessage = method.options();
            let number = match options.get_extension(&option).as_ref() {
                Value::EnumNumber(number) if *number != 0 => *number,
                _ => return Err(format!("{path} names no scope").into()),
            };
            let name = scope.get_value(number).ok_or("unknown scope")?;
            let variant = camel(name.name().trim_start_matches("SCOPE_"));
            writeln!(arms, "    {path:?} => Scope::{variant},")?;
        }
    }
    Ok(format!(
        "/// The scope that callers of the RPC at `path` must hold, `None` for a path that is not ours.\n\
         pub fn scope_of(path: &str) -> Option<Scope> {{\n    Some(match path {{\n{arms}    _ => return None,\n    }})\n}}\n"
    ))
}

/// What every event payload needs and prost does not write: its dotted name, and
/// the way to JSON and back.
fn payloads(pool: &DescriptorPool) -> Result<String, Box<dyn Error>> {
    let option = pool.get_extension_by_name("windlass.event.v1.name").ok_or("no name option")?;
    let event = pool.get_message_by_name("windlass.event.v1.Event").ok_or("no Event")?;
    let payload = event.oneofs().find(|oneof| oneof.name() == "payload").ok_or("no payload")?;
    let (mut names, mut all, mut to, mut from) =
        (String::new(), String::new(), String::new(), String::new());
    for field in payload.fields() {
        let options: DynamicMessage = field.options();
        let name = match options.get_extension(&option).as_ref() {
            Value::String(name) if !name.is_empty() => name.clone(),
            _ => return Err(format!("{} has no name", field.full_name()).into()),
        };
        let variant = camel(field.name());
        writeln!(names, "            Payload::{variant}(_) => {name:?},")?;
        writeln!(all, "    {name:?},")?;
        writeln!(to, "            Payload::{variant}(payload) => serde_json::to_string(payload),")?;
        writeln!(from, "            {name:?} => Payload::{variant}(serde_json::from_str(json)?),")?;
    }
    Ok(format!(
        "/// The dotted names of all events.\npub const EVENT_NAMES: &[&str] = &[\n{all}];\n\n\
         impl Payload {{\n    /// The dotted name that stands beside this payload as the event's `type`.\n    \
         pub fn name(&self) -> &'static str {{\n        match self {{\n{names}        }}\n    }}\n\n    \
         /// The payload alone, as it is stored and exported.\n    \
         pub fn to_json(&self) -> serde_json::Result<String> {{\n        match self {{\n{to}        }}\n    }}\n\n    \
         /// Reads back what `to_json` wrote. `None`: a newer version wrote an event this one does not know.\n    \
         pub fn from_json(name: &str, json: &str) -> serde_json::Result<Option<Payload>> {{\n        \
         Ok(Some(match name {{\n{from}            _ => return Ok(None),\n        }}))\n    }}\n}}\n"
    ))
}

/// `turn_submitted` and `TURN_SUBMITTED` to `TurnSubmitted`, as prost spells variants.
fn camel(snake: &str) -> String {
    snake
        .split('_')
        .map(|word| {
            let (head, tail) = word.split_at(word.len().min(1));
            head.to_uppercase() + &tail.to_lowercase()
        })
        .collect()
}
