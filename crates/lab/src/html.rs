//! One page with everything in it: no script, nothing to fetch. Charts are inline SVG, one for a wide page and one for
//! a phone. Colours follow the reader's scheme.

use crate::backend::Backend;
use crate::chart::{self, dark_colours, light_colours};
use crate::report::{Column, Finding, Report, Row, WorkloadReport};
use crate::text;
use std::collections::BTreeSet;
use std::fmt::Write;

const STYLE: &str = "
:root{--paper:#fff;--text:#1f2328;--faint:#d5d9de;--shade:#f4f5f7;--link:#0060a0}
@media (prefers-color-scheme:dark){:root{--paper:#16181d;--text:#e6e6e6;--faint:#3a3f47;--shade:#1f2229;--link:#6cb8f0}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:46rem;padding:1rem;font:16px/1.5 system-ui,sans-serif;background:var(--paper);color:var(--text)}
h1{font-size:1.5rem;line-height:1.25}h2{font-size:1.2rem;margin:2.5rem 0 .25rem;border-top:1px solid var(--faint);padding-top:1rem}
h3{font-size:1rem;margin:1.25rem 0 .25rem}
a{color:var(--link)}
p.about,p.note{margin:.5rem 0}p.warning{font-weight:600}
figure{margin:1rem 0}figure svg{display:block;max-width:100%;height:auto}
figure svg.narrow{display:none}
@media (max-width:760px){figure svg.wide{display:none}figure svg.narrow{display:block;width:100%}}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums;width:100%}
th,td{padding:.2rem .5rem;text-align:right;border-bottom:1px solid var(--faint);white-space:nowrap}
th:first-child,td:first-child{text-align:left}
tr.row th{text-align:left;background:var(--shade);white-space:normal}
td.missing{text-align:left;white-space:normal}tr.published{opacity:.75}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem .75rem;margin:.5rem 0}dt{font-weight:600}dd{margin:0;overflow-wrap:anywhere}
summary{cursor:pointer}details{margin:.75rem 0}
svg text{font-family:system-ui,sans-serif}.f-paper{fill:none!important}
";

/// Returns the page.
pub fn page(report: &Report) -> Result<String, String> {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>anyring lab</title>\n\
         <style>{STYLE}{}@media (prefers-color-scheme:dark){{{}}}</style>\n</head>\n<body>\n",
        light_colours(),
        dark_colours()
    );
    head(report, &mut page);
    findings(report, &mut page);
    for workload in &report.workloads {
        section(workload, &mut page)?;
    }
    backends(report, &mut page);
    page.push_str("</body>\n</html>\n");
    Ok(page)
}

/// Escapes text between tags or in an attribute.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

// Writing to a String cannot fail, so the results of `write!` below are ignored.

fn head(report: &Report, page: &mut String) {
    page.push_str("<h1>anyring beside the kernel's io_uring and the alternatives</h1>\n");
    if report.quick {
        page.push_str(
            "<p class=\"warning\">Measured with --quick: this shows that it runs; the figures are worth nothing.</p>\n",
        );
    }
    page.push_str(
        "<p>Each figure is the median of its runs, and lower is better, except for rates (/s). Each run is a process of its own; \
         the backends take turns, so that a busy moment meets all of them, and the first turn is dropped. Behind a \
         ratio of medians stands its 95&nbsp;% bootstrap interval: a noisy machine shows as a wide one. Every result \
         was checked. Whiskers in charts reach from the least to the greatest run.</p>\n",
    );
    for why in &report.skipped {
        let _ = writeln!(page, "<p class=\"note\">{}</p>", escape(why));
    }
    let machine = &report.machine;
    let door = serde_json::to_value(report.door).ok().and_then(|door| door.as_str().map(str::to_owned));
    let facts = [
        ("Processor", format!("{}, {} cores", machine.cpu, machine.cores)),
        ("Machine", if machine.virtualised { "virtual, shared with others" } else { "no hypervisor" }.to_owned()),
        ("Kernel", format!("Linux {}", machine.kernel)),
        ("Mitigations", text::mitigations(report)),
        ("User", if machine.root { "root" } else { "not root" }.to_owned()),
        ("Begun", text::date(report.unix_time)),
        ("anyring", format!("{}, reached through {}", report.version, door.unwrap_or_default())),
    ];
    page.push_str("<dl>");
    for (name, value) in facts {
        let _ = write!(page, "<dt>{name}</dt><dd>{}</dd>", escape(&value));
    }
    page.push_str("</dl>\n");
}

