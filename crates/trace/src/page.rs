//! The report as a single HTML page: no script, nothing to fetch, and colours that follow the reader's scheme. Bars
//! show the shares of the paths, columns the latencies in powers of two.

use crate::findings::Finding;
use crate::places;
use crate::recording::Head;
use crate::report::{average, or_unknown, us, Interface, Kinds, Report, RingReport};
use std::fmt::Write;

const STYLE: &str = "
:root{--paper:#fff;--text:#1f2328;--faint:#d5d9de;--inline:#2f7d4f;--poll:#2867b2;--kernel-aio:#7a4fb0;--worker:#c8641e}
@media (prefers-color-scheme:dark){:root{--paper:#16181d;--text:#e6e6e6;--faint:#3a3f47;--inline:#5fbf86;--poll:#6ca6ea;--kernel-aio:#b795e8;--worker:#f0975a}}
body{margin:0 auto;max-width:64rem;padding:1rem;font:16px/1.5 system-ui,sans-serif;background:var(--paper);color:var(--text)}
h1{font-size:1.5rem}h2{font-size:1.2rem;margin:2rem 0 .25rem;border-top:1px solid var(--faint);padding-top:1rem}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums;width:100%}
th,td{padding:.25rem .5rem;text-align:right;border-bottom:1px solid var(--faint);white-space:nowrap}
th:nth-child(-n+4),td:nth-child(-n+4){text-align:left}
.bar{display:flex;width:10rem;height:.9rem;background:var(--faint)}
.inline{background:var(--inline);fill:var(--inline)}.poll{background:var(--poll);fill:var(--poll)}
.kernel-aio{background:var(--kernel-aio);fill:var(--kernel-aio)}
.worker{background:var(--worker);fill:var(--worker)}
.key span{display:inline-block;width:.9rem;height:.9rem;margin:0 .3rem 0 1rem;vertical-align:-.1rem}
.charts{display:flex;flex-wrap:wrap;gap:1.5rem}figure{margin:.75rem 0}figcaption{font-size:.85rem;font-weight:600}
svg{display:block;max-width:100%}svg text{font:11px system-ui,sans-serif;fill:var(--text)}line{stroke:var(--faint)}
.finding p{margin:.25rem 0 .25rem 1rem}.warning{font-weight:600}
";

/// The names of the paths, which are also the CSS classes of their colours.
const PATHS: [&str; 4] = ["inline", "poll", "kernel-aio", "worker"];
/// Size of a chart in pixels, and of the margin around the columns.
const CHART: [usize; 2] = [430, 150];
const MARGIN: [usize; 2] = [6, 34];

// Writing to a String cannot fail, so the results of `write!` below are ignored.

/// Returns the page on the requests that `backend` served.
pub fn page(report: &Report, backend: &str, head: &Head) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>anyring trace</title>\n<style>{STYLE}</style>\n\
         </head>\n<body>\n<h1>{}</h1>\n<p>Served by {}. Path of each request:<span class=\"key\">",
        escape(&head.title),
        escape(backend)
    );
    for (path, what) in
        PATHS.into_iter().zip(["in the submitting call", "after waiting", "later, by the kernel", "by a worker"])
    {
        let _ = write!(page, "<span class=\"{path}\"></span>{path} ({what})");
    }
    page.push_str("</span></p>\n");
    let _ = writeln!(page, "<p>{}{}</p>", escape(&report.spent_line().unwrap_or_default()), escape(&head.made));
    if report.rings.is_empty() {
        page.push_str("<p class=\"warning\">No ring was made.</p>\n");
    }
    if report.events_lost != 0 {
        let lost = report.events_lost;
        let _ = writeln!(
            page,
            "<p class=\"warning\">{lost} events were lost (the program was faster): all numbers are too low.</p>"
        );
    }
    if let Some(few) = report.few_line() {
        let _ = writeln!(page, "<p>{}</p>", escape(&few.replace("  -> ", " &rarr; ")));
    }
    for process in &report.processes {
        let _ = writeln!(page, "<p>{}</p>", escape(&process.to_string()));
    }
    report.rings.iter().for_each(|ring| section(ring, report, &mut page));
    page.push_str("</body>\n</html>\n");
    page
}

