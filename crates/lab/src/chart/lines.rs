//! One line for each backend and variant over an axis.

use super::canvas::{Canvas, Ink, TEXT};
use super::scale::{Scale, Ticks};
use super::style::Style;
use crate::report::{Row, WorkloadReport};
use crate::text;
use plotters::style::text_anchor::HPos;

const MARGIN: i32 = 8;
const LINE: i32 = 20;
const PLOT: i32 = 230;

/// One line of the chart.
struct Line {
    label: String,
    ink: Ink,
    style: Style,
    points: Vec<(f64, f64)>,
}

/// Draws from `y` down. Returns the `y` below.
pub fn draw(canvas: &mut Canvas, y: i32, workload: &WorkloadReport, rows: &[&Row]) -> Result<i32, String> {
    let lines = lines(rows);
    let mut y = legend(canvas, y, &lines)?;
    let first = rows.first().map(|row| &row.figure);
    let axis = first.and_then(|figure| figure.axis.as_ref()).unwrap_or(&workload.axis);
    let all = || lines.iter().flat_map(|line| &line.points);
    let vertical = Scale::values(all().map(|(_, value)| *value));
    let unit = first.map_or(String::new(), text::unit);
    let kind = if vertical.is_logarithmic() { "; logarithmic scale" } else { "" };
    y = canvas.paragraph(&format!("{unit}{kind}"), (MARGIN, y), Ink::Text)?;
    y += LINE / 2; // half a line for the topmost value
    let horizontal = Scale::places(all().map(|(x, _)| *x), axis == "percentile");
    let names: Vec<_> = vertical.ticks().into_iter().map(|tick| (tick, text::figure(tick))).collect();
    let widest = names.iter().map(|(_, name)| canvas.text_width(name)).max().unwrap_or(0);
    let (left, right) = (MARGIN + widest + 8, canvas.width as i32 - MARGIN - 12);
    let (top, bottom) = (y, y + PLOT);
    let at_x = |x: f64| left + (horizontal.part(x) * f64::from(right - left)).round() as i32;
    let at_y = |value: f64| bottom - (vertical.part(value) * f64::from(bottom - top)).round() as i32;

    for (tick, name) in &names {
        canvas.path(&[(left, at_y(*tick)), (right, at_y(*tick))], 1, Ink::Faint)?;
        canvas.text(name, (left - 8, at_y(*tick)), HPos::Right, Ink::Text)?;
    }
    let mut places: Vec<f64> = all().map(|(x, _)| *x).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let mut free = i32::MIN;
    for place in places {
        let (x, name) = (at_x(place), axis_name(place));
        canvas.path(&[(x, bottom), (x, bottom + 4)], 1, Ink::Text)?;
        let half = canvas.text_width(&name) / 2;
        if x - half > free {
            canvas.text(&name, (x, bottom + 6 + LINE / 2), HPos::Center, Ink::Text)?;
            free = x + half + 6;
        }
    }
    canvas.path(&[(left, bottom), (right, bottom)], 1, Ink::Text)?;
    let middle = (left + right) / 2;
    canvas.text(axis, (middle, bottom + 6 + LINE + LINE / 2), HPos::Center, Ink::Text)?;
    let mut end = bottom + 6 + 2 * LINE;

    for mark in workload.marks.iter().filter(|mark| horizontal.holds(mark.x)) {
        let x = at_x(mark.x);
        canvas.dashed(&[(x, top), (x, bottom)], 1, &[2, 2], Ink::Text)?;
        // Below the axis, each on its own line: there they cover nothing.
        let label = format!("| at {}: {}", axis_name(mark.x), mark.label);
        canvas.text(&label, (left, end + LINE / 2), HPos::Left, Ink::Text)?;
        end += LINE;
    }
    for line in &lines {
        let points: Vec<_> = line.points.iter().map(|(x, value)| (at_x(*x), at_y(*value))).collect();
        line.style.draw(canvas, &points, &points, line.ink)?;
    }
    Ok(end + MARGIN)
}

fn axis_name(place: f64) -> String {
    match place.fract() == 0.0 {
        true => format!("{place:.0}"),
        false => format!("{place}"),
    }
}

/// Draws names with a sample of their line, in as many rows as they need, from `y` down. Returns the `y` below.
fn legend(canvas: &mut Canvas, mut y: i32, lines: &[Line]) -> Result<i32, String> {
    const SAMPLE: i32 = 36;
    let mut x = MARGIN;
    for line in lines {
        let width = SAMPLE + 6 + canvas.text_width(&line.label);
        if x > MARGIN && x + width > canvas.width as i32 - MARGIN {
            (x, y) = (MARGIN, y + LINE);
        }
        let middle = y + LINE / 2;
        let sample = [(x, middle), (x + SAMPLE, middle)];
        line.style.draw(canvas, &sample, &[(x + SAMPLE / 2, middle)], line.ink)?;
        canvas.text(&line.label, (x + SAMPLE + 6, middle), HPos::Left, Ink::Text)?;
        x += width + TEXT as i32;
    }
    Ok(y + LINE)
}

fn lines(rows: &[&Row]) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut add = |label: String, ink, point| match lines.iter_mut().find(|line| line.label == label) {
        Some(line) => line.points.push(point),
        None => lines.push(Line { label, ink, style: Style::of(lines.len()), points: vec![point] }),
    };
    for row in rows {
        let Some(x) = row.figure.x else { continue };
        for column in &row.columns {
            let Some(summary) = column.summary else { continue };
            let title = column.backend.title();
            let label =
                row.figure.variant.as_ref().map_or(title.to_owned(), |variant| format!("{title}, {variant}"));
            add(label, Ink::Of(column.backend), (x, summary.median));
        }
        for published in &row.figure.published {
            add(published.label.clone(), Ink::Published, (x, published.value));
        }
    }
    lines
}
