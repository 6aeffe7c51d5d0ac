//! The text of an SVG has all that a reader needs, and its bars have the length of their values.

use super::*;
use crate::backend::Backend::{self, *};
use crate::report::{Column, Figure, Mark, Published};
use crate::statistics::Summary;
use std::collections::{BTreeMap, BTreeSet};

const SOURCE: &str = "somebody's benchmark, 2002";

fn column(backend: Backend, median: f64) -> Column {
    let summary = Some(Summary::of(&[median]));
    let counts = BTreeMap::new();
    Column { backend, runs: vec![median], summary, missing: None, ratio: None, difference: None, counts }
}

fn row(name: &str, unit: &str, x: Option<f64>, medians: &[(Backend, f64)]) -> Row {
    let more_is_better = unit.ends_with("/s");
    let (group, name, unit) = ("group".to_owned(), name.to_owned(), unit.to_owned());
    let figure = Figure { group, name, unit, more_is_better, x, ..Figure::default() };
    Row { figure, columns: medians.iter().map(|(backend, median)| column(*backend, *median)).collect() }
}

fn published(mut row: Row, value: f64) -> Row {
    let (label, source) = ("published".to_owned(), SOURCE.to_owned());
    row.figure.published.push(Published { label, value, spread: None, source });
    row
}

fn workload(rows: Vec<Row>) -> WorkloadReport {
    WorkloadReport {
        name: "name".to_owned(),
        title: "A workload of the tests".to_owned(),
        about: String::new(),
        axis: "things in flight".to_owned(),
        marks: Vec::new(),
        runs: 1,
        rows,
        comparisons: Vec::new(),
        notes: Vec::new(),
    }
}

/// Returns the first chart's SVG.
fn svg(workload: &WorkloadReport, width: u32) -> String {
    of(workload)[0].svg_element(width).expect("a drawing")
}

/// Returns the drawing's texts in their order. A line that was folded is several texts.
fn words(svg: &str) -> Vec<String> {
    let texts = svg.split("<text ").skip(1).filter_map(|text| text.split_once('>')?.1.split_once("</text>"));
    texts.map(|(text, _)| text.trim().replace("&apos;", "'")).collect()
}

fn number(element: &str, attribute: &str) -> f64 {
    let value = element.split_once(&format!(" {attribute}=\"")).and_then(|(_, rest)| rest.split_once('"'));
    value.and_then(|(value, _)| value.parse().ok()).unwrap_or_else(|| panic!("no {attribute} in {element}"))
}

/// Returns the widths of the bars, from the top.
fn bars(svg: &str) -> Vec<f64> {
    let boxes = svg.lines().filter(|line| line.starts_with("<rect") && !line.contains("f-paper"));
    boxes.map(|bar| number(bar, "width")).collect()
}

#[test]
fn bars_of_one_unit_are_as_long_as_their_values_across_the_chart_published_ones_too() {
    let values = [45.5, 22.75, 262.5, 12.0, 33.9, 250.0];
    let rows = vec![
        published(row("first", "ms", None, &[(Anyring, values[0]), (Kernel, values[1])]), values[2]),
        published(row("second", "ms", None, &[(Anyring, values[3]), (Epoll, values[4])]), values[5]),
    ];
    let workload = workload(rows);
    for width in [WIDE, NARROW] {
        let found = bars(&svg(&workload, width));
        assert_eq!(found.len(), values.len(), "{found:?}");
        let pixels = found[2] / values[2];
        assert!(pixels > 0.3, "the longest bar has the room that there is: {found:?}");
        for (bar, value) in found.iter().zip(values) {
            assert!((bar - value * pixels).abs() <= 1.0, "{value} is {bar} wide, at {pixels} a unit: {found:?}");
        }
    }
}

#[test]
fn bars_of_two_units_are_apart_each_below_its_unit() {
    let rows = vec![
        row("sent", "%", None, &[(Anyring, 1.0)]),
        row("CPU", "us", None, &[(Anyring, 50.0)]),
        row("lost", "%", None, &[(Anyring, 4.0)]),
    ];
    let svg = svg(&workload(rows), WIDE);
    let words = words(&svg);
    let place =
        |text: &str| words.iter().position(|word| word == text).unwrap_or_else(|| panic!("{text}: {words:?}"));
    let places = ["%, lower is better", "sent", "lost", "us, lower is better", "CPU"].map(place);
    assert!(places.is_sorted(), "{words:?}");
    let bars = bars(&svg);
    assert!((bars[1] - 4.0 * bars[0]).abs() <= 4.0, "both %: {bars:?}");
    assert!((bars[2] - bars[1]).abs() <= 20.0, "the greatest of each unit has all the room: {bars:?}");
}

