//! One line for each backend (and variant, dashed) over an axis.

use super::canvas::{Canvas, Ink, TEXT};
use super::scale::{Scale, Ticks};
use crate::report::{Row, WorkloadReport};
use crate::text;
use plotters::style::text_anchor::HPos;

const MARGIN: i32 = 8;
const LINE: i32 = 20;
const PLOT: i32 = 230;

/// What one line of the chart is.
struct Line {
    label: String,
    ink: Ink,
    dashed: bool,
    points: Vec<(f64, f64)>,
}

/// Draws, and says how high the drawing is.
pub fn draw(canvas: &mut Canvas, workload: &WorkloadReport, rows: &[&Row]) -> Result<u32, String> {
    let lines = lines(rows);
    let mut y = legend(canvas, &lines)?;
    let first = rows.first().map(|row| &row.figure);
    let unit = first.map_or(String::new(), |figure| match figure.more_is_better {
        true => format!("{}, more is better", figure.unit),
        false => figure.unit.clone(),
    });
    let axis = first.and_then(|figure| figure.axis.as_ref()).unwrap_or(&workload.axis);
    canvas.text(&unit, (MARGIN, y + LINE / 2), HPos::Left, Ink::Text)?;
    y += LINE + LINE / 2; // half a line for the topmost value

    let all = || lines.iter().flat_map(|line| &line.points);
    let vertical = Scale::values(all().map(|(_, value)| *value));
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
        canvas.path(&[(x, top), (x, bottom)], 1, Ink::Published)?;
        // Below the axis, each on a line of its own: there they cover nothing.
        let label = format!("| at {}: {}", axis_name(mark.x), mark.label);
        canvas.text(&label, (left, end + LINE / 2), HPos::Left, Ink::Text)?;
        end += LINE;
    }
    for line in &lines {
        let points: Vec<_> = line.points.iter().map(|(x, value)| (at_x(*x), at_y(*value))).collect();
        match line.dashed {
            true => dashes(canvas, &points, line.ink)?,
            false => canvas.path(&points, 2, line.ink)?,
        }
        points.iter().try_for_each(|point| canvas.disc(*point, 3, line.ink))?;
    }
    Ok((end + MARGIN) as u32)
}

fn axis_name(place: f64) -> String {
    match place.fract() == 0.0 {
        true => format!("{place:.0}"),
        false => format!("{place}"),
    }
}

/// Names with a piece of line before them, in as many rows as they need; the place below.
fn legend(canvas: &mut Canvas, lines: &[Line]) -> Result<i32, String> {
    const SAMPLE: i32 = 18;
    let (mut x, mut y) = (MARGIN, MARGIN);
    for line in lines {
        let width = SAMPLE + 6 + canvas.text_width(&line.label);
        if x > MARGIN && x + width > canvas.width as i32 - MARGIN {
            (x, y) = (MARGIN, y + LINE);
        }
        let middle = y + LINE / 2;
        let sample = [(x, middle), (x + SAMPLE, middle)];
        match line.dashed {
            true => dashes(canvas, &sample, line.ink)?,
            false => canvas.path(&sample, 2, line.ink)?,
        }
        canvas.text(&line.label, (x + SAMPLE + 6, middle), HPos::Left, Ink::Text)?;
        x += width + TEXT as i32;
    }
    Ok(y + LINE)
}

/// A dashed line, piece by piece, so that it is one in both formats.
fn dashes(canvas: &mut Canvas, points: &[(i32, i32)], ink: Ink) -> Result<(), String> {
    const DASH: f64 = 5.0;
    for pair in points.windows(2) {
        let [(x0, y0), (x1, y1)] = [pair[0], pair[1]].map(|(x, y)| (f64::from(x), f64::from(y)));
        let pieces = ((x1 - x0).hypot(y1 - y0) / DASH).ceil().max(1.0) as u32;
        let at = |piece: u32| {
            let part = f64::from(piece) / f64::from(pieces);
            ((x0 + (x1 - x0) * part).round() as i32, (y0 + (y1 - y0) * part).round() as i32)
        };
        for piece in (0..pieces).step_by(2) {
            canvas.path(&[at(piece), at(piece + 1)], 2, ink)?;
        }
    }
    Ok(())
}

fn lines(rows: &[&Row]) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut add = |label: String, ink, dashed, point| match lines.iter_mut().find(|line| line.label == label) {
        Some(line) => line.points.push(point),
        None => lines.push(Line { label, ink, dashed, points: vec![point] }),
    };
    for row in rows {
        let Some(x) = row.figure.x else { continue };
        for column in &row.columns {
            let Some(summary) = column.summary else { continue };
            let title = column.backend.title();
            let label =
                row.figure.variant.as_ref().map_or(title.to_owned(), |variant| format!("{title}, {variant}"));
            add(label, Ink::Of(column.backend), row.figure.variant.is_some(), (x, summary.median));
        }
        for published in &row.figure.published {
            let dashed = row.figure.variant.is_some() || published.label.contains("before");
            add(published.label.clone(), Ink::Published, dashed, (x, published.value));
        }
    }
    lines
}
