//! Figures from rounds: the median, its confidence interval, the extremes.

use serde_json::{Value, json};

/// One figure, as it stands in `summary.json`.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) ci95: (f64, f64),
    pub(crate) rounds: usize,
}

impl Figure {
    /// The figure of these rounds, of which there is at least one.
    pub(crate) fn of(rounds: &[f64]) -> Self {
        assert!(rounds.iter().all(|value| value.is_finite()), "{rounds:?}");
        let mut sorted = rounds.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (sorted[0], sorted[sorted.len() - 1]);
        let skipped = ranks_outside(sorted.len());
        let ci95 = (sorted[skipped], sorted[sorted.len() - 1 - skipped]);
        Self { median: middle(&sorted), min, max, ci95, rounds: sorted.len() }
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "median": rounded(self.median),
            "min": rounded(self.min),
            "max": rounded(self.max),
            "ci95": [rounded(self.ci95.0), rounded(self.ci95.1)],
            "rounds": self.rounds,
        })
    }
}

fn middle(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[half] } else { f64::midpoint(sorted[half - 1], sorted[half]) }
}

/// How many of `count` ordered values may be left out on either side, so that what remains still
/// holds the true median in 95 of 100 runs, whatever the distribution. Below six values none may,
/// and even all of them hold it less often.
fn ranks_outside(count: usize) -> usize {
    let mut probability = 0.5_f64.powi(i32::try_from(count).expect("few rounds"));
    let (mut below, mut skipped) = (0.0, 0);
    for rank in 0..count / 2 {
        below += probability;
        if below > 0.025 {
            break;
        }
        skipped = rank;
        probability *= (count - rank) as f64 / (rank + 1) as f64;
    }
    skipped
}

/// Five significant digits: more would be noise.
fn rounded(value: f64) -> f64 {
    format!("{value:.4e}").parse().expect("a number")
}

/// Checked at each start, because `cargo test` does not run what stands in a benchmark.
pub(crate) fn check() {
    assert_eq!([5, 6, 7, 9, 20, 40].map(ranks_outside), [0, 0, 0, 1, 5, 13]);
    let figure = Figure::of(&[3.0, 1.0, 2.0, 10.0]);
    assert!((figure.median - 2.5).abs() < 1e-9 && figure.ci95 == (1.0, 10.0));
}