/// The main result: each workload beside the kernel's io_uring in one line, which links to its section. Rates have a table
/// of their own, since a high ratio is good for them and bad for all others.
fn findings(report: &Report, page: &mut String) {
    page.push_str(
        "<section>\n<h2>Findings</h2>\n<p class=\"about\">How many figures of each workload are better on anyring than \
         on the kernel's io_uring, how many are worse, and how many are neither, since the ratio's interval holds 1 or \
         there are too few runs for one. The last column has the least and the greatest anyring / kernel of the \
         medians.</p>\n",
    );
    for (more_is_better, title) in
        [(false, "Times and sizes: below 1 is better on anyring"), (true, "Rates: above 1 is better on anyring")]
    {
        let found = |workload| Finding::of(workload, Backend::Kernel, more_is_better);
        let lines: Vec<_> =
            report.workloads.iter().filter_map(|workload| Some((&workload.name, found(workload)?))).collect();
        if lines.is_empty() {
            continue;
        }
        let _ = write!(
            page,
            "<h3>{title}</h3>\n<div class=\"scroll\"><table>\n<thead><tr><th></th><th>better</th><th>worse</th>\
             <th>neither</th><th>anyring / kernel</th></tr></thead>\n<tbody>\n"
        );
        for (name, Finding { better, worse, neither, ratios: [least, greatest] }) in lines {
            let _ = writeln!(
                page,
                "<tr><td><a href=\"#{0}\">{0}</a></td><td>{better}</td><td>{worse}</td><td>{neither}</td>\
                 <td>{least:.2} to {greatest:.2}</td></tr>",
                escape(name)
            );
        }
        page.push_str("</tbody></table></div>\n");
    }
    let is_compared = |workload: &&WorkloadReport| {
        [false, true].into_iter().any(|more| Finding::of(workload, Backend::Kernel, more).is_some())
    };
    let others: Vec<_> = report.workloads.iter().filter(|workload| !is_compared(workload)).collect();
    if !others.is_empty() {
        let link = |workload: &&WorkloadReport| format!("<a href=\"#{0}\">{0}</a>", escape(&workload.name));
        let links: Vec<_> = others.iter().map(link).collect();
        let _ =
            writeln!(page, "<p class=\"note\">Not compared with the kernel's io_uring: {}</p>", links.join(", "));
    }
    page.push_str("</section>\n");
}

fn section(workload: &WorkloadReport, page: &mut String) -> Result<(), String> {
    let _ = write!(
        page,
        "<section id=\"{}\">\n<h2>{}</h2>\n<p class=\"about\">{}</p>\n",
        escape(&workload.name),
        escape(&workload.title),
        escape(&workload.about)
    );
    for note in text::notes(workload) {
        let _ = writeln!(page, "<p class=\"note\">{}</p>", escape(&note));
    }
    for chart in chart::of(workload) {
        let class = |element: String, class: &str| {
            element.replacen(
                "<svg ",
                &format!("<svg class=\"{class}\" aria-label=\"{}\" ", escape(&chart.title())),
                1,
            )
        };
        let _ = write!(
            page,
            "<figure>\n{}{}</figure>\n",
            class(chart.svg_element(chart::WIDE)?, "wide"),
            class(chart.svg_element(chart::NARROW)?, "narrow")
        );
    }
    for (what, comparisons) in text::comparisons(workload) {
        let _ = writeln!(page, "<h3>{}</h3>\n<div class=\"scroll\"><table>", escape(what));
        for comparison in comparisons {
            let (of, ratio) = (escape(&comparison.of), text::estimate(&comparison.ratio, 2));
            let _ = writeln!(page, "<tr><td>{of}</td><td>{ratio}</td></tr>");
        }
        page.push_str("</table></div>\n");
    }
    let _ = writeln!(page, "<details><summary>All figures (counted runs of each: {})</summary>", workload.runs);
    for (group, rows) in workload.groups() {
        let _ = writeln!(page, "<h3>{}</h3>\n<div class=\"scroll\"><table>", escape(group));
        page.push_str(
            "<thead><tr><th></th><th>median</th><th>mean</th><th>stdev</th><th>least</th><th>most</th>\
             <th>anyring / this</th><th>beside</th></tr></thead>\n<tbody>\n",
        );
        rows.iter().for_each(|row| table(row, page));
        page.push_str("</tbody></table></div>\n");
    }
    page.push_str("</details>\n");
    let sources: BTreeSet<&str> = workload
        .rows
        .iter()
        .flat_map(|row| &row.figure.published)
        .map(|published| published.source.as_str())
        .collect();
    for source in sources {
        let _ = writeln!(page, "<p class=\"note\">Published figures, of another machine: {}.</p>", escape(source));
    }
    page.push_str("</section>\n");
    Ok(())
}

