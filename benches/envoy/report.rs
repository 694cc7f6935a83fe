//! What a run leaves behind: `summary.json` for machines, `report.md` and charts for people.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use serde_json::{Map, Value};

use crate::figures::Figure;
use crate::keys::{self, KEYS, Target};
use crate::plot::Plot;
use crate::rounds::{Round, Series};

/// Everything that was found out so far.
#[derive(Debug, Default)]
pub(crate) struct Report {
    figures: BTreeMap<&'static str, Figure>,
    series: Vec<Series>,
    plots: Vec<Plot>,
    /// What was left out, and why.
    notes: Vec<String>,
    /// The machine, its load, the versions.
    conditions: Vec<String>,
}

impl Report {
    /// Records a figure and tells it at once.
    pub(crate) fn figure(&mut self, name: &'static str, figure: Figure) {
        let key = keys::find(name);
        eprintln!("  {name:<38} {} {}", in_short(&figure), verdict(key.target, &figure));
        self.figures.insert(key.name, figure);
    }

    pub(crate) fn series(&mut self, series: Series) {
        self.series.push(series);
    }

    pub(crate) fn plot(&mut self, plot: Plot) {
        self.plots.push(plot);
    }

    pub(crate) fn condition(&mut self, condition: String) {
        eprintln!("{condition}");
        self.conditions.push(condition);
    }

    pub(crate) fn note(&mut self, note: String) {
        eprintln!("  {note}");
        self.notes.push(note);
    }

    /// Writes all files into `directory`.
    pub(crate) fn write(&self, directory: &Path) {
        fs::create_dir_all(directory).expect("the directory of the report");
        let entry = |(name, figure): (&&str, &Figure)| ((*name).to_owned(), figure.to_json());
        let summary = Value::Object(self.figures.iter().map(entry).collect::<Map<_, _>>());
        let summary = serde_json::to_string_pretty(&summary).expect("JSON");
        fs::write(directory.join("summary.json"), summary + "\n").expect("summary.json");
        for plot in &self.plots {
            let file = directory.join(format!("{}.svg", plot.file));
            fs::write(file, plot.to_svg()).expect("a chart");
        }
        fs::write(directory.join("report.md"), self.to_markdown()).expect("report.md");
    }

    fn to_markdown(&self) -> String {
        let mut page = String::from("# Benchmarks\n\n");
        for condition in &self.conditions {
            let _ = writeln!(page, "- {condition}");
        }
        page.push_str("\nA figure is the median over the rounds, with the interval that holds the true median with 95 % confidence. `docs/benchmarks.md` says how each is measured.\n\n## Figures and targets\n\n");
        page.push_str(&self.table_of_figures());
        for note in &self.notes {
            let _ = writeln!(page, "\n{note}");
        }
        if !self.plots.is_empty() {
            page.push_str("\n## Charts\n\n");
        }
        for plot in &self.plots {
            let _ = writeln!(page, "![{}]({}.svg)\n", plot.title, plot.file);
        }
        page.push_str("\n## All variants\n");
        for series in &self.series {
            page.push_str(&table_of_variants(series));
        }
        page
    }

    pub(crate) fn table_of_figures(&self) -> String {
        let mut table = String::from(
            "| key | median [95 %] | min … max | rounds | target | | what |\n|---|--:|--:|--:|--:|---|---|\n",
        );
        for key in KEYS {
            let Some(figure) = self.figures.get(key.name) else { continue };
            let _ = writeln!(
                table,
                "| `{}` | {} | {} … {} | {} | {} | {} | {} |",
                key.name,
                in_short(figure),
                number(figure.min),
                number(figure.max),
                figure.rounds,
                wanted(key.target),
                verdict(key.target, figure),
                key.what,
            );
        }
        table
    }
}

fn table_of_variants(series: &Series) -> String {
    let mut table = format!(
        "\n### {}\n\nOthers used {:.2} CPUs meanwhile.\n\n| variant | CPU µs/request | requests/s | p50 ms | p99 ms | 429 | CPUs | generator µs/request |\n|---|--:|--:|--:|--:|--:|--:|--:|\n",
        series.title, series.others_cores
    );
    for name in &series.names {
        let cell = |value: &dyn Fn(&Round) -> f64| in_short(&series.figure(name, value));
        let refused: u64 = series.of(name).iter().map(|round| round.tally.refused).sum();
        let requests: u64 = series.of(name).iter().map(|round| round.tally.requests()).sum();
        let _ = writeln!(
            table,
            "| {name} | {} | {} | {} | {} | {:.2} % | {:.2} | {:.1} |",
            cell(&Round::cpu_us),
            cell(&|round| round.tally.per_second()),
            cell(&|round| round.tally.latency_ms(0.50)),
            cell(&|round| round.tally.latency_ms(0.99)),
            refused as f64 / requests as f64 * 100.0,
            series.figure(name, Round::cores).median,
            series.figure(name, Round::generator_us).median,
        );
    }
    table
}

fn in_short(figure: &Figure) -> String {
    let Figure { median, ci95: (low, high), .. } = figure;
    format!("{} [{} … {}]", number(*median), number(*low), number(*high))
}

/// Three digits after the point are more than any of these figures deserves.
fn number(value: f64) -> String {
    if value.abs() >= 1000.0 { format!("{value:.0}") } else { format!("{value:.3}") }
}

fn wanted(target: Target) -> String {
    let then =
        |harder: Option<f64>| harder.map_or(String::new(), |harder| format!(", then {harder}"));
    match target {
        Target::None => "–".to_owned(),
        Target::AtMost(first, harder) => format!("≤ {first}{}", then(harder)),
        Target::AtLeast(first, harder) => format!("≥ {first}{}", then(harder)),
        Target::Never(limit) => format!("never > {limit}"),
        Target::Always(limit) => format!("never < {limit}"),
    }
}

/// Where there are two targets, the one that is met is named.
fn verdict(target: Target, figure: &Figure) -> String {
    let judge = |met: &dyn Fn(f64) -> bool, first: f64, harder: Option<f64>| match harder {
        Some(harder) if met(harder) => "pass".to_owned(),
        Some(harder) if met(first) => format!("pass {first}, MISS {harder}"),
        _ if met(first) => "pass".to_owned(),
        _ => "MISS".to_owned(),
    };
    match target {
        Target::None => String::new(),
        Target::AtMost(first, harder) => judge(&|limit| figure.median <= limit, first, harder),
        Target::AtLeast(first, harder) => judge(&|limit| figure.median >= limit, first, harder),
        Target::Never(limit) => judge(&|limit| figure.max <= limit, limit, None),
        Target::Always(limit) => judge(&|limit| figure.min >= limit, limit, None),
    }
}
