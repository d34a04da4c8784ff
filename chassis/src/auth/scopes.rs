use std::fmt;

use proto::auth::v1::Scope;

/// A set of scopes.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Scopes(u32);

const ALL: [Scope; 5] = [Scope::Read, Scope::Run, Scope::Configure, Scope::Admin, Scope::Internal];

impl Scopes {
    /// Everything that people and their programs can be allowed to do.
    pub fn public() -> Scopes {
        ALL.into_iter().collect::<Scopes>().without(Scope::Internal)
    }

    /// Reads scopes as keys and tokens spell them, and skips names that are not ours.
    pub fn from_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Scopes {
        names.into_iter().filter_map(Scope::from_name).collect()
    }

    pub fn names(self) -> Vec<String> {
        self.iter().map(Scope::name).collect()
    }

    pub fn contains(self, scope: Scope) -> bool {
        self.0 & bit(scope) != 0
    }

    pub fn with(self, scope: Scope) -> Scopes {
        Scopes(self.0 | bit(scope))
    }

    pub fn without(self, scope: Scope) -> Scopes {
        Scopes(self.0 & !bit(scope))
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn iter(self) -> impl Iterator<Item = Scope> {
        ALL.into_iter().filter(move |scope| self.contains(*scope))
    }
}

/// `SCOPE_UNSPECIFIED` is no scope, so nobody can hold it.
fn bit(scope: Scope) -> u32 {
    match scope {
        Scope::Unspecified => 0,
        scope => 1 << scope as u32,
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Scopes {
        scopes.into_iter().fold(Scopes::default(), Scopes::with)
    }
}

impl fmt::Debug for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

#[test]
fn every_scope_of_the_contract_is_known_here() {
    for number in 1..100 {
        if let Ok(scope) = Scope::try_from(number) {
            assert_eq!(Scopes::default().with(scope).names(), [scope.name()]);
        }
    }
    assert!(!ALL.into_iter().collect::<Scopes>().contains(Scope::Unspecified));
}
