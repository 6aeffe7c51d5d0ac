//! Lines, boxes and text in one of a few colours, on SVG or a bitmap.

use crate::backend::Backend;
use plotters::backend::{BitMapBackend, DrawingBackend, SVGBackend};
use plotters::prelude::{RGBColor, ShapeStyle, TextStyle};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{register_font, Color, FontStyle, IntoFont};
use std::sync::OnceLock;

/// Pixels of a bitmap for each pixel of the drawing.
const MAGNIFIED: u32 = 2;
/// Text height in pixels.
pub const TEXT: u32 = 13;
/// Text height of a chart's title, in pixels.
const TITLE: u32 = 16;
/// plotters divides text sizes by this for SVG.
const SVG_TEXT: f64 = 1.24;
/// The height from DejaVu's ascent to its descent, as a part of the text's size. plotters takes sizes as this height in
/// bitmaps, and when it measures.
const BITMAP_TEXT: f64 = (1901.0 + 483.0) / 2048.0;

/// A colour with a meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ink {
    /// The background.
    Paper,
    /// Text.
    Text,
    /// Guide lines, and less important parts.
    Faint,
    /// Published figures of others.
    Published,
    /// The colour of a backend.
    Of(Backend),
}

impl Ink {
    /// Returns the class in SVG, and the colour on light and on dark. The palette is Okabe and Ito's for
    /// colour-blind readers, lightened on dark.
    fn colours(self) -> (&'static str, u32, u32) {
        match self {
            Ink::Paper => ("paper", 0xffffff, 0x16181d),
            Ink::Text => ("text", 0x1f2328, 0xe6e6e6),
            Ink::Faint => ("faint", 0xc9ced4, 0x4a505a),
            Ink::Published => ("published", 0x8a9099, 0x9299a3),
            Ink::Of(Backend::Anyring) => ("anyring", 0xd55e00, 0xff8a3d),
            Ink::Of(Backend::Kernel) => ("kernel", 0x0072b2, 0x4db3f0),
            Ink::Of(Backend::Epoll) => ("epoll", 0x009e73, 0x2fd3a4),
            Ink::Of(Backend::Poll) => ("poll", 0x6b4f2f, 0xc9a27a),
            Ink::Of(Backend::Libuv) => ("libuv", 0xcc79a7, 0xec9fca),
            Ink::Of(Backend::PosixAio) => ("posix-aio", 0xb58900, 0xe8c547),
            Ink::Of(Backend::KernelAio) => ("kernel-aio", 0x56b4e8, 0x93d4f9),
            Ink::Of(Backend::KernelAioPoll) => ("kernel-aio-poll", 0x56b4e8, 0x93d4f9),
            Ink::Of(Backend::AnyringAio) => ("anyring-aio", 0xe69f00, 0xffc64d),
            Ink::Of(Backend::AnyringAioPoll) => ("anyring-aio-poll", 0xcc79a7, 0xec9fca),
            Ink::Of(Backend::Threads) => ("threads", 0x6f5f9e, 0xa99be0),
            Ink::Of(Backend::Futex) => ("futex", 0x7a8b00, 0xbfd22f),
            Ink::Of(Backend::Libc) => ("libc", 0x5c6670, 0xaab4bf),
        }
    }

    fn all() -> impl Iterator<Item = Ink> {
        [Ink::Paper, Ink::Text, Ink::Faint, Ink::Published].into_iter().chain(Backend::ALL.map(Ink::Of))
    }

    fn rgb(self) -> RGBColor {
        let (_, light, _) = self.colours();
        RGBColor((light >> 16) as u8, (light >> 8) as u8, light as u8)
    }
}

