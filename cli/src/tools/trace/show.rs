//! What `codedgrad trace stats` prints.

use codedgrad::delays::{Preset, SlowSummary, StragglerSummary, Unit};
use codedgrad_shell::units::several;
use serde::Serialize;
use std::fmt::Write as _;

/// Lengths of bursts listed one by one; longer ones are summed up.
const BURSTS_SHOWN: u64 = 8;

/// The statistics and what they are of, as printed with `--json`.
#[derive(Debug, Serialize)]
pub(crate) struct StatsOutput<'a> {
    pub(crate) delays: &'a str,
    pub(crate) unit: &'a str,
    #[serde(flatten)]
    pub(crate) summary: &'a StragglerSummary,
}

pub(crate) fn unit_name(unit: Unit) -> &'static str {
    match unit {
        Unit::StepTimes => "step_times",
        Unit::Seconds => "seconds",
    }
}

impl StatsOutput<'_> {
    /// Tables for people, at most 80 columns wide.
    pub(crate) fn tables(&self, preset: Option<Preset>) -> String {
        let found = self.summary;
        let mut text = format!(
            "{}{}\n",
            self.delays,
            preset.map_or(String::new(), |preset| format!(": {}", preset.description()))
        );
        let unit = if self.unit == "seconds" {
            "seconds"
        } else {
            "uncoded step times, the computation included"
        };
        let _ = writeln!(
            text,
            "{} of {}; times in {unit}\n",
            several(found.rounds, "round"),
            several(found.workers, "worker")
        );
        if found.not_received > 0 {
            let _ = writeln!(
                text,
                "not received  {}: slow, and counted with the largest time of the round",
                several(found.not_received, "answer")
            );
        }
        let _ = writeln!(text, "all answers   mean {:.4}, median {:.4}", found.mean, found.median);
        let fastest = found.fastest_mean;
        let median = found.round_median_mean;
        let slowest = found.slowest_mean;
        let _ = writeln!(
            text,
            "a round       fastest {fastest:.4}, median {median:.4}, slowest {slowest:.4}, on \
             average"
        );
        let _ = writeln!(
            text,
            "variation     {:.1} % within a round",
            100.0 * found.variation_within_round
        );
        let _ = writeln!(
            text,
            "static        {:.1} % of the variance is between workers' means",
            100.0 * found.static_share
        );
        for over in &found.over {
            let factor = over.factor;
            let rounds = 100.0 * over.rounds;
            let answers = 100.0 * over.answers;
            let _ = writeln!(
                text,
                "over {factor:.1} x    the median: a worker in {rounds:.1} % of rounds, \
                 {answers:.2} % of answers"
            );
        }
        let (by_mean, by_median) = (found.bound_by_mean, found.bound_by_median);
        let _ = writeln!(
            text,
            "at most       {by_mean:.2} times as fast if the work were shared out every round,"
        );
        let _ = writeln!(
            text,
            "to be gained  {by_median:.2} times if half of the workers were never waited for\n"
        );
        self.slow(&mut text);
        self.windows(&mut text);
        text
    }

    fn rules(&self) -> [&SlowSummary; 2] {
        [&self.summary.over_median, &self.summary.over_fastest]
    }

    fn slow(&self, text: &mut String) {
        let mut row = |name: &str, cell: &dyn Fn(&SlowSummary) -> String| {
            let [median, fastest] = self.rules().map(cell);
            let _ = writeln!(text, "{name:<34}{median:>20}{fastest:>22}");
        };
        row("", &|_| "slow: later than".into());
        let [median, fastest] = ["1.5 x the median", "2 x the fastest"];
        row("", &|slow| {
            (if std::ptr::eq(slow, self.rules()[0]) { median } else { fastest }).into()
        });
        let percent = |share: Option<f64>| {
            share.map_or("-".into(), |share| format!("{:.2} %", 100.0 * share))
        };
        let number =
            |number: Option<f64>| number.map_or("-".into(), |number| format!("{number:.2}"));
        row("slow answers", &|slow| format!("{} ({:.2} %)", slow.answers, 100.0 * slow.share));
        row("in a round", &|slow| {
            format!(
                "{:.2} ({} to {})",
                slow.per_round_mean, slow.per_round_least, slow.per_round_most
            )
        });
        row("variance / mean of that", &|slow| number(slow.variance_over_mean));
        row("  over the binomial (1: unrelated)", &|slow| number(slow.dispersion));
        row("workers ever slow", &|slow| slow.workers_ever.to_string());
        row("rounds in which the worst is", &|slow| percent(Some(slow.worst_worker)));
        row("P(slow again after slow)", &|slow| percent(slow.stay));
        row("P(slow after not slow)", &|slow| percent(slow.enter));
        for length in 1..=BURSTS_SHOWN {
            let count = |slow: &SlowSummary| slow.bursts.get(&length).copied().unwrap_or(0);
            if self.rules().into_iter().any(|slow| count(slow) > 0) {
                row(&format!("bursts of {length}"), &|slow| count(slow).to_string());
            }
        }
        let longer = |slow: &SlowSummary| {
            slow.bursts.range(BURSTS_SHOWN + 1..).map(|(_, count)| count).sum::<u64>()
        };
        if self.rules().into_iter().any(|slow| longer(slow) > 0) {
            row(&format!("bursts over {BURSTS_SHOWN}"), &|slow| longer(slow).to_string());
            row("the longest", &|slow| {
                slow.bursts.keys().next_back().map_or("-".into(), u64::to_string)
            });
        }
    }

    fn windows(&self, text: &mut String) {
        let [median, fastest] = self.rules();
        if median.windows.is_empty() {
            return;
        }
        text.push_str(
            "\nBursty model (B, W, lambda): the lambda that 95 % and all windows keep to, and\n",
        );
        text.push_str("the share of windows in which no worker is slow over more than B rounds\n");
        let _ = writeln!(text, "{:<14}{:>28}{:>34}", "", "1.5 x the median", "2 x the fastest");
        let _ = writeln!(
            text,
            "{:<14}{:>10}{:>8}{:>10}{:>16}{:>8}{:>10}",
            "", "95 %", "all", "share", "95 %", "all", "share"
        );
        for (median, fastest) in median.windows.iter().zip(&fastest.windows) {
            let _ = write!(text, "{:<14}", format!("B = {}, W = {}", median.burst, median.window));
            let _ = write!(
                text,
                "{:>10}{:>8}{:>8.1} %",
                median.lambda_95,
                median.lambda_all,
                100.0 * median.temporal_share
            );
            let _ = writeln!(
                text,
                "{:>16}{:>8}{:>8.1} %",
                fastest.lambda_95,
                fastest.lambda_all,
                100.0 * fastest.temporal_share
            );
        }
    }
}
