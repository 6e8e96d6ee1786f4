//! The answer as a page: one HTML file without scripts, which needs nothing else.

use super::advice::Advice;
use super::text;
use codedgrad::doctor::{HeatMap, HeatRow, Record, RoundBin, RunContext, RunEvent};
use codedgrad_shell::itself::VERSION;
use codedgrad_shell::layout::Width;
use codedgrad_shell::output::plain;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// How a page begins, by which it is known again.
pub(super) const OPENING: &str = "<!doctype html><!-- codedgrad doctor -->";
/// A page is no longer: mail servers refuse large attachments.
const BYTES_MOST: usize = 2_000_000;
/// Columns of the map, and fewer for a page that would be too long.
const BINS_MOST: [usize; 5] = [400, 200, 100, 50, 25];
/// Workers in the map.
const ROWS_MOST: usize = 64;
/// Findings, workers, schemes and events that are listed.
const LISTED_MOST: usize = 250;
/// Letters of a name: longer ones would widen the page.
const NAME_MOST: usize = 48;
/// The map has so many colours, from a ratio of 1 to this one.
const COLOURS: usize = 16;
const RATIO_MOST: f64 = 1.5;
/// One hue for all of them: lightness alone tells them apart, for colour-blind readers too.
const HUE: u32 = 215;
/// Lightness in percent of the first colour and the last, on a light page and on a dark one.
const LIGHTNESS: [(f64, f64); 2] = [(94.0, 20.0), (24.0, 92.0)];

/// The styles but for the map's colours.
const STYLE: &str = include_str!("page.css");

/// The page of an answer; of the longest runs with fewer columns than of others.
pub(super) fn of(record: &Record, known: &RunContext<'_>, advice: &Advice<'_>) -> String {
    let shortened: Vec<String> = advice.names.iter().map(|name| short(name)).collect();
    let advice = &Advice { names: &shortened, ..*advice };
    let page = |bins| {
        let map = HeatMap::of(record, known.registry, ROWS_MOST, bins);
        Page { record, known, advice, map: &map }.text()
    };
    let fits = |page: &String| page.len() <= BYTES_MOST;
    let [.., fewest] = BINS_MOST;
    BINS_MOST.into_iter().map(page).find(fits).unwrap_or_else(|| page(fewest))
}

/// What a page is made of.
struct Page<'a> {
    record: &'a Record,
    known: &'a RunContext<'a>,
    advice: &'a Advice<'a>,
    map: &'a HeatMap,
}

/// A name of at most so many letters.
fn short(name: &str) -> String {
    match name.char_indices().nth(NAME_MOST) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.into(),
    }
}

/// Text of others as it may stand in a page.
fn html(text: &str) -> String {
    let mut html = String::with_capacity(text.len() + 16);
    for c in plain(text).chars() {
        match c {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            c => html.push(c),
        }
    }
    html
}

/// The colours of the map, and the styles.
fn style() -> String {
    let [light, dark] = LIGHTNESS.map(|(first, last)| {
        let colour = |at: usize| {
            let lightness = first + (last - first) * at as f64 / (COLOURS - 1) as f64;
            format!(".{}{{fill:hsl({HUE} 70% {lightness:.0}%)}}", class(at))
        };
        (0..COLOURS).map(colour).collect::<String>()
    });
    // Paper is light, whatever the screen is.
    format!("{STYLE}{light}@media screen and (prefers-color-scheme:dark){{{dark}}}")
}

/// The class of a colour.
fn class(colour: usize) -> char {
    char::from(b'a' + colour as u8)
}

/// The colour of a ratio.
fn colour(ratio: f64) -> usize {
    let share = (ratio - 1.0) / (RATIO_MOST - 1.0);
    ((share * COLOURS as f64) as usize).min(COLOURS - 1)
}

/// `step 3` or `steps 3 to 9`.
fn steps((first, last): (u64, u64)) -> String {
    if first == last { format!("step {first}") } else { format!("steps {first} to {last}") }
}

