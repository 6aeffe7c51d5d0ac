//! Horizontal bars: one group of them for each row, with the least and the greatest run as a whisker.

use super::canvas::{Canvas, Ink};
use crate::report::{grouped, Row};
use crate::text;
use plotters::style::text_anchor::HPos;

const MARGIN: i32 = 8;
const LINE: i32 = 21;
const BAR: i32 = 13;

/// A figure this many times as large as the next smaller one is an outlier, which would squeeze the others.
const APART: f64 = 8.0;
/// The most that the scale is longer than the longest bar on it. A single slow run does not squeeze the bars.
const ROOM: f64 = 2.0;

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

/// Draws the rows of one unit on one scale: a bar that is twice as long is twice as much. What is too long for it is drawn
/// with a break.
fn of_one_unit(canvas: &mut Canvas, mut y: i32, rows: &[&&Row]) -> Result<i32, String> {
    let groups: Vec<_> = rows.iter().map(|row| (*row, bars(row))).collect();
    let all = || groups.iter().flat_map(|(_, bars)| bars);
    let left = MARGIN + all().map(|bar| canvas.text_width(&bar.label)).max().unwrap_or(0) + 8;
    let texts = all().map(|bar| canvas.text_width(&bar.text)).max().unwrap_or(0);
    let right = canvas.width as i32 - MARGIN - texts - 8;
    let values: Vec<_> = all().filter_map(|bar| bar.value).collect();
    let end = end_of_scale(&values);
    let place = |value: f64| left + ((value / end).min(1.0) * f64::from(right - left)).round() as i32;
    let mut unit = rows.first().map_or(String::new(), |row| text::unit(&row.figure));
    if values.iter().any(|[_, _, max]| *max > end) {
        unit.push_str("; what has a break is longer than drawn");
    }
    y = canvas.paragraph(&unit, (MARGIN, y), Ink::Text)? + MARGIN / 2;
    for (row, bars) in &groups {
        y = canvas.paragraph(&text::name(row), (MARGIN, y), Ink::Text)?;
        for bar in bars {
            let middle = y + LINE / 2;
            canvas.text(&bar.label, (left - 8, middle), HPos::Right, Ink::Text)?;
            match bar.value {
                Some([value, min, max]) => {
                    let tip = place(value).max(left + 1);
                    canvas.rectangle((left, middle - BAR / 2), (tip, middle + BAR / 2), bar.ink)?;
                    if max > min {
                        canvas.path(&[(place(min), middle), (place(max), middle)], 1, Ink::Text)?;
                    }
                    if max > end {
                        break_off(canvas, (right, middle))?;
                    }
                    let after = tip.max(place(max)) + 6;
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

/// The greatest value on the scale of these bars (median, least, greatest). Bars that are far longer than most others do
/// not count.
fn end_of_scale(values: &[[f64; 3]]) -> f64 {
    let mut medians: Vec<f64> = values.iter().map(|[median, ..]| *median).collect();
    medians.sort_by(|one, other| other.total_cmp(one));
    let is_apart = |at: &usize| medians[*at] > APART * medians[at + 1] && medians[at + 1] > 0.0;
    let outliers = (0..medians.len() / 2).rev().find(is_apart).map_or(0, |at| at + 1);
    let longest = medians.get(outliers).copied().unwrap_or(0.0);
    let kept = values.iter().filter(|[median, ..]| *median <= longest).map(|[_, _, max]| *max);
    kept.fold(f64::MIN_POSITIVE, f64::max).min(ROOM * longest.max(f64::MIN_POSITIVE))
}

/// Draws a break in a bar that ends at `(x, y)`.
fn break_off(canvas: &mut Canvas, (x, y): (i32, i32)) -> Result<(), String> {
    let cut = |at: i32| [(at - 3, y + BAR / 2 + 2), (at + 3, y - BAR / 2 - 2)];
    [14, 22].into_iter().try_for_each(|before| canvas.path(&cut(x - before), 3, Ink::Paper))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outlier_does_not_squeeze_the_other_bars() {
        let alike = |medians: &[f64]| end_of_scale(&medians.iter().map(|value| [*value; 3]).collect::<Vec<_>>());
        assert_eq!(alike(&[622.0, 822.0, 87.0, 42_288.0, 163.0, 23_007.0]), 822.0);
        assert_eq!(alike(&[45.5, 262.5, 12.0, 250.0]), 262.5, "these can be read on one scale");
        assert_eq!(alike(&[59.0, 449.0, 13.0, 78.0]), 449.0);
        assert_eq!(alike(&[1.0, 90.0, 100.0]), 100.0, "most are large");
        assert_eq!((alike(&[0.0, 5.0]), alike(&[7.0])), (5.0, 7.0));
        assert_eq!(end_of_scale(&[[10.0, 9.0, 12.0], [8.0, 8.0, 900.0]]), 20.0, "one slow run");
    }
}
