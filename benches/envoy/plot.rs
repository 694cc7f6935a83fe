//! Line charts as SVG, with the confidence interval of each point.

use std::fmt::Write;

use crate::figures::Figure;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 48.0;
const COLOURS: [&str; 5] = ["#1f6fb4", "#d1651a", "#2c8a3d", "#7d4aa8", "#8a6d3b"];

/// A chart of what something costs.
#[derive(Debug)]
pub(crate) struct Plot {
    /// Without its ending.
    pub(crate) file: &'static str,
    pub(crate) title: &'static str,
    pub(crate) x_label: &'static str,
    pub(crate) y_label: &'static str,
    /// Whether equal distances mean equal factors.
    pub(crate) log_x: bool,
    pub(crate) lines: Vec<Line>,
}

#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) name: &'static str,
    pub(crate) points: Vec<(f64, Figure)>,
}

impl Plot {
    pub(crate) fn to_svg(&self) -> String {
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
        );
        let highest = self.points().map(|(_, figure)| figure.ci95.1).fold(0.0, f64::max);
        let step = nice_step(highest);
        let top = (highest / step).ceil() * step;
        text(&mut svg, LEFT, 20.0, "start", self.title);
        text(&mut svg, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 10.0, "middle", self.x_label);
        let _ = writeln!(
            svg,
            "<text transform=\"translate(14 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            (TOP + HEIGHT - BOTTOM) / 2.0,
            self.y_label
        );
        let mut level = 0.0;
        while level <= top * 1.001 {
            let y = self.y(level, top);
            line(&mut svg, (LEFT, y), (WIDTH - RIGHT, y), "#dddddd", 1.0);
            text(&mut svg, LEFT - 6.0, y + 4.0, "end", &number(level));
            level += step;
        }
        let mut ticks: Vec<f64> = self.points().map(|(x, _)| *x).collect();
        ticks.sort_by(f64::total_cmp);
        ticks.dedup();
        for tick in ticks {
            text(&mut svg, self.x(tick), HEIGHT - BOTTOM + 18.0, "middle", &number(tick));
        }
        for (index, line) in self.lines.iter().enumerate() {
            self.draw(&mut svg, line, top, COLOURS[index % COLOURS.len()], index);
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn points(&self) -> impl Iterator<Item = &(f64, Figure)> {
        self.lines.iter().flat_map(|line| &line.points)
    }

    fn draw(&self, svg: &mut String, drawn: &Line, top: f64, colour: &str, index: usize) {
        let places: Vec<(f64, f64)> = drawn
            .points
            .iter()
            .map(|(x, figure)| (self.x(*x), self.y(figure.median, top)))
            .collect();
        for pair in places.windows(2) {
            line(svg, pair[0], pair[1], colour, 2.0);
        }
        for ((x, y), (_, figure)) in places.iter().zip(&drawn.points) {
            let (low, high) = figure.ci95;
            line(svg, (*x, self.y(low, top)), (*x, self.y(high, top)), colour, 1.0);
            let _ =
                writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        let y = TOP + 10.0 + 18.0 * index as f64;
        line(svg, (WIDTH - RIGHT + 10.0, y), (WIDTH - RIGHT + 26.0, y), colour, 2.0);
        text(svg, WIDTH - RIGHT + 32.0, y + 4.0, "start", drawn.name);
    }

    fn x(&self, value: f64) -> f64 {
        let scale = |value: f64| if self.log_x { value.ln() } else { value };
        let all = || self.points().map(|(x, _)| scale(*x));
        let (low, high) = (all().fold(f64::MAX, f64::min), all().fold(f64::MIN, f64::max));
        let share = if high > low { (scale(value) - low) / (high - low) } else { 0.5 };
        LEFT + 15.0 + share * (WIDTH - RIGHT - LEFT - 30.0)
    }

    fn y(&self, value: f64, top: f64) -> f64 {
        HEIGHT - BOTTOM - value / top * (HEIGHT - BOTTOM - TOP)
    }
}

/// One, two or five times a power of ten, about six of which reach up to `highest`.
fn nice_step(highest: f64) -> f64 {
    let rough = highest.max(1e-9) / 6.0;
    let power = 10_f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= rough);
    factor.unwrap_or(10.0) * power
}

/// A short form of a number: 1000000 as 1M.
fn number(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{}M", value / 1e6),
        value if value >= 1e3 => format!("{}k", value / 1e3),
        value => format!("{}", (value * 1000.0).round() / 1000.0),
    }
}

fn line(svg: &mut String, from: (f64, f64), to: (f64, f64), colour: &str, width: f64) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _ = writeln!(
        svg,
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\" stroke-width=\"{width}\"/>"
    );
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, content: &str) {
    let _ =
        writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{content}</text>");
}
