//! The report of `anyring lab --out` in a real browser. Charts are drawn, no labels overlap, nothing is wider than a
//! phone, and a dark page is dark. The pictures stay in the target folder, for people.

mod common;

use common::{anyring, lab_worker, output, skipped};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names of the browser in distributions.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    BROWSERS.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name))).find(|file| file.is_file())
}

/// Runs in a page around the report, which is in a frame of the tested width. Writes the faults as JSON to an element
/// that `--dump-dom` prints.
const INSPECTION: &str = r#"
function inspect(frame) {
  const page = frame.contentDocument, view = frame.contentWindow, faults = [];
  const visible = [...page.querySelectorAll('figure svg')].filter(svg => svg.getBoundingClientRect().width > 0);
  for (const svg of visible) {
    const name = svg.getAttribute('aria-label'), edge = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll('text')].map(text => [text.textContent.trim(), text.getBoundingClientRect()]);
    const marks = [...svg.querySelectorAll('polyline, circle, rect:not(.f-paper)')];
    if (texts.length < 3 || marks.length < 1) faults.push(`${name}: ${texts.length} labels, ${marks.length} marks`);
    for (const mark of marks) {
      const paint = view.getComputedStyle(mark);
      if (paint.fill === 'none' && paint.stroke === 'none') faults.push(`${name}: a mark without colour`);
    }
    texts.forEach(([text, box], index) => {
      if (box.width <= 0 || box.height < 12) faults.push(`${name}: '${text}' is ${box.width} x ${box.height}`);
      if (box.left < edge.left - 1 || box.right > edge.right + 1 || box.top < edge.top - 2 || box.bottom > edge.bottom + 2)
        faults.push(`${name}: '${text}' is outside of its chart`);
      for (const [other, place] of texts.slice(index + 1)) {
        const across = Math.min(box.right, place.right) - Math.max(box.left, place.left);
        const down = Math.min(box.bottom, place.bottom) - Math.max(box.top, place.top);
        if (across > 0.5 && down > 1) faults.push(`${name}: '${text}' and '${other}' overlap`);
      }
    });
  }
  const body = view.getComputedStyle(page.body);
  const label = view.getComputedStyle(page.querySelector('figure svg text'));
  return {
    charts: visible.length, faults, width: page.documentElement.scrollWidth, frame: view.innerWidth,
    paper: body.backgroundColor, text: body.color, label: label.fill,
  };
}
onload = () => {
  const frame = document.querySelector('iframe'), result = document.createElement('pre');
  result.id = 'result';
  result.textContent = '@@' + JSON.stringify(inspect(frame)) + '@@';
  document.body.append(result);
};
"#;

struct Report {
    folder: tempfile::TempDir,
    browser: PathBuf,
}

impl Report {
    /// The command that opens `page` once, in a profile of its own.
    fn look(&self, page: &Path, width: u32, dark: bool) -> Command {
        let mut command = Command::new("timeout");
        command.arg("100").arg(&self.browser);
        let scheme = if dark { 0 } else { 1 };
        let profile = self.folder.path().join(format!("profile-{width}-{dark}"));
        command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]);
        command.arg(format!("--user-data-dir={}", profile.display()));
        command.arg(format!("--blink-settings=preferredColorScheme={scheme}"));
        command.arg(format!("--window-size={},2400", width.max(500)));
        command.arg("--virtual-time-budget=20000");
        command.arg(format!("file://{}", page.display()));
        command
    }

    /// The faults that [`INSPECTION`] finds in a frame of this width.
    fn inspect(&self, width: u32, dark: bool) -> Value {
        let report = std::fs::read_to_string(self.folder.path().join("report.html")).expect("report.html");
        let quoted = report.replace('&', "&amp;").replace('"', "&quot;");
        // In a frame, since a window cannot be as narrow as a phone.
        let around = format!(
            "<!doctype html><meta charset=utf-8><style>body{{margin:0}}iframe{{border:0;width:{width}px;height:2400px}}\
             </style><script>{INSPECTION}</script><iframe srcdoc=\"{quoted}\"></iframe>"
        );
        let page = self.folder.path().join(format!("around-{width}-{dark}.html"));
        std::fs::write(&page, around).expect("write");
        let output = output(self.look(&page, width, dark).arg("--dump-dom"));
        let document = String::from_utf8_lossy(&output.stdout).into_owned();
        let found = document.split("@@").nth(3).or_else(|| document.split("@@").nth(1));
        let found =
            found.unwrap_or_else(|| panic!("the browser said: {}", String::from_utf8_lossy(&output.stderr)));
        let plain = found.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
        serde_json::from_str(&plain).unwrap_or_else(|error| panic!("{error}: {plain}"))
    }

    /// A picture of the first screens, for people.
    fn picture(&self, name: &str, width: u32, dark: bool) {
        let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("lab-report-{name}.png"));
        let page = self.folder.path().join(format!("around-{width}-{dark}.html"));
        let mut command = self.look(&page, width, dark);
        output(command.arg(format!("--screenshot={}", to.display())));
        let bytes = std::fs::read(&to).unwrap_or_else(|error| panic!("{}: {error}", to.display()));
        assert!(bytes.starts_with(b"\x89PNG") && bytes.len() > 20_000, "{}", to.display());
    }
}

/// The sum of a CSS colour's three parts: 0 is black, 765 white.
fn brightness(colour: &Value) -> u32 {
    let text = colour.as_str().unwrap_or_else(|| panic!("{colour} is no colour"));
    let parts = text.split(|letter: char| !letter.is_ascii_digit()).filter_map(|part| part.parse::<u32>().ok());
    let parts: Vec<u32> = parts.take(3).collect();
    assert_eq!(parts.len(), 3, "{text}");
    parts.iter().sum()
}

#[test]
#[ignore = "soak: it measures, and needs a Chromium"]
fn the_page_is_readable_wide_on_a_phone_and_in_the_dark() {
    let Some(browser) = browser() else {
        return skipped("the report in a browser: no Chromium here; on Debian: apt-get install chromium");
    };
    lab_worker();
    let report = Report { folder: tempfile::tempdir().expect("a folder"), browser };
    let path = report.folder.path().to_str().expect("a path of text");
    let measured = output(&mut anyring(&["lab", "--quick", "--out", path]));
    let complaint = String::from_utf8_lossy(&measured.stderr);
    if complaint.contains("liburing2") {
        return skipped(&format!("the report in a browser: {complaint}"));
    }
    assert_eq!(measured.status.code(), Some(0), "{complaint}");
    for (name, width, dark) in [("wide", 1100, false), ("phone", 360, false), ("phone-dark", 360, true)] {
        let found = report.inspect(width, dark);
        assert_eq!(found["faults"], Value::Array(vec![]), "{name}");
        assert!(found["charts"].as_u64() >= Some(20), "{name}: {found}");
        assert_eq!(found["width"], found["frame"], "{name}: the page is wider than its window");
        assert_eq!(found["frame"], width, "{name}");
        let [paper, text, label] = ["paper", "text", "label"].map(|field| brightness(&found[field]));
        let contrast = if dark { text.min(label).checked_sub(paper) } else { paper.checked_sub(text.max(label)) };
        assert!(contrast >= Some(400), "{name}: {found}");
        report.picture(name, width, dark);
    }
}
