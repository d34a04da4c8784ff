//! What the rewards of two configurations say about them. No I/O.

/// Means over the tasks that both have rewards of: candidate less baseline.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Difference {
    pub trials: i64,
    pub reward: f64,
    pub timeouts: f64,
}

/// Sums of fractions differ in their last digits.
const NOTHING: f64 = 1e-9;

impl Difference {
    /// In one word: rewards decide, and where they are equal, who ran into time.
    pub fn decision(&self) -> &'static str {
        match self {
            Difference { trials: 0, .. } => "unknown",
            Difference { reward, .. } if *reward > NOTHING => "better",
            Difference { reward, .. } if *reward < -NOTHING => "worse",
            Difference { timeouts, .. } if *timeouts < -NOTHING => "better",
            Difference { timeouts, .. } if *timeouts > NOTHING => "worse",
            _ => "same",
        }
    }
}

#[test]
fn rewards_decide_and_then_time() {
    let decision = |trials, reward, timeouts| Difference { trials, reward, timeouts }.decision();
    assert_eq!(decision(0, 1.0, 0.0), "unknown");
    assert_eq!(decision(2, 0.1, 0.9), "better");
    assert_eq!(decision(2, -0.1, 0.0), "worse");
    assert_eq!(decision(2, 1e-12, -0.5), "better");
    assert_eq!(decision(2, 0.0, 0.5), "worse");
    assert_eq!(decision(2, 0.0, 0.0), "same");
}