#[test]
fn a_picture_says_what_it_is_of_which_way_is_better_and_what_is_of_another_machine() {
    let places = [Some(1.0), Some(2.0), Some(4.0)];
    let of_unit = |unit: &'static str, x: [Option<f64>; 3]| {
        let rows = x.map(|x| published(row("a row", unit, x, &[(Anyring, 3.0), (Kernel, 40.0)]), 5.0));
        workload(rows.into())
    };
    for (unit, x, expected) in [
        ("ms", [None; 3], "ms, lower is better"),
        ("passes/s", [None; 3], "passes/s, higher is better"),
        ("ns", places, "ns, lower is better; logarithmic scale"),
        ("passes/s", places, "passes/s, higher is better; logarithmic scale"),
    ] {
        for width in [WIDE, NARROW] {
            let words = words(&svg(&of_unit(unit, x), width));
            let all = words.join(" ");
            assert!(all.starts_with("A workload of the tests: group "), "{all}");
            assert_eq!(words.iter().filter(|word| *word == expected).count(), 1, "{expected}: {words:?}");
            assert!(words.contains(&"published".to_owned()), "{words:?}");
            assert!(all.ends_with("Grey: published, another machine (somebody's benchmark, 2002)"), "{all}");
        }
    }
    let own = workload(vec![row("a row", "ms", None, &[(Anyring, 3.0)])]);
    assert!(!svg(&own, WIDE).contains("another machine"), "nothing published, nothing said");
}

#[test]
fn nothing_is_wider_than_the_picture() {
    let title =
        "A title that is a good deal longer than there is room for on a phone, and wider than a page, too, unless \
                 it is folded";
    let rows = vec![published(row("a row", "ms", None, &[(KernelAioPoll, 3.0)]), 5.0)];
    let workload = WorkloadReport { title: title.to_owned(), ..workload(rows) };
    for width in [WIDE, NARROW] {
        let svg = svg(&workload, width);
        let canvas = Canvas::svg(width, 1);
        for (text, word) in svg.split("<text ").skip(1).zip(words(&svg)) {
            let wide = f64::from(canvas.text_width(&word));
            let x = number(&format!(" {text}"), "x");
            let right = if text.contains("text-anchor=\"end\"") { x } else { x + wide };
            assert!(right <= f64::from(width), "{word} ends at {right} of {width}");
        }
    }
}

#[test]
fn lines_that_lie_on_each_other_differ_by_dashes_and_markers() {
    let backends = [Anyring, Kernel, Epoll, Threads];
    let rows = [1.0, 2.0, 4.0].map(|x| row("a row", "ns", Some(x), &backends.map(|backend| (backend, 7.0))));
    let svg = svg(&workload(rows.into()), WIDE);
    let style = |backend: Backend| {
        let class = format!("\"s-{}\"", backend.name());
        let strokes: Vec<&str> =
            svg.lines().filter(|line| line.starts_with("<polyline") && line.contains(&class)).collect();
        // The dashes of the sample in the legend and of the line itself.
        let dashes: BTreeSet<&str> =
            strokes.iter().filter_map(|line| line.split_once("dasharray=\"")?.1.split('"').next()).collect();
        let discs = svg.lines().filter(|line| line.starts_with("<circle") && line.contains(backend.name())).count();
        assert!(dashes.len() <= 1, "the legend shows what the chart has: {dashes:?}");
        (dashes, strokes.len(), discs)
    };
    let styles = backends.map(style);
    assert_eq!(styles[0], (BTreeSet::new(), 2, 4), "the first line is solid, with a disc at each point");
    assert!(styles[1..].iter().all(|(dashes, _, discs)| dashes.len() == 1 && *discs == 0), "{styles:?}");
    let different: BTreeSet<_> = styles.iter().map(|(dashes, ..)| dashes).collect();
    assert_eq!(different.len(), backends.len(), "{styles:?}");
    let looks: BTreeSet<String> = (0..30).map(|line| format!("{:?}", style::Style::of(line))).collect();
    assert_eq!(looks.len(), 30);
}

#[test]
fn a_mark_on_the_axis_is_not_grey_which_is_for_what_was_published() {
    let rows = [1.0, 2.0, 4.0].map(|x| row("a row", "ns", Some(x), &[(Anyring, 7.0)]));
    let marks = vec![Mark { x: 2.0, label: "a limit".to_owned() }];
    let svg = svg(&WorkloadReport { marks, ..workload(rows.into()) }, WIDE);
    assert!(words(&svg).contains(&"| at 2: a limit".to_owned()), "{svg}");
    assert!(!svg.contains("s-published"), "{svg}");
}

#[test]
fn both_formats_are_drawn_with_dashes() {
    let rows = [1.0, 2.0, 4.0].map(|x| row("a row", "ns", Some(x), &[(Anyring, 7.0), (Kernel, 9.0)]));
    let workload = workload(rows.into());
    let chart = &of(&workload)[0];
    assert!(chart.svg_file().expect("an SVG").contains("stroke-dasharray"));
    assert!(chart.png_file().expect("a PNG").starts_with(b"\x89PNG"));
}