/// Escapes text for use between tags.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn section(ring: &RingReport, report: &Report, page: &mut String) {
    let _ = match ring.interface {
        Interface::IoUring => write!(
            page,
            "<section>\n<h2>Ring {}</h2>\n<p>SQ {}, CQ {}, flags {}. {} requests in {} enter calls ({} SQEs each \
             submission), {} CQEs, {} waits ({} CQEs each), {} overflows, {} refused, at most {} with workers.</p>\n",
            ring.ring,
            or_unknown(ring.sq_entries),
            or_unknown(ring.cq_entries),
            ring.flags(),
            ring.submitted,
            or_unknown(ring.enters),
            average(ring.sqes_per_enter),
            ring.cqes,
            ring.waits,
            average(ring.cqes_per_wait),
            ring.overflows,
            ring.refused,
            ring.most_with_workers
        ),
        Interface::Aio => write!(
            page,
            "<section>\n<h2>AIO context {}</h2>\n<p>For {} requests. {} requests in {} calls ({} iocbs each \
             submission), {} events, {} waits ({} events each), {} refused, at most {} with workers.</p>\n",
            ring.ring,
            or_unknown(ring.sq_entries),
            ring.submitted,
            or_unknown(ring.enters),
            average(ring.sqes_per_enter),
            ring.cqes,
            ring.waits,
            average(ring.cqes_per_wait),
            ring.refused,
            ring.most_with_workers
        ),
    };
    let findings: Vec<_> = report.findings.iter().filter(|finding| finding.ring == ring.ring).collect();
    // Findings with the same advice share one gain.
    for (index, finding) in findings.iter().enumerate() {
        if findings[..index].iter().any(|before| before.is_like(finding)) {
            continue;
        }
        let same = findings[index..].iter().filter(|it| it.is_like(finding));
        let told = |it: &&Finding| {
            let lines = places::lines(&it.places, true);
            std::iter::once(&it.evidence).chain(&lines).map(|line| escape(line)).collect::<Vec<_>>().join("<br>")
        };
        let evidence = same.map(told).collect::<Vec<_>>().join("<br>");
        let gain = finding.gain.map_or(String::new(), |gain| format!(": saves {gain}"));
        let advice = escape(&format!("{}{gain}", finding.advice));
        let _ = writeln!(page, "<div class=\"finding\">{evidence}<p>&rarr; {advice}</p></div>");
    }
    table(&ring.kinds, page);
    page.push_str("<div class=\"charts\">\n");
    ring.kinds.iter().filter(|kinds| !kinds.latencies.is_empty()).for_each(|kinds| chart(kinds, page));
    page.push_str("</div>\n</section>\n");
}

fn table(kinds: &[Kinds], page: &mut String) {
    if kinds.is_empty() {
        return;
    }
    page.push_str("<div class=\"scroll\"><table>\n<tr>");
    let head =
        ["request", "file", "size", "paths", "count", "p50 us", "p90 us", "p99 us", "queued us", "errors", "short"];
    head.iter().chain(&["unfinished"]).for_each(|name| _ = write!(page, "<th>{name}</th>"));
    page.push_str("</tr>\n");
    for kinds in kinds {
        let name = &kinds.kind;
        let _ = write!(
            page,
            "<tr><td>{}{}</td><td>{}</td><td>{}</td><td><div class=\"bar\">",
            escape(&name.opcode),
            places::lines(&kinds.places, false)
                .iter()
                .fold(String::new(), |all, line| all + "<br>" + &escape(line)),
            name.file,
            escape(name.size)
        );
        for (path, count) in PATHS.into_iter().zip([kinds.inline, kinds.poll, kinds.kernel_aio, kinds.worker]) {
            let percent = 100.0 * count as f64 / kinds.count.max(1) as f64;
            let _ = write!(
                page,
                "<div class=\"{path}\" style=\"width:{percent:.2}%\" title=\"{path}: {count} ({percent:.1}%)\"></div>"
            );
        }
        page.push_str("</div></td>");
        let times = [kinds.p50_ns, kinds.p90_ns, kinds.p99_ns, kinds.queued_p50_ns].map(us);
        let counts = [Some(kinds.errors), kinds.short, Some(kinds.unfinished)]
            .map(|count| count.map_or("-".to_owned(), |count| count.to_string()));
        let cells = std::iter::once(kinds.count.to_string()).chain(times).chain(counts);
        cells.for_each(|cell| _ = write!(page, "<td>{cell}</td>"));
        page.push_str("</tr>\n");
    }
    page.push_str("</table></div>\n");
}

