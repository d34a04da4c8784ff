use std::{
    env,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Chance that comes back with the seed (SplitMix64).
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Chance of its own for what has a number: how often others rolled before changes nothing.
    pub fn of(&self, number: usize) -> Dice {
        Dice(Dice(self.0.wrapping_add(number as u64)).roll())
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.roll() % end as u64) as usize
    }

    pub fn choose<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        (!from.is_empty()).then(|| &from[self.below(from.len())])
    }

    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.roll() % (to - from))
    }
}

/// Another one each time, unless somebody wants to see a run again and names it in a variable.
pub fn seed(name: &str) -> u64 {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64;
    variable(name).unwrap_or(clock % 1_000_000)
}

/// A number in the environment.
pub fn variable(name: &str) -> Option<u64> {
    let value = env::var(name).ok().filter(|value| !value.is_empty())?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is not a number: {value}")))
}
