//! Charts of a workload, drawn by one code in two formats: SVG, whose colours follow the reader's scheme, and PNG.
//!
//! Bars are horizontal, so that names have room on a phone. All bars of one unit in a chart share a scale that
//! begins at zero. Rows with a place on an axis (depths, connections, percentiles) become lines, which differ also by
//! dashes and markers. The figures are the medians. A chart is complete in itself: it has its title, its unit, the
//! better direction, and the source of published figures.

mod bars;
mod canvas;
mod lines;
mod scale;
mod style;
#[cfg(test)]
mod tests;

use crate::report::{Row, WorkloadReport};
pub use canvas::{dark_colours, light_colours};
use canvas::{Canvas, Ink};
use std::collections::BTreeSet;

/// The width of a chart for a page, in pixels.
pub const WIDE: u32 = 720;
/// The width of a chart for a phone.
pub const NARROW: u32 = 340;
const MARGIN: i32 = 8;

/// One chart.
#[derive(Debug, Clone, Copy)]
pub struct Chart<'a> {
    workload: &'a WorkloadReport,
    group: &'a str,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bars,
    Lines,
}

/// The charts of a workload, in the order of its groups.
pub fn of(workload: &WorkloadReport) -> Vec<Chart<'_>> {
    let groups = workload.groups();
    let measured = |row: &&Row| row.columns.iter().any(|column| column.summary.is_some());
    groups
        .iter()
        .filter(|(_, rows)| rows.iter().any(measured))
        .map(|(group, rows)| {
            let mut places: Vec<f64> = rows.iter().filter_map(|row| row.figure.x).collect();
            places.dedup();
            Chart { workload, group, kind: if places.len() > 2 { Kind::Lines } else { Kind::Bars } }
        })
        .collect()
}

impl Chart<'_> {
    /// Returns a readable name without characters that are unsuitable for files.
    pub fn file_name(&self) -> String {
        let text = match self.group == self.workload.name {
            true => self.group.to_owned(),
            false => format!("{} {}", self.workload.name, self.group),
        };
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        words.collect::<Vec<_>>().join("-").to_lowercase()
    }

    /// Returns the chart's title.
    pub fn title(&self) -> String {
        match self.group == self.workload.name {
            true => self.workload.title.clone(),
            false => format!("{}: {}", self.workload.title, self.group),
        }
    }

    fn rows(&self) -> Vec<&Row> {
        self.workload.rows.iter().filter(|row| row.figure.group == self.group).collect()
    }

    /// Returns an SVG element for a page that has [`light_colours`] and [`dark_colours`] in its style.
    pub fn svg_element(&self, width: u32) -> Result<String, String> {
        let mut canvas = Canvas::svg(width, self.height(width)?);
        self.draw(&mut canvas)?;
        canvas.into_svg()
    }

    /// Returns an SVG file.
    pub fn svg_file(&self) -> Result<String, String> {
        let element = self.svg_element(WIDE)?;
        let style = format!("<style>@media (prefers-color-scheme: dark) {{ {} }}</style>", dark_colours());
        let begin = element.find('>').ok_or("an SVG without an element")? + 1;
        Ok(format!("{}{style}{}", &element[..begin], &element[begin..]))
    }

    /// Returns a PNG file, at twice the size, in light colours.
    pub fn png_file(&self) -> Result<Vec<u8>, String> {
        let mut canvas = Canvas::bitmap(WIDE, self.height(WIDE)?);
        self.draw(&mut canvas)?;
        canvas.into_png()
    }

    /// Returns the height that drawing needs. It is found by drawing, so that both agree.
    fn height(&self, width: u32) -> Result<u32, String> {
        self.draw(&mut Canvas::svg(width, 1))
    }

    fn draw(&self, canvas: &mut Canvas) -> Result<u32, String> {
        canvas.fill()?;
        let rows = self.rows();
        let mut y = canvas.title(&self.title(), (MARGIN, MARGIN))? + MARGIN / 2;
        y = match self.kind {
            Kind::Bars => bars::draw(canvas, y, &rows)?,
            Kind::Lines => lines::draw(canvas, y, self.workload, &rows)?,
        };
        let sources: BTreeSet<&str> =
            rows.iter().flat_map(|row| &row.figure.published).map(|figure| figure.source.as_str()).collect();
        for source in sources {
            let note = format!("Grey: published, another machine ({source})");
            y = canvas.paragraph(&note, (MARGIN, y), Ink::Text)?;
        }
        Ok((y + MARGIN) as u32)
    }
}
