//! What a workspace tells an agent about itself: project instructions and skills. No I/O.

/// Of project instructions this much is read.
pub const MAX_INSTRUCTIONS: usize = 64 * 1024;

/// How many skills an index may list.
pub const MAX_SKILLS: usize = 100;

/// Of a skill that is loaded this much is read, and so many of the files beside it are named.
pub const MAX_SKILL: usize = 64 * 1024;
pub const MAX_SKILL_FILES: usize = 200;

/// The head of a skill's file is at its beginning, and nothing else of it is read for the index.
pub const MAX_SKILL_HEAD: usize = 8 * 1024;

const MAX_NAME: usize = 64;
const MAX_DESCRIPTION: usize = 500;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Surroundings {
    /// The workspace's `AGENTS.md`, as far as it is read.
    pub instructions: Option<String>,
    /// By path, so that the same workspace always gives the same index.
    pub skills: Vec<Skill>,
}

/// A line of the index; the body is read on demand.
#[derive(Debug, Clone, PartialEq)]
pub struct Skill {
    pub name: String,
    pub description: String,
    pub path: String,
}

/// Text of a file that may be cut anywhere and may not be text at all.
pub fn text(mut data: Vec<u8>, most: usize) -> String {
    data.truncate(most);
    let text = String::from_utf8_lossy(&data).replace('\0', "\u{FFFD}");
    // A character that was cut in half is not a mistake of the file's.
    match data.len() == most {
        true => text.trim_end_matches('\u{FFFD}').to_owned(),
        false => text,
    }
}

/// Reads the head of a `SKILL.md`: lines between two `---` at its top. A file without a name
/// is called as its directory.
pub fn skill(directory: &str, path: &str, text: &str) -> Skill {
    let (mut name, mut description) = (String::new(), String::new());
    let mut lines = text.lines().map(str::trim_end);
    if lines.next() == Some("---") {
        let mut field = None;
        for line in lines.take_while(|line| *line != "---") {
            let indented = line.starts_with([' ', '\t']);
            match line.split_once(':').filter(|_| !indented) {
                Some((key, value)) => {
                    field = match key {
                        "name" => Some(&mut name),
                        "description" => Some(&mut description),
                        _ => None,
                    };
                    if let Some(field) = &mut field {
                        **field = scalar(value);
                    }
                }
                // A value that goes on over several lines is one line here.
                None => {
                    if let Some(field) = &mut field {
                        field.push(' ');
                        field.push_str(line.trim());
                    }
                }
            }
        }
    }
    let name = match name.trim() {
        "" => directory,
        name => name,
    };
    Skill {
        name: cut(name, MAX_NAME),
        description: cut(&description, MAX_DESCRIPTION),
        path: path.to_owned(),
    }
}

/// The value of a line of YAML, as far as heads of skills use YAML.
fn scalar(value: &str) -> String {
    let value = value.trim();
    match value {
        ">" | "|" | ">-" | "|-" => String::new(),
        value => {
            let bare = |quote| value.strip_prefix(quote)?.strip_suffix(quote);
            bare('"').or_else(|| bare('\'')).unwrap_or(value).to_owned()
        }
    }
}

fn cut(text: &str, characters: usize) -> String {
    let text = text.trim();
    match text.char_indices().nth(characters) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (String, String) {
        let Skill { name, description, .. } = skill("pdf", ".agents/skills/pdf/SKILL.md", text);
        (name, description)
    }

    #[test]
    fn the_head_of_a_skill_names_and_describes_it() {
        for (text, name, description) in [
            ("---\nname: forms\ndescription: Fills forms.\n---\n# Body", "forms", "Fills forms."),
            ("---\nname: \"a: b\"\ndescription: 'It''s'\n---", "a: b", "It''s"),
            ("---\ndescription: >\n  Fills\n  forms.\nlicense: MIT\n---", "pdf", "Fills forms."),
            ("# No head\nname: nothing", "pdf", ""),
            ("---\r\nname: crlf\r\n---\r\n", "crlf", ""),
            ("", "pdf", ""),
            ("---\nname: unfinished", "unfinished", ""),
        ] {
            assert_eq!(read(text), (name.to_owned(), description.to_owned()), "{text}");
        }
    }

    #[test]
    fn a_long_description_is_cut() {
        let (_, description) = read(&format!("---\ndescription: {}\n---", "ä".repeat(600)));
        assert_eq!(description.chars().count(), 501);
    }

    #[test]
    fn text_that_is_cut_in_a_character_stays_text() {
        assert_eq!(text("aä".into(), 2), "a");
        assert_eq!(text(b"a\xff\0".to_vec(), 10), "a\u{FFFD}\u{FFFD}");
    }
}
