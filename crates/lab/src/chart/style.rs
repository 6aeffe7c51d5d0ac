//! Lines of one chart differ not only by colour. They have dashes, whose gaps show a line below, and markers. Most
//! markers are hollow and show the lines below them.

use super::canvas::{Canvas, Ink};

/// Half of a marker's width, in pixels.
const REACH: i32 = 4;
/// Width of a line, in pixels.
const WIDTH: u32 = 2;
/// Pixels drawn, pixels left out, and so on. The first line of a chart is drawn first, and solid: it shows through the
/// gaps of the later lines.
const DASHES: [&[u32]; 5] = [&[], &[9, 5], &[3, 4], &[11, 4, 3, 4], &[6, 8]];
const MARKERS: [Marker; 6] =
    [Marker::Disc, Marker::Square, Marker::Cross, Marker::Triangle, Marker::Plus, Marker::Diamond];

/// The marker at each point of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Marker {
    /// Filled; all others are hollow.
    Disc,
    Square,
    Cross,
    Triangle,
    Plus,
    Diamond,
}

/// The style of one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    dashes: &'static [u32],
    marker: Marker,
}

impl Style {
    /// Returns the style of the line with this number in its chart, from 0. No two of the first 30 are alike.
    pub fn of(line: usize) -> Self {
        Style { dashes: DASHES[line % DASHES.len()], marker: MARKERS[line % MARKERS.len()] }
    }

    /// Draws the line, with a marker at each of `marked`.
    pub fn draw(
        self,
        canvas: &mut Canvas,
        points: &[(i32, i32)],
        marked: &[(i32, i32)],
        ink: Ink,
    ) -> Result<(), String> {
        canvas.dashed(points, WIDTH, self.dashes, ink)?;
        marked.iter().try_for_each(|point| self.mark(canvas, *point, ink))
    }

    fn mark(self, canvas: &mut Canvas, (x, y): (i32, i32), ink: Ink) -> Result<(), String> {
        const R: i32 = REACH;
        let outline: &[&[(i32, i32)]] = match self.marker {
            Marker::Disc => return canvas.disc((x, y), REACH as u32, ink),
            Marker::Square => &[&[(-R, -R), (R, -R), (R, R), (-R, R), (-R, -R)]],
            Marker::Cross => &[&[(-R, -R), (R, R)], &[(-R, R), (R, -R)]],
            Marker::Triangle => &[&[(0, -R - 1), (R + 1, R), (-R - 1, R), (0, -R - 1)]],
            Marker::Plus => &[&[(-R - 1, 0), (R + 1, 0)], &[(0, -R - 1), (0, R + 1)]],
            Marker::Diamond => &[&[(0, -R - 2), (R + 2, 0), (0, R + 2), (-R - 2, 0), (0, -R - 2)]],
        };
        outline.iter().try_for_each(|stroke| {
            let stroke: Vec<_> = stroke.iter().map(|(across, down)| (x + across, y + down)).collect();
            canvas.path(&stroke, WIDTH, ink)
        })
    }
}