impl Page<'_> {
    fn text(&self) -> String {
        let heading = html(&text::heading(self.advice));
        let mut page = format!(
            "{OPENING}\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
             <meta http-equiv=\"Content-Security-Policy\" \
             content=\"default-src 'none';style-src 'unsafe-inline'\">\n\
             <title>codedgrad doctor: {heading}</title>\n<style>{}</style></head>\n\
             <body><header><b>codedgrad doctor</b> {heading}</header>\n",
            style()
        );
        self.findings(&mut page);
        self.time(&mut page);
        self.rounds(&mut page);
        self.workers(&mut page);
        self.events(&mut page);
        if let Some(plan) = self.advice.plan {
            let table = text::schemes(self.advice, plan, LISTED_MOST).laid_out(Width::ENDLESS);
            let (table, why) = (html_lines(&table), html(&plan.why));
            let _ = write!(page, "<h2>Other schemes</h2>\n<pre>{table}</pre>\n<p>{why}</p>\n");
        }
        let _ = writeln!(page, "<footer>codedgrad {}</footer></body></html>", html(VERSION));
        page
    }

    /// The verdict, and what to do.
    fn findings(&self, page: &mut String) {
        let found = self.advice.found;
        page.push_str("<h1>What is wrong, and what to do</h1>\n");
        if found.findings.is_empty() {
            let nothing = html(text::nothing(self.advice).trim());
            let _ = writeln!(page, "<p class=verdict>{nothing}</p>");
        }
        page.push_str("<ol>\n");
        for finding in found.findings.iter().take(LISTED_MOST) {
            let (cost, told) = text::priced(finding, self.advice);
            let _ = write!(page, "<li><p class=verdict><b>{cost}:</b> {}.</p>", html(&told));
            if let Some(command) = self.advice.command(finding) {
                let _ = write!(page, "<p>try: <code>{}</code></p>", html(&command));
            }
            page.push_str("</li>\n");
        }
        page.push_str("</ol>\n");
        if found.findings.len() > LISTED_MOST {
            let rest = found.findings.len() - LISTED_MOST;
            let _ = writeln!(page, "<p>And {rest} more: --json has them all.</p>");
        }
        for line in text::summary(self.advice).lines() {
            let _ = writeln!(page, "<p>{}</p>", html(line));
        }
        for gone in self.advice.not_seen.iter().take(LISTED_MOST) {
            let _ = writeln!(page, "<p>Not seen: {}.</p>", html(gone));
        }
        for caution in &found.cautions {
            let _ = writeln!(page, "<p><b>Warning:</b> {}.</p>", html(&caution.to_string()));
        }
    }

    fn time(&self, page: &mut String) {
        let time = &self.advice.found.time;
        page.push_str("<h2>Where the time went</h2>\n<table class=time>\n");
        for (name, seconds, what) in text::parts(time) {
            let share = time.share(seconds);
            let _ = writeln!(
                page,
                "<tr><th>{name}<br><small>{what}</small><td class=n>{seconds:.3} s<td class=n>{}\
                 <td class=bar><svg viewBox=\"0 0 100 1\" preserveAspectRatio=\"none\">\
                 <rect class=r width={:.1} height=1 /></svg>",
                text::percent(share),
                100.0 * share
            );
        }
        page.push_str("</table>\n");
    }

    /// The times of rounds and the map, above one another.
    fn rounds(&self, page: &mut String) {
        let HeatMap { bins, rows } = self.map;
        let Some((first, last)) = bins.first().zip(bins.last()) else { return };
        let longest = bins.iter().map(|bin| bin.seconds).fold(f64::MIN_POSITIVE, f64::max);
        let picture = |height: usize| {
            let columns = bins.len();
            format!("<svg viewBox=\"0 0 {columns} {height}\" preserveAspectRatio=\"none\"")
        };
        let _ = write!(
            page,
            "<section><h2>Rounds and workers by steps</h2>\n<p>{}</p>\n<div class=map>\n\
             <div class=names><span>seconds of a round, up to {longest:.3}</span></div>\n\
             {} class=s>",
            self.caption(),
            picture(1)
        );
        for (at, bin) in bins.iter().enumerate() {
            let height = bin.seconds / longest;
            let _ = write!(
                page,
                "<rect class=r x={at} y={:.3} width=1 height={height:.3}><title>{}: {:.3} s\
                 </title></rect>",
                1.0 - height,
                steps(bin.steps),
                bin.seconds
            );
        }
        page.push_str("</svg>\n");
        self.marks(&picture(1), page);
        if !rows.is_empty() {
            page.push_str("<div class=names>");
            for row in rows {
                let _ = write!(page, "<span>{}</span>", html(&self.worker(row.worker)));
            }
            let (picture, height) = (picture(rows.len()), rows.len());
            let _ = writeln!(page, "</div>\n{picture} style=\"height:calc({height}*var(--row))\">");
            rows.iter().enumerate().for_each(|(at, row)| self.row(at, row, page));
            page.push_str("</svg>\n");
        }
        let _ = writeln!(
            page,
            "<div></div><div class=axis><span>step {}</span><span>step {}</span></div></div>",
            first.steps.0, last.steps.1
        );
        if !rows.is_empty() {
            legend(page);
        }
        page.push_str("</section>\n");
    }

    /// What the map shows.
    fn caption(&self) -> String {
        let HeatMap { bins, rows } = self.map;
        let (rounds, workers) = (self.record.rounds(), self.record.workers());
        let mut caption = match rounds.div_ceil(bins.len().max(1)) {
            1 => "A column is a round.".to_owned(),
            most => {
                format!("A column is the mean of up to {most} rounds, named by its first step.")
            }
        };
        if rows.is_empty() {
            caption += " Results under this scheme do not tell how fast a worker is, so there is \
                        no map of workers.";
        } else {
            caption += " Below, a row is a worker: how many times as long as the round's median it \
                        took. Numbers appear under the pointer.";
        }
        if !rows.is_empty() && rows.len() < workers {
            let _ = write!(caption, " These are the {} slowest of {workers} workers.", rows.len());
        }
        caption
    }

    fn worker(&self, worker: usize) -> String {
        format!("worker {}", self.advice.name(worker))
    }

    /// A row of the map; neighbours of one colour are one rectangle.
    fn row(&self, at: usize, row: &HeatRow, page: &mut String) {
        let worker = html(&self.worker(row.worker));
        let _ = write!(page, "<g transform=translate(0,{at})>");
        let mut from = 0;
        for cells in row.cells.chunk_by(|a, b| a.map(colour) == b.map(colour)) {
            let bins = &self.map.bins[from..from + cells.len()];
            let class = cells[0].map_or('z', |ratio| class(colour(ratio)));
            let _ = write!(page, "<rect class={class} x={from}");
            // The style gives one cell its width: a page of a million results is to stay small.
            if cells.len() > 1 {
                let _ = write!(page, " width={}", cells.len());
            }
            let _ =
                write!(page, "><title>{worker}, {}: {}</title></rect>", span(bins), range(cells));
            from += cells.len();
        }
        page.push_str("</g>\n");
    }

    /// Marks of events, above the columns of their steps.
    fn marks(&self, picture: &str, page: &mut String) {
        let mut marks: BTreeMap<usize, Vec<&RunEvent>> = BTreeMap::new();
        for (_, event) in self.record.dated_events(self.known.events) {
            let step = event.step.unwrap_or(0);
            let bin = self.map.bins.partition_point(|bin| bin.steps.1 < step);
            marks.entry(bin.min(self.map.bins.len() - 1)).or_default().push(event);
        }
        if marks.is_empty() {
            return;
        }
        let _ = write!(page, "<div class=names><span>events</span></div>\n{picture}>");
        for (bin, events) in marks {
            let words = events.iter().take(3).map(|event| self.told(event)).collect::<Vec<_>>();
            let rest = events.len() - words.len();
            let rest = if rest > 0 { format!("; {rest} more") } else { String::new() };
            let words = html(&words.join("; "));
            let _ = write!(
                page,
                "<rect class=x x={bin} width=1 height=1><title>{words}{rest}</title></rect>"
            );
        }
        page.push_str("</svg>\n");
    }

    /// An event in words.
    fn told(&self, event: &RunEvent) -> String {
        let step = event.step.map_or(String::new(), |step| format!("step {step}, "));
        let worker = event.worker.map_or(String::new(), |it| format!("{}, ", self.worker(it)));
        let what = if event.what.is_empty() { String::new() } else { format!(": {}", event.what) };
        // Words of a program that failed may be as long as its output.
        format!("{step}{worker}{}{}", event.kind, what.chars().take(200).collect::<String>())
    }

    fn workers(&self, page: &mut String) {
        let named = text::named(self.advice.found, LISTED_MOST);
        if named.is_empty() {
            return;
        }
        page.push_str("<h2>Workers worth naming</h2>\n<div class=wide><table>\n<tr>");
        for (head, _) in text::WORKER_COLUMNS {
            let _ = write!(page, "<th>{}", head.replace('\n', " "));
        }
        for worker in named {
            page.push_str("\n<tr>");
            for cell in text::cells(worker, self.advice) {
                let _ = write!(page, "<td>{}", html(&cell));
            }
        }
        page.push_str("\n</table></div>\n");
    }

    fn events(&self, page: &mut String) {
        let counts = &self.advice.found.events;
        if counts.is_empty() {
            return;
        }
        let counts = counts.iter().map(|(kind, count)| format!("{kind} x {count}"));
        let counts = html(&counts.collect::<Vec<_>>().join(", "));
        let _ = write!(page, "<h2>Events</h2>\n<p>{counts}</p>\n<ul>\n");
        let events: Vec<_> = self.record.dated_events(self.known.events).collect();
        for (_, event) in events.iter().take(LISTED_MOST) {
            let _ = writeln!(page, "<li>{}</li>", html(&self.told(event)));
        }
        page.push_str("</ul>\n");
        if events.len() > LISTED_MOST {
            let rest = events.len() - LISTED_MOST;
            let _ = writeln!(page, "<p>And {rest} more: events.jsonl has them all.</p>");
        }
    }
}

