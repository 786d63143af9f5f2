//! Plots of the report, SVG: loss over offered load, copies over fan-out, latency.

use std::path::Path;

use anyhow::{Context, Result};
use plotters::prelude::*;

use super::figure::{Figure, figure_of};
use traffic::trial::Outcome;

use crate::bench::results::{CaseResult, Spread, Trial};

const LOAD: &str = "offered, thousand packets per second";
const SIZE: (u32, u32) = (860, 420);
/// Colours that people with the common colour-vision deficiencies can distinguish (Okabe and Ito 2008).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(90, 90, 90),
    RGBColor(230, 159, 0),
];

/// One relay's points.
struct Line {
    name: String,
    points: Vec<(f64, Spread)>,
}

/// What a plot shows.
struct Plot {
    scenario: u8,
    file: &'static str,
    title: &'static str,
    x: &'static str,
    y: &'static str,
    lines: Vec<Line>,
}

/// Draws every plot that has points and returns its scenario, file name and title.
///
/// # Errors
/// When a file cannot be written.
pub(super) fn draw_all(
    cases: &[&CaseResult],
    directory: &Path,
) -> Result<Vec<(u8, &'static str, &'static str)>> {
    let plots = [
        loss_over_load(cases),
        copies_over_fan_out(cases),
        loss_on_one_core(cases),
        latency(cases),
    ];
    let mut drawn = Vec::new();
    for plot in plots {
        if plot.lines.is_empty() {
            continue;
        }
        let file = directory.join(plot.file);
        draw(&plot, &file).with_context(|| file.display().to_string())?;
        drawn.push((plot.scenario, plot.file, plot.title));
    }
    Ok(drawn)
}

fn loss_over_load(cases: &[&CaseResult]) -> Plot {
    let at = |case: &CaseResult| {
        let rated = case.parameters.get("pps")?.parse::<f64>().is_ok();
        let offered = case.spread(Trial::offered_pps)?;
        let loss = figure_of(case, Figure::Loss)?;
        rated.then_some((offered.median / 1000.0, loss))
    };
    Plot {
        scenario: 1,
        file: "loss.svg",
        title: "Loss over offered load, one stream, whole machine",
        x: LOAD,
        y: "lost, %",
        lines: lines(cases, 1, at),
    }
}

/// Every step of every search for the zero-loss rate, in order of the load.
fn loss_on_one_core(cases: &[&CaseResult]) -> Plot {
    let searches = cases.iter().filter(|case| case.scenario == 7);
    let lines = searches.filter_map(|case| {
        let probes = case.trials.iter().flat_map(|trial| &trial.probes);
        let mut points: Vec<(f64, Spread)> = probes
            .filter_map(|probe| {
                let loss = Spread::of([probe.loss_percent])?;
                Some((probe.offered_pps / 1000.0, loss))
            })
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        (!points.is_empty()).then(|| Line {
            name: case.relay.clone(),
            points,
        })
    });
    Plot {
        scenario: 7,
        file: "loss-one-core.svg",
        title: "Loss over offered load, one stream, one core (steps of the searches)",
        x: LOAD,
        y: "lost, %",
        lines: lines.collect(),
    }
}

fn copies_over_fan_out(cases: &[&CaseResult]) -> Plot {
    let at = |case: &CaseResult| {
        let saturated = case.parameters.get("pps")? == "max";
        let outputs = case.parameters.get("outputs")?.parse().ok()?;
        let copies = figure_of(case, Figure::Delivered)?.scaled(1e-6);
        saturated.then_some((outputs, copies))
    };
    // One output is a case of scenario 7.
    let single = |case: &CaseResult| {
        let is = |name, value| case.parameters.get(name).is_some_and(|own| own == value);
        let copies = figure_of(case, Figure::Delivered)?.scaled(1e-6);
        let plain = !case.parameters.contains_key("ip");
        (plain && is("pps", "max") && is("bytes", "1024") && is("gro", "off"))
            .then_some((1.0, copies))
    };
    let mut lines = lines(cases, 5, at);
    for one in self::lines(cases, 7, single) {
        if let Some(line) = lines.iter_mut().find(|line| line.name == one.name) {
            line.points.splice(0..0, one.points);
        }
    }
    Plot {
        scenario: 5,
        file: "fan-out.svg",
        title: "Copies per second over fan-out, one core",
        x: "outputs",
        y: "million copies per second",
        lines,
    }
}

/// Latency by percentile at 20,000 packets per second; the horizontal axis counts nines.
fn latency(cases: &[&CaseResult]) -> Plot {
    let own = cases.iter().filter(|case| {
        let rate = case.parameters.get("pps");
        let wide = case.parameters.contains_key("outputs");
        case.scenario == 8 && !wide && rate.is_some_and(|rate| rate == "20000")
    });
    let lines = own.filter_map(|case| {
        let figures = [Figure::LatencyP50, Figure::LatencyP99, Figure::LatencyP99_9];
        let nines = [50.0_f64, 99.0, 99.9].map(|percent| -(1.0 - percent / 100.0).log10());
        let points: Vec<_> = nines
            .iter()
            .zip(figures)
            .filter_map(|(nines, figure)| Some((*nines, figure_of(case, figure)?)))
            .collect();
        (!points.is_empty()).then(|| Line {
            name: case.relay.clone(),
            points,
        })
    });
    Plot {
        scenario: 8,
        file: "latency.svg",
        title: "Latency at 20,000 packets per second",
        x: "percentile, in nines (0.3 is p50, 2 is p99, 3 is p99.9)",
        y: "microseconds",
        lines: lines.collect(),
    }
}

fn lines(
    cases: &[&CaseResult],
    scenario: u8,
    at: impl Fn(&CaseResult) -> Option<(f64, Spread)>,
) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for case in cases.iter().filter(|case| case.scenario == scenario) {
        let Some(point) = at(case) else { continue };
        match lines.iter_mut().find(|line| line.name == case.relay) {
            Some(line) => line.points.push(point),
            None => lines.push(Line {
                name: case.relay.clone(),
                points: vec![point],
            }),
        }
    }
    for line in &mut lines {
        line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    lines
}

fn draw(plot: &Plot, file: &Path) -> Result<()> {
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let points = || plot.lines.iter().flat_map(|line| &line.points);
    let right = points().map(|point| point.0).fold(0.0, f64::max) * 1.05;
    let highest = points().map(|point| point.1.max).fold(0.0, f64::max) * 1.1;
    let top = if highest > 0.0 { highest } else { 1.0 };
    let mut chart = ChartBuilder::on(&root)
        .caption(plot.title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..right, 0.0..top)?;
    chart
        .configure_mesh()
        .x_desc(plot.x)
        .y_desc(plot.y)
        .light_line_style(WHITE)
        .draw()?;
    for (line, colour) in plot.lines.iter().zip(COLOURS.iter().cycle()) {
        let style = colour.stroke_width(2);
        let medians = line.points.iter().map(|(x, spread)| (*x, spread.median));
        chart
            .draw_series(LineSeries::new(medians.clone(), style))?
            .label(&line.name)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], style));
        let dots = medians.map(|point| Circle::new(point, 3, colour.filled()));
        chart.draw_series(dots)?;
        let whiskers = line.points.iter().map(|(x, spread)| {
            PathElement::new(
                vec![(*x, spread.min), (*x, spread.max)],
                colour.stroke_width(1),
            )
        });
        chart.draw_series(whiskers)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(200, 200, 200))
        .draw()?;
    Ok(root.present()?)
}
