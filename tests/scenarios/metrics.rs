use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use jiff::{SignedDuration, Timestamp};
use local::Service;
use proto::{session::v1::subscribe_request::From, triggers::v1::schedule::When};
use serde_json::Value;
use tests::World;

use crate::{
    runbook::{blocks, document},
    triggers::{create, schedule, settled},
};

/// What Prometheus adds to all that it scrapes, by `service-monitor.yaml`.
const SCRAPED: [&str; 4] = ["job", "namespace", "pod", "service"];

/// What is not ours, and what Prometheus adds for each process that it scrapes.
const OTHERS: [&str; 2] = ["target_info", "up"];

/// Metrics by name, each with the names of its labels.
type Metrics = BTreeMap<String, BTreeSet<String>>;

/// Alerts, dashboard and autoscalers in `deploy/k8s` and the runbook ask for nothing that the services
/// do not tell: a name with a typo is an alert that never fires. What they do tell is documented.
#[tokio::test]
async fn dashboards_and_alerts_ask_for_what_services_tell() {
    chassis::tls::install_default();
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let session = client.create_session().await;
    let mut events = session.subscribe(From::Live(true)).await;
    let turn = session.submit("call bash {\"command\": \"true\"}\n---\nsay Done.").await;
    events.until_ended(&turn.turn_id).await;
    let soon = (Timestamp::now() + SignedDuration::from_secs(1)).as_second() + 1;
    let soon = When::At(pbjson_types::Timestamp { seconds: soon, nanos: 0 });
    let trigger = create(&client, schedule(&session, soon, "say Fired.")).await;
    settled(&client, &trigger, 1).await;

    let mut told = Metrics::from([("up".to_owned(), BTreeSet::new())]);
    for service in Service::ALL {
        let url = world.fleet.get(service).metrics_url();
        read(&reqwest::get(url).await.unwrap().text().await.unwrap(), &mut told);
    }
    let mut asked = Metrics::new();
    for expression in expressions() {
        parse(&expression, &mut asked);
    }
    assert!(asked.len() > 15, "{asked:?}");
    for (metric, labels) in asked {
        let known = told.get(&metric);
        let known = known.unwrap_or_else(|| panic!("nobody tells {metric}, only {told:#?}"));
        for label in labels {
            let scraped = SCRAPED.contains(&label.as_str());
            assert!(scraped || known.contains(&label), "{metric} has no label {label}: {known:?}");
        }
    }

    let documented = documented();
    let base = |name: &String| {
        let parts = ["_bucket", "_sum", "_count"];
        parts.iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name).to_owned()
    };
    let told: BTreeSet<_> =
        told.keys().map(base).filter(|name| !OTHERS.contains(&&**name)).collect();
    let unknown: Vec<_> = told.difference(&documented).collect();
    let gone: Vec<_> = documented.difference(&told).collect();
    assert!(unknown.is_empty() && gone.is_empty(), "not documented: {unknown:?}, gone: {gone:?}");
}

/// The names in the table of `docs/operate.md`.
fn documented() -> BTreeSet<String> {
    let text = document("operate.md");
    let (_, table) = text.split_once("**Metrics**").unwrap();
    let rows = table.lines().skip_while(|line| !line.starts_with('|'));
    let rows = rows.take_while(|line| line.starts_with('|')).skip(2);
    let cells = rows.map(|row| row.split('|').nth(1).unwrap());
    cells.flat_map(|names| names.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

/// Everything that somebody asks Prometheus for.
fn expressions() -> Vec<String> {
    let components = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/k8s/components");
    let text = |path: &str| fs::read_to_string(components.join(path)).unwrap();
    let dashboard = serde_json::from_str(&text("monitoring/dashboard.json")).unwrap();
    let alerts = serde_norway::from_str(&text("monitoring/alerts.yaml")).unwrap();
    let mut found = Vec::new();
    find(&dashboard, &mut found);
    find(&alerts, &mut found);
    let scaling = text("scaling/kustomization.yaml");
    let names = scaling.lines().filter_map(|line| line.trim().strip_prefix("name: "));
    found.extend(names.filter(|name| name.contains('_')).map(str::to_owned));
    for block in blocks(&document("runbook.md"), "promql") {
        // What people read is no expression.
        let lines = block.lines().map(|line| line.split('#').next().unwrap().to_owned());
        found.extend(lines);
    }
    found
}

/// The value of every `expr` in a document.
fn find(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match (name.as_str(), value) {
                    ("expr", Value::String(expression)) => found.push(expression.clone()),
                    _ => find(value, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| find(value, found)),
        _ => {}
    }
}

/// The metrics in an expression of PromQL and the labels that they are chosen by. A name is a metric
/// unless it is called, is a word of the language, or is in the list behind `by`.
fn parse(expression: &str, asked: &mut Metrics) {
    let mut rest = expression;
    while let Some(start) = rest.find(|one: char| one.is_ascii_alphabetic()) {
        // A duration, or a variable of the dashboard, is no name.
        let bound = rest[..start].chars().next_back();
        let name = word(&rest[start..]);
        rest = &rest[start + name.len()..];
        let next = rest.trim_start();
        if bound.is_some_and(|bound| bound.is_ascii_digit() || bound == '_') {
            continue;
        }
        match name {
            "by" => rest = next.split_once(')').unwrap().1,
            "or" | "and" => {}
            _ if next.starts_with('(') || next.starts_with("by") => {}
            _ => {
                let labels = asked.entry(name.to_owned()).or_default();
                if let Some(selector) = next.strip_prefix('{') {
                    let (selector, after) = selector.split_once('}').unwrap();
                    labels.extend(selector.split(", ").map(|one| word(one).to_owned()));
                    rest = after;
                }
            }
        }
    }
}

/// The name at the beginning of a text.
fn word(text: &str) -> &str {
    let end = text.find(|one: char| !one.is_ascii_alphanumeric() && one != '_');
    &text[..end.unwrap_or(text.len())]
}

/// Reads what a service tells Prometheus.
fn read(text: &str, told: &mut Metrics) {
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = word(line);
        let labels = told.entry(name.to_owned()).or_default();
        for piece in line[name.len()..].split("=\"").filter(|piece| !piece.contains(' ')) {
            let label = piece.rsplit(['{', ',']).next().unwrap();
            labels.insert(label.to_owned());
        }
    }
}
