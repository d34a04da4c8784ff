use super::{Kind, Part, word::Word};

pub const SPECIAL: &str = "this variable changes which programs run";
const EVALUATED: &str = "its value may be evaluated as a command";

/// Variables that make a shell or a common program start something else.
const NAMES: &[&str] = &[
    "BASHOPTS",
    "BROWSER",
    "CC",
    "CDPATH",
    "CXX",
    "EDITOR",
    "ENV",
    "GCONV_PATH",
    "HOME",
    "IFS",
    "LESS",
    "LESSCLOSE",
    "LESSOPEN",
    "LOCPATH",
    "MAKEFLAGS",
    "OPENSSL_CONF",
    "PAGER",
    "PATH",
    "PROMPT_COMMAND",
    "PS0",
    "PS1",
    "PS2",
    "PS4",
    "RSYNC_RSH",
    "RUSTC",
    "SHELL",
    "SHELLOPTS",
    "SSH_ASKPASS",
    "SUDO_ASKPASS",
    "TAR_OPTIONS",
    "TERMINFO",
    "VISUAL",
    "XDG_CONFIG_HOME",
];
const BEGINNINGS: &[&str] =
    &["BASH_", "DYLD_", "GIT_", "LD_", "NPM_CONFIG_", "PERL", "PYTHON", "RUBY", "npm_config_"];
const ENDS: &[&str] = &[
    "_COMMAND", "_EDITOR", "_LINKER", "_OPTIONS", "_OPTS", "_PAGER", "_PRELOAD", "_RUNNER",
    "_SHELL", "_WRAPPER",
];

/// Whether setting it may change what runs.
pub fn is_special(name: &str) -> bool {
    NAMES.contains(&name)
        || BEGINNINGS.iter().any(|start| name.starts_with(start))
        || ENDS.iter().any(|end| name.ends_with(end))
}

/// The name that a word assigns to, if it is an assignment.
pub fn assigned(word: &Word) -> Option<&str> {
    let (name, _) = word.start()[..word.lead].split_once('=')?;
    let name = name.strip_suffix('+').unwrap_or(name);
    is_name(name).then_some(name)
}

fn is_name(text: &str) -> bool {
    let letter = |byte: u8| byte == b'_' || byte.is_ascii_alphanumeric();
    text.bytes().all(letter) && text.bytes().next().is_some_and(|byte| !byte.is_ascii_digit())
}

/// `name=value` in front of a command, or instead of one.
pub fn part(word: &Word) -> Part {
    let mut part = Part::new(Kind::Assignment, vec![word.clone()]);
    let name = assigned(word).unwrap_or_default();
    if is_special(name) {
        part.unclear = Some(SPECIAL);
    } else if is_evaluated(word) {
        part.unclear = Some(EVALUATED);
    }
    part
}

/// `name=value` as an argument of `env` or `export`, where also the name can be quoted.
pub fn argument(word: &Word) -> Option<&'static str> {
    let value = word.value();
    let name = value.split_once('=').map_or(&*value, |(name, _)| name);
    let known = is_name(name) && (word.start().contains('=') || !word.has_hole());
    match known && !is_special(name) {
        true => is_evaluated(word).then_some(EVALUATED),
        false => Some(SPECIAL),
    }
}

/// Arithmetic evaluates the values of variables, and an index in one can be a command.
fn is_evaluated(word: &Word) -> bool {
    let value = word.value();
    value.split_once('[').is_some_and(|(_, index)| index.contains(['$', '`']))
}

/// Builtins that take the names of variables.
pub fn check_builtin(part: &mut Part) {
    let unclear = match part.name() {
        "export" | "readonly" | "declare" | "typeset" | "local" => {
            let options = |word: &Word| word.start().starts_with(['-', '+']);
            let usual =
                |word: &Word| ["-x", "-r", "-p", "-g", "-a", "-A"].iter().any(|it| word.is(it));
            part.arguments().iter().find_map(|word| match options(word) {
                true => (!usual(word)).then_some(SPECIAL),
                false => argument(word),
            })
        }
        "read" | "unset" | "mapfile" | "readarray" | "getopts" => {
            let strange = |word: &Word| {
                let value = word.value();
                word.has_hole()
                    || value.contains('[')
                    || is_special(&value)
                    || value.starts_with("-C")
            };
            part.arguments().iter().any(strange).then_some(SPECIAL)
        }
        "printf" if part.arguments().first().is_some_and(|word| word.start().starts_with("-v")) => {
            let names = part.arguments().iter().take(2);
            let strange = |word: &Word| !word.is("-v") && !is_name(&word.value());
            names
                .clone()
                .any(strange)
                .then_some(SPECIAL)
                .or_else(|| names.clone().any(|word| is_special(&word.value())).then_some(SPECIAL))
        }
        "test" | "[" if part.arguments().iter().any(|word| word.is("-v")) => {
            part.arguments().iter().any(|word| word.value().contains('[')).then_some(EVALUATED)
        }
        _ => None,
    };
    part.unclear = part.unclear.or(unclear);
}

/// `[[ $x -eq 1 ]]` evaluates what is in `x`.
pub fn check_condition(part: &mut Part) {
    const COMPARES: [&str; 8] = ["-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-v", "-R"];
    let compares = |word: &Word| COMPARES.iter().any(|operator| word.is(operator));
    let number = |word: &Word| {
        let value = word.value();
        ["$#", "$?", "$!", "$$", "!", "]]"].contains(&&*value)
            || compares(word)
            || value.bytes().all(|byte| byte.is_ascii_digit())
    };
    if part.arguments().iter().any(compares) && !part.arguments().iter().all(number) {
        part.may_be_anything(EVALUATED);
    }
}