fn table(row: &Row, page: &mut String) {
    let _ = writeln!(
        page,
        "<tr class=\"row\"><th colspan=\"8\">{}, {}</th></tr>",
        escape(&text::name(row)),
        escape(&text::unit(&row.figure))
    );
    for column in &row.columns {
        let _ = writeln!(page, "<tr><td>{}</td>{}</tr>", escape(column.backend.title()), cells(column));
    }
    for published in &row.figure.published {
        let spread = published.spread.map(|spread| spread.map(text::as_published));
        let [stdev, min, max] = spread.unwrap_or_default();
        let value = text::as_published(published.value);
        let (median, mean) = if stdev.is_empty() { (value, String::new()) } else { (String::new(), value) };
        let _ = writeln!(
            page,
            "<tr class=\"published\"><td>{}</td><td>{median}</td><td>{mean}</td><td>{stdev}</td><td>{min}</td>\
             <td>{max}</td><td></td><td></td></tr>",
            escape(&published.label)
        );
    }
}

fn cells(column: &Column) -> String {
    let Some(summary) = &column.summary else {
        let why = column.missing.as_deref().unwrap_or("no run");
        return format!("<td class=\"missing\" colspan=\"7\">none here: {}</td>", escape(why));
    };
    let figures = [summary.median, summary.mean, summary.stdev, summary.min, summary.max].map(text::figure);
    let figures: String = figures.iter().map(|figure| format!("<td>{figure}</td>")).collect();
    let beside = text::punted(column).unwrap_or_default();
    format!("{figures}<td>{}</td><td>{}</td>", text::ratio(column), escape(&beside))
}

fn backends(report: &Report, page: &mut String) {
    let columns = || report.workloads.iter().flat_map(|workload| &workload.rows).flat_map(|row| &row.columns);
    let measured: BTreeSet<Backend> = columns().map(|column| column.backend).collect();
    page.push_str("<section>\n<h2>How each was used</h2>\n<dl>");
    for backend in measured {
        let _ = write!(page, "<dt>{}</dt><dd>{}</dd>", escape(backend.title()), escape(backend.follows()));
    }
    page.push_str("</dl>\n</section>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::message::Door;
    use crate::report::{Figure, SCHEMA};
    use crate::statistics::Estimate;
    use std::collections::BTreeMap;

    fn row(unit: &str, value: f64, interval: Option<[f64; 2]>) -> Row {
        let ratio = Some(Estimate { value, interval });
        let (missing, counts) = (Some("not run".to_owned()), BTreeMap::new());
        let column = Column {
            backend: Backend::Kernel,
            runs: vec![],
            summary: None,
            missing,
            ratio,
            difference: None,
            counts,
        };
        let (unit, more_is_better) = (unit.to_owned(), unit.ends_with("/s"));
        Row { figure: Figure { unit, more_is_better, ..Figure::default() }, columns: vec![column] }
    }

    fn workload(name: &str, rows: Vec<Row>) -> WorkloadReport {
        let name = name.to_owned();
        let (title, about, axis) = (String::new(), String::new(), String::new());
        let (marks, comparisons, notes) = (vec![], vec![], vec![]);
        WorkloadReport { name, title, about, axis, marks, runs: 9, rows, comparisons, notes }
    }

    #[test]
    fn findings_come_first_and_count_by_intervals_and_by_what_is_better() {
        let times = vec![
            row("ns", 0.5, Some([0.4, 0.6])),
            row("ns", 0.9, Some([0.8, 1.1])),
            row("ns", 1.5, Some([1.2, 1.7])),
            row("ns", 0.3, None),
        ];
        let rates = vec![row("passes/s", 0.5, Some([0.4, 0.6])), row("passes/s", 2.0, Some([1.9, 2.1]))];
        let report = Report {
            schema: SCHEMA,
            version: "1.2.3".to_owned(),
            unix_time: 1_735_689_599,
            quick: false,
            door: Door::Libc,
            machine: Machine::here(),
            workloads: vec![workload("times", times), workload("rates", rates), workload("other", vec![])],
            skipped: vec![],
        };
        let page = page(&report).expect("a page");
        let place = |piece: &str| page.find(piece).unwrap_or_else(|| panic!("{piece} is missing: {page}"));
        let places = [
            &format!("<dd>Linux {}</dd>", escape(&report.machine.kernel)),
            "<dd>2024-12-31 23:59 UTC</dd>",
            "<dd>1.2.3, reached through libc</dd>",
            "<h2>Findings</h2>",
            "<h3>Times and sizes: below 1 is better on anyring</h3>",
            "<a href=\"#times\">times</a></td><td>1</td><td>1</td><td>2</td><td>0.30 to 1.50</td>",
            "<h3>Rates: above 1 is better on anyring</h3>",
            "<a href=\"#rates\">rates</a></td><td>1</td><td>1</td><td>0</td><td>0.50 to 2.00</td>",
            "Not compared with the kernel's io_uring: <a href=\"#other\">other</a>",
            "<section id=\"times\">",
        ]
        .map(place);
        assert!(places.is_sorted(), "{places:?}");
    }
}
