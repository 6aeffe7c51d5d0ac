//! Horizontal bars: one group of them for each row, with the least and the greatest run as a whisker.

use super::canvas::{Canvas, Ink};
use crate::report::{grouped, Row};
use crate::text;
use plotters::style::text_anchor::HPos;

const MARGIN: i32 = 8;
const LINE: i32 = 21;
const BAR: i32 = 13;

/// One bar of a group, with its label.
struct Bar {
    label: String,
    ink: Ink,
    /// Median, least, greatest.
    value: Option<[f64; 3]>,
    /// The median as text.
    text: String,
}

/// Draws from `y` down, the rows of each unit together. Returns the `y` below.
pub fn draw(canvas: &mut Canvas, mut y: i32, rows: &[&Row]) -> Result<i32, String> {
    for (_, rows) in grouped(rows, |row| &row.figure.unit) {
        y = of_one_unit(canvas, y, &rows)?;
    }
    Ok(y)
}

/// Draws the rows of one unit on one scale: a bar that is twice as long is twice as much.
fn of_one_unit(canvas: &mut Canvas, mut y: i32, rows: &[&&Row]) -> Result<i32, String> {
    let groups: Vec<_> = rows.iter().map(|row| (*row, bars(row))).collect();
    let all = || groups.iter().flat_map(|(_, bars)| bars);
    let left = MARGIN + all().map(|bar| canvas.text_width(&bar.label)).max().unwrap_or(0) + 8;
    let texts = all().map(|bar| canvas.text_width(&bar.text)).max().unwrap_or(0);
    let right = canvas.width as i32 - MARGIN - texts - 8;
    let greatest = all().filter_map(|bar| bar.value).map(|[_, _, max]| max).fold(f64::MIN_POSITIVE, f64::max);
    let place = |value: f64| left + (value / greatest * f64::from(right - left)).round() as i32;
    let unit = rows.first().map_or(String::new(), |row| text::unit(&row.figure));
    y = canvas.paragraph(&unit, (MARGIN, y), Ink::Text)? + MARGIN / 2;
    for (row, bars) in &groups {
        y = canvas.paragraph(&text::name(row), (MARGIN, y), Ink::Text)?;
        for bar in bars {
            let middle = y + LINE / 2;
            canvas.text(&bar.label, (left - 8, middle), HPos::Right, Ink::Text)?;
            match bar.value {
                Some([value, min, max]) => {
                    let end = place(value).max(left + 1);
                    canvas.rectangle((left, middle - BAR / 2), (end, middle + BAR / 2), bar.ink)?;
                    if max > min {
                        canvas.path(&[(place(min), middle), (place(max), middle)], 1, Ink::Text)?;
                    }
                    let after = end.max(place(max)) + 6;
                    canvas.text(&bar.text, (after, middle), HPos::Left, Ink::Text)?;
                }
                None => canvas.text("none here", (left, middle), HPos::Left, Ink::Text)?,
            }
            y += LINE;
        }
        y += MARGIN;
    }
    Ok(y)
}

fn bars(row: &Row) -> Vec<Bar> {
    let measured = row.columns.iter().map(|column| Bar {
        label: column.backend.title().to_owned(),
        ink: Ink::Of(column.backend),
        value: column.summary.map(|summary| [summary.median, summary.min, summary.max]),
        text: column.summary.map_or(String::new(), |summary| text::figure(summary.median)),
    });
    let published = row.figure.published.iter().map(|published| Bar {
        label: published.label.clone(),
        ink: Ink::Published,
        value: Some(match published.spread {
            Some([_, min, max]) => [published.value, min, max],
            None => [published.value; 3],
        }),
        text: text::as_published(published.value),
    });
    measured.chain(published).collect()
}
