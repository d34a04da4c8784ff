//! The contract of the tools service, and how permissions are inherited. No I/O.

tonic::include_proto!("windlass.tools.v1");
include!(concat!(env!("OUT_DIR"), "/windlass.tools.v1.serde.rs"));

use rule::{Action, Source};

/// Stands in a list of tools that would otherwise be empty, because the empty one means all.
const NO_TOOL: &str = "-";

impl Permissions {
    /// What a child may do whose own permissions these are: what both it and its parent may.
    ///
    /// Tools and hosts are intersected, and so are paths and commands where one of the two does
    /// not confine at all. Of rules, modes and patterns there is no intersection that could be
    /// written as one of them, so the parent's stay beside the child's, in `within`, and a
    /// call is decided by both.
    pub fn of_child(mut self, parent: &Permissions) -> Permissions {
        self.tools = match (self.tools.is_empty(), parent.tools.is_empty()) {
            (true, _) => parent.tools.clone(),
            (false, true) => self.tools,
            (false, false) => {
                let mut both = self.tools;
                both.retain(|tool| parent.tools.contains(tool));
                match both.is_empty() {
                    true => vec![NO_TOOL.to_owned()],
                    false => both,
                }
            }
        };
        for (own, inherited) in
            [(&mut self.paths, &parent.paths), (&mut self.commands, &parent.commands)]
        {
            if own.is_empty() {
                own.clone_from(inherited);
            }
        }
        self.hosts = hosts(&self.hosts, &parent.hosts);
        let nearest = Permissions { within: vec![], ..parent.clone() };
        self.within = std::iter::once(nearest).chain(parent.within.iter().cloned()).collect();
        for rule in self.within.iter_mut().flat_map(|layer| &mut layer.rules) {
            // Nothing that a person decides for the child takes it back.
            if matches!(rule.action(), Action::Deny | Action::Unspecified) {
                rule.set_source(Source::Parent);
            }
        }
        self
    }

    /// The rules of these permissions, and those of each ancestor.
    pub fn all_rules_mut(&mut self) -> impl Iterator<Item = &mut Vec<Rule>> {
        let outer = self.within.iter_mut().map(|layer| &mut layer.rules);
        std::iter::once(&mut self.rules).chain(outer)
    }
}

/// The hosts that both lists grant.
fn hosts(one: &[String], other: &[String]) -> Vec<String> {
    let mut both: Vec<String> = Vec::new();
    for (first, second) in
        one.iter().flat_map(|first| other.iter().map(move |second| (first, second)))
    {
        let (Some(first), Some(second)) = (Grant::new(first), Grant::new(second)) else { continue };
        if let Some(grant) = first.and(&second).map(|grant| grant.to_string())
            && !both.contains(&grant)
        {
            both.push(grant);
        }
    }
    both
}

/// `host`, `*.host`, and either with a port, as it is written. Whatever is written in two ways
/// counts as two, which only ever grants less.
#[derive(Clone)]
struct Grant {
    name: String,
    below: bool,
    port: Option<String>,
}

impl Grant {
    fn new(text: &str) -> Option<Grant> {
        let (below, rest) = match text.strip_prefix("*.") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (name, port) = match rest.rsplit_once(':') {
            Some((name, port)) if !port.contains(']') => (name, Some(port.to_owned())),
            _ => (rest, None),
        };
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        (!name.is_empty()).then_some(Grant { name, below, port })
    }

    /// What both grant.
    fn and(&self, other: &Grant) -> Option<Grant> {
        let port = match (&self.port, &other.port) {
            (Some(one), Some(other)) if one != other => return None,
            (one, other) => one.clone().or_else(|| other.clone()),
        };
        let (narrow, wide) = match (self.below, other.below) {
            (false, false) if self.name == other.name => (self, other),
            (false, false) => return None,
            (false, true) => (self, other),
            (true, false) => (other, self),
            (true, true) if self.name.len() >= other.name.len() => (self, other),
            (true, true) => (other, self),
        };
        let same = narrow.below == wide.below && narrow.name == wide.name;
        (same || wide.has_below(narrow)).then(|| Grant { port, ..narrow.clone() })
    }

    /// Whether this one, which is about names below it, is about all of another. An address is
    /// below nothing, however it is written.
    fn has_below(&self, other: &Grant) -> bool {
        let last = other.name.rsplit('.').next().unwrap_or_default();
        let named = last.starts_with(|first: char| first.is_ascii_alphabetic());
        let child = other.name.strip_suffix(&self.name);
        self.below && named && child.is_some_and(|child| child.len() > 1 && child.ends_with('.'))
    }
}

impl std::fmt::Display for Grant {
    fn fmt(&self, text: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Grant { name, below, port } = self;
        write!(text, "{}{name}", if *below { "*." } else { "" })?;
        match port {
            Some(port) => write!(text, ":{port}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn a_child_has_the_tools_that_its_parent_has_too() {
        for (own, inherited, both) in [
            (&[][..], &[][..], &[][..]),
            (&["read"], &[], &["read"]),
            (&[], &["read"], &["read"]),
            (&["read", "bash"], &["bash", "write"], &["bash"]),
            (&["read"], &["bash"], &["-"]),
        ] {
            let [own, parent] = [own, inherited]
                .map(|tools| Permissions { tools: list(tools), ..Permissions::default() });
            assert_eq!(own.of_child(&parent).tools, list(both));
        }
    }

    #[test]
    fn a_child_reaches_the_hosts_that_its_parent_reaches_too() {
        for (own, inherited, both) in [
            (&["a.com"][..], &[][..], &[][..]),
            (&["a.com", "b.com:80"], &["A.com", "b.com", "c.com"], &["a.com", "b.com:80"]),
            (&["x.a.com", "a.com"], &["*.a.com"], &["x.a.com"]),
            (&["*.a.com:443"], &["*.x.a.com", "y.a.com"], &["*.x.a.com:443", "y.a.com:443"]),
            (&["a.com:80"], &["a.com:443"], &[]),
            (&["127.0.0.1", "[::1]"], &["*.0.0.1", "*.1", "*.:1]"], &[]),
            (&["0x7f.1"], &["*.1"], &[]),
            (&["xa.com"], &["*.a.com"], &[]),
        ] {
            assert_eq!(hosts(&list(own), &list(inherited)), list(both), "{own:?} {inherited:?}");
        }
    }

    #[test]
    fn a_grandchild_is_within_its_parent_and_that_ones_parent() {
        let mode =
            |mode: permissions::Mode| Permissions { mode: mode.into(), ..Permissions::default() };
        let child = mode(permissions::Mode::Plan).of_child(&mode(permissions::Mode::NeverAsk));
        let grandchild = mode(permissions::Mode::Auto).of_child(&child);
        let modes: Vec<_> = grandchild.within.iter().map(|layer| layer.mode()).collect();
        assert_eq!(modes, [permissions::Mode::Plan, permissions::Mode::NeverAsk]);
        assert!(grandchild.within.iter().all(|layer| layer.within.is_empty()));
    }

    #[test]
    fn a_parents_deny_is_final_whoever_had_decided_it() {
        let rule = |action: Action| Rule {
            permission: "bash".into(),
            pattern: "*".into(),
            action: action.into(),
            source: Source::Session.into(),
        };
        let rules = vec![rule(Action::Deny), rule(Action::Allow)];
        let child =
            Permissions::default().of_child(&Permissions { rules, ..Permissions::default() });
        let sources: Vec<_> = child.within[0].rules.iter().map(Rule::source).collect();
        assert_eq!(sources, [Source::Parent, Source::Session]);
    }
}