/// The steps of one column, or of several.
fn span(bins: &[RoundBin]) -> String {
    match bins {
        [bin] => format!("step {}", bin.steps.0),
        [first, .., last] => steps((first.steps.0, last.steps.1)),
        [] => String::new(),
    }
}

/// The ratios of neighbours of one colour.
fn range(cells: &[Option<f64>]) -> String {
    let ratios = || cells.iter().flatten().copied();
    let Some(least) = ratios().reduce(f64::min) else { return "estimated".into() };
    let (least, most) = (format!("{least:.2}"), format!("{:.2}", ratios().fold(0.0, f64::max)));
    if least == most { least } else { format!("{least} to {most}") }
}

/// The same of lines that stay lines.
fn html_lines(text: &str) -> String {
    text.lines().map(|line| html(line) + "\n").collect()
}

/// Which colour is which ratio.
fn legend(page: &mut String) {
    page.push_str("<p class=legend>times the median: 1.00 or less <svg viewBox=\"0 0 16 1\">");
    for at in 0..COLOURS {
        let ratio = 1.0 + (RATIO_MOST - 1.0) * at as f64 / COLOURS as f64;
        let class = class(at);
        let _ = write!(page, "<rect class={class} x={at}><title>from {ratio:.2}</title></rect>");
    }
    let _ = writeln!(
        page,
        "</svg> {RATIO_MOST:.2} or more; <svg class=one viewBox=\"0 0 1 1\"><rect class=z x=0 />\
         </svg> a thin line: no time is known, all are estimates</p>"
    );
}