/// Draws the latencies of one kind: a column for each power of two, in which the paths are stacked.
fn chart(kinds: &Kinds, page: &mut String) {
    let [width, height] = CHART;
    let (inner, floor) = (width - 2 * MARGIN[0], height - MARGIN[1]);
    let most = kinds.latencies.iter().map(|it| it.paths.iter().sum::<u64>()).max().unwrap_or(1).max(1);
    let step = inner as f64 / kinds.latencies.len() as f64;
    // A label needs this much room.
    let every = (58.0 / step).ceil().max(1.0) as usize;
    let caption = escape(&kinds.kind.to_string());
    let _ = write!(
        page,
        "<figure><figcaption>{caption}: latency from submission to completion</figcaption>\n\
         <svg width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" role=\"img\">"
    );
    for (place, latencies) in kinds.latencies.iter().enumerate() {
        let left = MARGIN[0] as f64 + place as f64 * step;
        let mut top = floor as f64;
        for (path, count) in PATHS.into_iter().zip(latencies.paths).filter(|(_, count)| *count != 0) {
            // A single occurrence must stay visible beside millions.
            let tall = (count as f64 / most as f64 * (floor - 8) as f64).max(1.0);
            top -= tall;
            let _ = write!(
                page,
                "<rect class=\"{path}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{tall:.1}\">\
                 <title>{path}: {count}, below {}</title></rect>",
                (step - 1.0).max(1.0),
                bound(latencies.below_ns)
            );
        }
        if place % every == 0 {
            let _ = write!(
                page,
                "<text x=\"{left:.1}\" y=\"{}\">&lt; {}</text>",
                floor + 16,
                bound(latencies.below_ns)
            );
        }
    }
    let right = width - MARGIN[0];
    let _ =
        writeln!(page, "<line x1=\"{}\" x2=\"{right}\" y1=\"{floor}\" y2=\"{floor}\"/></svg></figure>", MARGIN[0]);
}

/// A power of two as a short time.
fn bound(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.0} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.0} ms", ns as f64 / 1e6),
        _ => format!("{:.0} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Event, Summary};
    use anyring_engine::event::Kind;

    fn head(title: &str) -> Head {
        let (why, made) = ("asked for".to_owned(), "anyring on <host>".to_owned());
        Head { by_kernel: false, why, not_kernel: None, title: title.to_owned(), made }
    }

    #[test]
    fn each_kind_has_its_shares_and_its_latencies() {
        let mut summary = Summary::new(true);
        for (request, took_ns) in [(1, 900), (2, 70_000), (3, 70_000)] {
            let event =
                |kind, time_ns| Event { ring: 1, request, time_ns, len: 512, opcode: 22, ..Event::new(kind) };
            summary.add(&event(Kind::SubmitReq, 10));
            if took_ns > 1_000 {
                summary.add(&event(Kind::QueueAsyncWork, 20));
            }
            summary.add(&Event { result: 512, ..event(Kind::Complete, 10 + took_ns) });
        }
        let mut report = summary.report(0);
        let mut processes = crate::Processes::default();
        processes.insert(0, 77, "a<b");
        report.name_processes(&processes);
        let page = page(&report, "anyring", &head("sh -c 'a<b & c'"));
        assert!(page.contains("<p>anyring on &lt;host&gt;</p>"), "{page}");
        assert!(page.contains("<p>Fewer than 100 requests on a ring: "), "{page}");
        assert!(page.contains("<p>process 77 (a&lt;b): 1 ring, 3 requests, 0 calls</p>"), "{page}");
        assert!(page.contains("<h1>sh -c 'a&lt;b &amp; c'</h1>"), "{page}");
        assert!(
            page.contains("title=\"inline: 1 (33.3%)\"") && page.contains("title=\"worker: 2 (66.7%)\""),
            "{page}"
        );
        assert!(page.contains("<title>inline: 1, below 1 us</title>"), "{page}");
        assert!(page.contains("<title>worker: 2, below 131 us</title>"), "{page}");
        assert_eq!(page.matches("<svg").count(), 1);
        assert!(page.contains("<th>p50 us</th>") && page.contains("<td>70.1</td>"), "one unit a column: {page}");
    }

    #[test]
    fn a_trace_of_nothing_says_so() {
        let page = page(&Summary::new(true).report(7), "kernel", &head("true"));
        assert!(page.contains("No ring was made.") && page.contains("7 events were lost"), "{page}");
    }
}
