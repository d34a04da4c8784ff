use std::fmt::Write as _;

use clap::{Arg, ArgAction, Command, CommandFactory as _};
use expect_test::expect_file;

const HEAD: &str = "\
# Configure

Every service is configured by variables of its environment, or by flags, which come before them.
A service that is given an unknown flag, or a value it cannot read, says so and does not start; a variable that it does not know, such as a misspelt one, it does not see.
`LISTEN` and `LEASE` mean something else to each service that has them, so do not set them for all at once.
`<service> --help` shows the same as this page, which is made from it:
`UPDATE_EXPECT=1 cargo test -p tests --test docs` writes it anew.

Times are in seconds, and may be fractions; sizes are in bytes.
A *secret* is never shown in help, logs or errors; give it by the environment, because everybody on a machine can read flags.
";

/// The four services with all that they can be told.
fn services() -> [Command; 4] {
    [
        session::Config::command().name("session"),
        tools::Config::command().name("tools"),
        models::Config::command().name("models"),
        triggers::Config::command().name("triggers"),
    ]
}

#[test]
fn the_page_about_configuration_says_what_the_services_say() {
    let services = services();
    let lists: Vec<Vec<Row>> = services.iter().map(rows).collect();
    let is_shared = |row: &Row| lists.iter().all(|rows| rows.contains(row));

    let mut page = HEAD.to_owned();
    write!(page, "\n## All services\n\n{}", table(lists[0].iter().filter(|row| is_shared(row))))
        .unwrap();
    for (service, rows) in services.iter().zip(&lists) {
        let own = table(rows.iter().filter(|row| !is_shared(row)));
        write!(page, "\n## {}\n\n{own}", service.get_name()).unwrap();
        for command in service.get_subcommands().filter(|command| !command.is_hide_set()) {
            page += &subcommand(service.get_name(), command);
        }
    }
    expect_file!["../../docs/configure.md"].assert_eq(&page);
}

#[derive(PartialEq)]
struct Row {
    variable: String,
    flag: String,
    default: String,
    help: String,
}

fn rows(command: &Command) -> Vec<Row> {
    let shown = |arg: &&Arg| !arg.is_hide_set() && arg.get_long().is_some();
    let mut rows: Vec<Row> = command.get_arguments().filter(shown).map(row).collect();
    rows.sort_by(|one, other| one.flag.cmp(&other.flag));
    rows
}

fn row(arg: &Arg) -> Row {
    let variable = arg.get_env().map(|name| name.to_string_lossy().into_owned());
    let values: Vec<_> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    let default = match (values.is_empty(), arg.is_required_set()) {
        (false, _) => format!("`{}`", values.join(",")),
        (true, true) => "*required*".to_owned(),
        (true, false) => String::new(),
    };
    // One line of a table, whatever it was in the code.
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut help = help.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
    if !help.is_empty() && !help.ends_with('.') {
        help.push('.');
    }
    let choices = arg.get_possible_values();
    if !choices.is_empty() && !matches!(arg.get_action(), ArgAction::Set if is_flag(arg)) {
        let choices: Vec<_> =
            choices.iter().map(|choice| format!("`{}`", choice.get_name())).collect();
        write!(help, " One of {}.", choices.join(", ")).unwrap();
    }
    if arg.is_hide_env_values_set() {
        help += " *Secret.*";
    }
    Row {
        variable: variable.unwrap_or_default(),
        flag: arg.get_long().unwrap().to_owned(),
        default,
        help,
    }
}

/// Whether it is true or false, which needs no list.
fn is_flag(arg: &Arg) -> bool {
    let values = arg.get_possible_values();
    values.iter().any(|value| value.get_name() == "true")
}

fn table<'a>(rows: impl Iterator<Item = &'a Row>) -> String {
    let mut table = "| variable | flag | default | what it is |\n|---|---|---|---|\n".to_owned();
    for Row { variable, flag, default, help } in rows {
        let variable = if variable.is_empty() { String::new() } else { format!("`{variable}`") };
        writeln!(table, "| {variable} | `--{flag}` | {default} | {help} |").unwrap();
    }
    table
}

fn subcommand(service: &str, command: &Command) -> String {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let mut text = format!("\n`{service} {}`: {about}\n", command.get_name());
    let rows = rows(command);
    let rows: Vec<&Row> = rows.iter().filter(|row| row.flag != "help").collect();
    if !rows.is_empty() {
        write!(text, "\n{}", table(rows.into_iter())).unwrap();
    }
    text
}
