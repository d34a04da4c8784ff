use super::{
    Kind, Part, Step, Unclear,
    here::HereDocument,
    shell::{Shell, Simple},
};

impl Shell<'_, '_> {
    /// What is read harms nobody; what is written is a part.
    pub fn redirection(&mut self, simple: &mut Simple) -> Step<()> {
        const OPERATORS: [&str; 12] =
            ["&>>", "&>", "<<<", "<<-", "<<", "<>", "<&", "<", ">>", ">&", ">|", ">"];
        let Some(operator) = OPERATORS.into_iter().find(|operator| self.takes(operator)) else {
            return Err(Unclear("a redirection is not understood"));
        };
        self.blanks()?;
        let target = self.word()?;
        if target.is_empty() {
            return Err(Unclear("a redirection has no file"));
        }
        simple.reads = true;
        let value = target.value();
        let copies = value.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
        let nowhere = ["/dev/null", "/dev/stdout", "/dev/stderr"].contains(&&*value);
        let kind = match operator {
            "<<" | "<<-" => {
                let document = HereDocument::new(&target, operator == "<<-")?;
                self.here_documents.push(document);
                return Ok(());
            }
            "<" | "<&" | "<<<" => return Ok(()),
            ">&" if copies => return Ok(()),
            _ if nowhere && !target.has_hole() => return Ok(()),
            ">>" | "&>>" => Kind::Append,
            _ => Kind::Overwrite,
        };
        simple.writes.push(Part::write(kind, target));
        Ok(())
    }
}