fn style_sheet(colour: impl Fn((&'static str, u32, u32)) -> u32) -> String {
    let rules = Ink::all().map(|ink| {
        let (class, hex) = (ink.colours().0, colour(ink.colours()));
        format!(".f-{class}{{fill:#{hex:06x}}}.s-{class}{{stroke:#{hex:06x}}}")
    });
    rules.collect()
}

/// Returns style rules for a dark page.
pub fn dark_colours() -> String {
    style_sheet(|(_, _, dark)| dark)
}

/// Returns style rules for a light page.
pub fn light_colours() -> String {
    style_sheet(|(_, light, _)| light)
}

/// The surface of a drawing.
pub struct Canvas {
    /// Width in the drawing's pixels.
    pub width: u32,
    height: u32,
    target: Target,
}

enum Target {
    /// The elements so far. A separate plotters backend draws each.
    Svg(String),
    /// RGB.
    Bitmap(Vec<u8>),
}

fn font() {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    REGISTERED.get_or_init(|| register_font("sans-serif", FontStyle::Normal, dejavu::sans::regular()).is_ok());
}

impl Canvas {
    /// Makes a canvas for SVG.
    pub fn svg(width: u32, height: u32) -> Self {
        font();
        Canvas { width, height, target: Target::Svg(String::new()) }
    }

    /// Makes a canvas for PNG.
    pub fn bitmap(width: u32, height: u32) -> Self {
        font();
        let bytes = width as usize * height as usize * 3 * (MAGNIFIED * MAGNIFIED) as usize;
        Canvas { width, height, target: Target::Bitmap(vec![0; bytes]) }
    }

    /// Fills the background.
    pub fn fill(&mut self) -> Result<(), String> {
        let (width, height) = (self.width as i32, self.height as i32);
        self.rectangle((0, 0), (width, height), Ink::Paper)
    }

    /// Draws a filled box.
    pub fn rectangle(&mut self, from: (i32, i32), to: (i32, i32), ink: Ink) -> Result<(), String> {
        let style = ink.rgb().filled();
        self.with(ink, |drawing| drawing.rectangle(from, to, style))
    }

    /// Draws a line through these points.
    pub fn path(&mut self, points: &[(i32, i32)], width: u32, ink: Ink) -> Result<(), String> {
        let style = ink.rgb().stroke_width(width);
        self.with(ink, |drawing| drawing.path(points, style))
    }

    /// Draws a dashed line through these points: pixels drawn, pixels left out, and so on; solid if `pattern` is
    /// empty.
    pub fn dashed(&mut self, points: &[(i32, i32)], width: u32, pattern: &[u32], ink: Ink) -> Result<(), String> {
        if pattern.is_empty() {
            return self.path(points, width, ink);
        }
        let before = match &self.target {
            Target::Svg(elements) => elements.len(),
            Target::Bitmap(_) => {
                return pieces(points, pattern).iter().try_for_each(|piece| self.path(piece, width, ink))
            }
        };
        self.path(points, width, ink)?;
        let lengths: Vec<String> = pattern.iter().map(u32::to_string).collect();
        let polyline = format!("<polyline stroke-dasharray=\"{}\" ", lengths.join(" "));
        if let Target::Svg(elements) = &mut self.target {
            let line = elements.split_off(before);
            elements.push_str(&line.replace("<polyline ", &polyline));
        }
        Ok(())
    }

    /// Draws a small disc.
    pub fn disc(&mut self, centre: (i32, i32), radius: u32, ink: Ink) -> Result<(), String> {
        let style = ink.rgb().filled();
        self.with(ink, |drawing| drawing.disc(centre, radius, style))
    }

    /// Draws text at `at`: vertically its middle is there, horizontally its left end, right end or middle.
    pub fn text(&mut self, text: &str, at: (i32, i32), align: HPos, ink: Ink) -> Result<(), String> {
        self.with(ink, |drawing| drawing.text(text, at, align, TEXT, &ink.rgb()))
    }

    /// Draws a chart's title, in as many lines as it needs, from `at` down. Returns the `y` below.
    pub fn title(&mut self, title: &str, at: (i32, i32)) -> Result<i32, String> {
        self.folded(title, at, TITLE, Ink::Text)
    }

    /// Draws text in as many lines as it needs, from `at` down. Returns the `y` below.
    pub fn paragraph(&mut self, text: &str, at: (i32, i32), ink: Ink) -> Result<i32, String> {
        self.folded(text, at, TEXT, ink)
    }

    fn folded(&mut self, text: &str, (x, mut y): (i32, i32), size: u32, ink: Ink) -> Result<i32, String> {
        let room = self.width as i32 - 2 * x;
        let mut lines: Vec<String> = Vec::new();
        for word in text.split_whitespace() {
            match lines.last_mut() {
                Some(line) if width(&format!("{line} {word}"), size) <= room => line.push_str(&format!(" {word}")),
                _ => lines.push(word.to_owned()),
            }
        }
        let height = size as i32 * 3 / 2;
        for line in &lines {
            let at = (x, y + height / 2);
            self.with(ink, |drawing| drawing.text(line, at, HPos::Left, size, &ink.rgb()))?;
            y += height;
        }
        Ok(y)
    }

    /// Returns the width of `text`.
    pub fn text_width(&self, text: &str) -> i32 {
        width(text, TEXT)
    }

    fn with(&mut self, ink: Ink, draw: impl FnOnce(&mut dyn Drawing) -> Result<(), String>) -> Result<(), String> {
        let (width, height) = (self.width, self.height);
        match &mut self.target {
            Target::Bitmap(bytes) => {
                let size = (width * MAGNIFIED, height * MAGNIFIED);
                let backend = BitMapBackend::with_buffer(bytes, size);
                draw(&mut Scaled { backend, by: MAGNIFIED as i32, text: f64::from(MAGNIFIED) * BITMAP_TEXT })
            }
            Target::Svg(elements) => {
                let mut document = String::new();
                let backend = SVGBackend::with_string(&mut document, (width, height));
                draw(&mut Scaled { backend, by: 1, text: SVG_TEXT })?;
                // Omit the document's own element: the first line opens it and the last one may close it.
                let element = document.lines().skip(1).filter(|line| *line != "</svg>");
                let element: Vec<&str> = element.collect();
                let (class, light, _) = ink.colours();
                let colour = format!("#{light:06X}");
                let element = element.join("\n");
                for (attribute, prefix) in [("fill", "f"), ("stroke", "s")] {
                    let plain = format!("{attribute}=\"{colour}\"");
                    if element.contains(&plain) {
                        let classed = format!("class=\"{prefix}-{class}\" {plain}");
                        elements.push_str(&element.replace(&plain, &classed));
                        elements.push('\n');
                    }
                }
                Ok(())
            }
        }
    }

    /// Returns the drawing as an SVG element.
    pub fn into_svg(self) -> Result<String, String> {
        let (width, height) = (self.width, self.height);
        match self.target {
            Target::Svg(elements) => Ok(format!(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
                 height=\"{height}\" role=\"img\">\n{elements}</svg>\n"
            )),
            Target::Bitmap(_) => Err("the drawing is a bitmap".to_owned()),
        }
    }

    /// Returns the drawing as a PNG file.
    pub fn into_png(self) -> Result<Vec<u8>, String> {
        let Target::Bitmap(bytes) = self.target else { return Err("the drawing is no bitmap".to_owned()) };
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, self.width * MAGNIFIED, self.height * MAGNIFIED);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let failed = |error: png::EncodingError| error.to_string();
        let mut writer = encoder.write_header().map_err(failed)?;
        writer.write_image_data(&bytes).map_err(failed)?;
        writer.finish().map_err(failed)?;
        Ok(file)
    }
}

/// Returns the width of text of this height.
fn width(text: &str, size: u32) -> i32 {
    let font = ("sans-serif", f64::from(size) * BITMAP_TEXT).into_font();
    font.box_size(text).map_or(0, |(width, _)| width as i32)
}

/// Returns the drawn pieces of a dashed line. The pattern continues across corners, as SVG's does.
fn pieces(points: &[(i32, i32)], pattern: &[u32]) -> Vec<Vec<(i32, i32)>> {
    let mut pieces: Vec<Vec<(i32, i32)>> = Vec::new();
    let mut lengths =
        pattern.iter().map(|length| f64::from((*length).max(1))).cycle().zip([true, false].into_iter().cycle());
    let Some((mut left, mut drawn)) = lengths.next() else { return pieces };
    pieces.extend(points.first().map(|point| vec![*point]));
    for pair in points.windows(2) {
        let [(x0, y0), (x1, y1)] = [pair[0], pair[1]].map(|(x, y)| (f64::from(x), f64::from(y)));
        let length = (x1 - x0).hypot(y1 - y0);
        let at = |along: f64| {
            let part = along / length;
            ((x0 + (x1 - x0) * part).round() as i32, (y0 + (y1 - y0) * part).round() as i32)
        };
        let mut along = 0.0;
        while length - along > left {
            along += left;
            match (drawn, pieces.last_mut()) {
                (true, Some(piece)) => piece.push(at(along)),
                _ => pieces.push(vec![at(along)]),
            }
            (left, drawn) = lengths.next().unwrap_or((left, drawn));
        }
        left -= length - along;
        if let (true, Some(piece)) = (drawn, pieces.last_mut()) {
            piece.push(pair[1]);
        }
    }
    pieces
}

/// The drawing functions that each backend has.
trait Drawing {
    fn rectangle(&mut self, from: (i32, i32), to: (i32, i32), style: ShapeStyle) -> Result<(), String>;
    fn path(&mut self, points: &[(i32, i32)], style: ShapeStyle) -> Result<(), String>;
    fn disc(&mut self, centre: (i32, i32), radius: u32, style: ShapeStyle) -> Result<(), String>;
    /// `size` is the text's height in pixels.
    fn text(&mut self, text: &str, at: (i32, i32), align: HPos, size: u32, colour: &RGBColor)
        -> Result<(), String>;
}

struct Scaled<B> {
    backend: B,
    by: i32,
    /// plotters' size of text for each pixel of its height.
    text: f64,
}

impl<B> Scaled<B> {
    fn place(&self, (x, y): (i32, i32)) -> (i32, i32) {
        (x * self.by, y * self.by)
    }

    fn style(&self, style: ShapeStyle) -> ShapeStyle {
        ShapeStyle { stroke_width: style.stroke_width * self.by as u32, ..style }
    }
}

impl<B: DrawingBackend> Drawing for Scaled<B> {
    fn rectangle(&mut self, from: (i32, i32), to: (i32, i32), style: ShapeStyle) -> Result<(), String> {
        let (from, to) = (self.place(from), self.place(to));
        self.backend.draw_rect(from, to, &style, true).map_err(|error| error.to_string())
    }

    fn path(&mut self, points: &[(i32, i32)], style: ShapeStyle) -> Result<(), String> {
        let points: Vec<_> = points.iter().map(|point| self.place(*point)).collect();
        self.backend.draw_path(points, &self.style(style)).map_err(|error| error.to_string())
    }

    fn disc(&mut self, centre: (i32, i32), radius: u32, style: ShapeStyle) -> Result<(), String> {
        let (centre, radius) = (self.place(centre), radius * self.by as u32);
        self.backend.draw_circle(centre, radius, &style, true).map_err(|error| error.to_string())
    }

    fn text(
        &mut self,
        text: &str,
        at: (i32, i32),
        align: HPos,
        size: u32,
        colour: &RGBColor,
    ) -> Result<(), String> {
        let style = TextStyle::from(("sans-serif", f64::from(size) * self.text).into_font());
        let style = style.color(colour).pos(Pos::new(align, VPos::Center));
        self.backend.draw_text(text, &style, self.place(at)).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dashes_go_on_across_corners() {
        let corner = [(0, 0), (6, 0), (6, 10)];
        assert_eq!(
            pieces(&corner, &[4, 3]),
            [vec![(0, 0), (4, 0)], vec![(6, 1), (6, 5)], vec![(6, 8), (6, 10)]],
            "the first gap is round the corner"
        );
        assert_eq!(pieces(&corner, &[8, 4]), [vec![(0, 0), (6, 0), (6, 2)], vec![(6, 6), (6, 10)]]);
        assert_eq!(pieces(&[], &[4, 3]), Vec::<Vec<_>>::new());
        assert_eq!(pieces(&[(1, 1), (1, 1)], &[4, 3]), [vec![(1, 1), (1, 1)]], "no length, no endless loop");
    }
}
