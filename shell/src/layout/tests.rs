//! Lines of a terminal.

#![cfg(test)]

use super::*;

fn table() -> Table {
    let mut table = Table::new([
        Column::left("scheme"),
        Column::right("s/step\nmean"),
        Column::right("p50").spare(2),
        Column::right("p95").spare(1),
        Column::right("rounds"),
    ])
    .remarks("why");
    let cells = |name: &str| -> Vec<String> {
        [name, "0.456", "0.455", "0.465", "12"].map(String::from).into()
    };
    table.remarked(cells("uncoded"), "what all are compared with");
    table.remarked(cells("defer:T=1,cap=12,cut=16"), "the fastest, by far");
    table
}

#[test]
fn tables_fit() {
    let at = |columns| format!("{columns}:\n{}", table().laid_out(Width::of(columns)));
    insta::assert_snapshot!([120, 60, 45, 38, 20].map(at).join("\n"));
    let endless = table().laid_out(Width::ENDLESS);
    assert_eq!(endless, table().laid_out(Width::of(120)));
    for columns in 20..120 {
        let text = table().laid_out(Width::of(columns));
        let widest = text.lines().map(display_width).max().unwrap_or(0);
        assert!(widest <= columns.max(32), "{columns}: {widest}\n{text}");
    }
}

#[test]
fn help_is_wrapped_and_commands_can_be_copied() {
    let text = "Sentences that the source breaks into lines\nof its own.\n\n\
        Delays:  a list of words | that goes\n         on and on\nTrace:   another one\n\n\
        Examples:\n  codedgrad code groups:s=1    # shown\n  \
        codedgrad code matrix:m.csv --workers 12 --verify    # is it true?";
    insta::assert_snapshot!([80, 40].map(|width| help_at(text, width)).join("\n---\n"));
}

#[test]
fn a_command_can_be_copied_from_any_terminal() {
    let at = |columns: usize, command: &str| Width::of(columns).with_command("To check:", command);
    assert_eq!(at(40, "codedgrad plan -q"), "To check: codedgrad plan -q");
    assert_eq!(at(30, "codedgrad plan --delays a"), "To check:\n  codedgrad plan --delays a");
    assert_eq!(
        at(30, "codedgrad plan --delays calm --workers 8"),
        "To check:\n  codedgrad plan --delays \\\n      calm --workers 8"
    );
    let quoted = "codedgrad plan --delays 'my own file.csv'";
    assert_eq!(at(30, quoted), format!("To check:\n  {quoted}"));
    assert_eq!(Width::ENDLESS.with_command("To check:", quoted), format!("To check: {quoted}"));
}

#[test]
fn prose_breaks_between_words() {
    let text = "With less work: min-load:s=1 at 1.25.\n  in the middle of a word\n";
    assert_eq!(
        Width::of(16).prose(text),
        "With less work:\nmin-load:s=1 at\n1.25.\n  in the middle\n  of a word\n"
    );
    assert_eq!(Width::ENDLESS.prose(text), text);
    assert_eq!(Width::of(5).prose("extraordinary"), "extraordinary");
}
