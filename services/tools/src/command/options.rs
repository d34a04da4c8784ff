use super::{
    word::Word,
    wrapper::{self, Inside, OPTION},
};

/// Options that a wrapper has before the command that it starts.
pub struct Wrapper {
    pub name: &'static str,
    flags: &'static str,

    /// Letters that are followed by a value.
    valued: &'static str,
    long_flags: &'static [&'static str],
    long_valued: &'static [&'static str],

    /// How many words stand between the options and the command.
    skip: usize,
}

const PLAIN: Wrapper =
    Wrapper { name: "", flags: "", valued: "", long_flags: &[], long_valued: &[], skip: 0 };

pub const WRAPPERS: &[Wrapper] = &[
    Wrapper { name: "builtin", ..PLAIN },
    Wrapper { name: "busybox", ..PLAIN },
    Wrapper { name: "command", flags: "p", ..PLAIN },
    Wrapper { name: "doas", flags: "n", valued: "uC", ..PLAIN },
    Wrapper {
        name: "env",
        flags: "i0v",
        valued: "uC",
        long_flags: &["ignore-environment", "null", "debug"],
        long_valued: &["unset", "chdir"],
        ..PLAIN
    },
    Wrapper { name: "exec", flags: "cl", valued: "a", ..PLAIN },
    Wrapper { name: "flock", flags: "sxnuo", valued: "wE", skip: 1, ..PLAIN },
    Wrapper { name: "ionice", flags: "t", valued: "cn", ..PLAIN },
    Wrapper {
        name: "nice",
        flags: "0123456789",
        valued: "n",
        long_valued: &["adjustment"],
        ..PLAIN
    },
    Wrapper { name: "nohup", ..PLAIN },
    Wrapper { name: "setsid", flags: "cfw", ..PLAIN },
    Wrapper { name: "stdbuf", valued: "ioe", long_valued: &["input", "output", "error"], ..PLAIN },
    Wrapper { name: "sudo", flags: "AbEHKknPS", valued: "CDgpRrTtUu", ..PLAIN },
    Wrapper { name: "taskset", flags: "ac", skip: 1, ..PLAIN },
    Wrapper { name: "time", flags: "pv", valued: "f", ..PLAIN },
    Wrapper {
        name: "timeout",
        flags: "v",
        valued: "sk",
        long_flags: &["preserve-status", "foreground", "verbose"],
        long_valued: &["signal", "kill-after"],
        skip: 1,
    },
    Wrapper { name: "toybox", ..PLAIN },
    Wrapper {
        name: "watch",
        flags: "bdegtcpx",
        valued: "n",
        long_flags: &["differences", "errexit", "chgexit", "no-title", "color"],
        long_valued: &["interval"],
        ..PLAIN
    },
    Wrapper {
        name: "xargs",
        flags: "0rtxo",
        valued: "adEILnPs",
        long_flags: &["null", "no-run-if-empty", "verbose"],
        long_valued: &["max-args", "max-procs", "delimiter", "arg-file", "max-chars"],
        ..PLAIN
    },
];

impl Wrapper {
    /// What it starts, given what follows its name.
    pub fn inside(&self, words: &[Word]) -> Inside {
        let mut at = 0;
        let mut replaced = None;
        while let Some(word) = words.get(at) {
            let value = word.value();
            if !value.starts_with('-') && !word.may_be_option() {
                break;
            }
            if word.has_hole() {
                return OPTION;
            }
            at += 1;
            if value == "--" {
                break;
            } else if let Some(long) = value.strip_prefix("--") {
                let name = long.split('=').next().unwrap_or_default();
                if self.long_valued.contains(&name) {
                    at += usize::from(name == long);
                } else if !self.long_flags.contains(&long) {
                    return OPTION;
                }
            } else if let Some((letter, ahead)) = self.last_letter(&value[1..]) {
                if letter == 'I' {
                    replaced = if ahead.is_empty() { words.get(at) } else { None };
                    if replaced.is_none_or(Word::has_hole) {
                        return OPTION;
                    }
                }
                at += usize::from(self.valued.contains(letter) && ahead.is_empty());
            } else if !(value == "-" && self.name == "env") {
                return OPTION;
            }
        }
        let rest = words.get(at + self.skip..).unwrap_or_default();
        self.starts(rest, replaced)
    }

    /// The letter that ends a group of flags, and the value that is attached to it.
    fn last_letter<'v>(&self, letters: &'v str) -> Option<(char, &'v str)> {
        let mut last = None;
        for (at, letter) in letters.char_indices() {
            last = Some((letter, &letters[at + letter.len_utf8()..]));
            if self.valued.contains(letter) {
                return last;
            }
            if !self.flags.contains(letter) {
                return None;
            }
        }
        last.map(|(letter, _)| (letter, ""))
    }

    fn starts(&self, rest: &[Word], replaced: Option<&Word>) -> Inside {
        let mut command = rest.to_vec();
        if command.is_empty() {
            return Inside::Nothing;
        }
        match (self.name, replaced) {
            ("watch", _) => return wrapper::script(rest),
            ("xargs", None) => command.push(Word::hole("…")),
            ("xargs", Some(name)) => {
                for word in &mut command {
                    if word.value().contains(&*name.value()) {
                        *word = Word::hole(&word.value());
                    }
                }
            }
            _ => (),
        }
        Inside::Commands(vec![command])
    }
}
