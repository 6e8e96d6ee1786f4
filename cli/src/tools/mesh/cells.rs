//! Delays of ranks as delays of workers: a cell is as late as its latest rank. One with a rank
//! whose delay is not known is not known, one with a rank that never answered never answers.

use crate::tools::trace::to_output;
use anyhow::anyhow;
use codedgrad::delays::{Preset, TRACE_BYTES_MAX, TraceReader, write_row};
use codedgrad::files::BoundedReader;
use codedgrad::ids::Rank;
use codedgrad::mesh::Mesh;
use codedgrad_shell::failure::{Failure, OrInput, OrWork};
use codedgrad_shell::itself::{self, quoted};
use codedgrad_shell::limits::WORKERS;
use codedgrad_shell::output::Output;
use codedgrad_shell::suspicious;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// What stands for standard input.
const STDIN: &str = "-";

/// Reads a column per rank and writes one per worker, a line at a time.
pub(super) fn write(
    mesh: &Mesh,
    delays: &Path,
    out: &Path,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let name = delays.display().to_string();
    if name == STDIN {
        let input = BufReader::new(BoundedReader::new(std::io::stdin(), TRACE_BYTES_MAX));
        let rows = TraceReader::new(input, Path::new("standard input"), None).or_input()?;
        return write_rows(mesh, rows, ("standard input", out), output);
    }
    if Preset::named(&name).is_some() && !delays.exists() {
        return Err(Failure::Input(anyhow!(
            "--delays {name}: a preset has no ranks; give a CSV file of seconds with a column per \
             rank, or try the preset by `{} plan --delays {name} --workers {}`",
            itself::name(),
            mesh.workers()
        )));
    }
    let rows = TraceReader::open(delays, None).or_input()?;
    suspicious::say(&name, None, output);
    write_rows(mesh, rows, (&name, out), output)
}

fn write_rows<R: BufRead>(
    mesh: &Mesh,
    mut rows: TraceReader<R>,
    (name, out): (&str, &Path),
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let (columns, world) = (rows.columns(), mesh.layout().world as usize);
    if columns != world {
        return Err(Failure::Input(anyhow!(
            "{name}: line {}, column {}: the line has {columns} columns, but the world has {world} \
             ranks: a number of seconds per rank is needed",
            rows.line(),
            columns.min(world) + 1
        )));
    }
    let workers: Vec<usize> =
        (0..world as u32).map(|rank| mesh.worker(Rank(rank)).index()).collect();
    let bar = output.file_bar(Path::new(name), true);
    to_output(Some(out), output.out, |output| {
        let mut line = 0;
        // As told, so that `plan` says by itself what is left out of the cells.
        while let Some(row) = rows.next_as_told() {
            let row = row.or_input()?;
            line += 1;
            if rows.line() != line {
                return Err(Failure::Input(anyhow!(
                    "{name}: line {line}, column 1: the line is empty; a number of seconds per \
                     rank is needed"
                )));
            }
            let mut cells = vec![0.0f64; mesh.workers()];
            for (worker, delay) in workers.iter().zip(row) {
                let cell = &mut cells[*worker];
                // `f64::max` would take the other number for one that is not known.
                *cell = if delay.is_nan() || cell.is_nan() { f64::NAN } else { cell.max(delay) };
            }
            write_row(output, &cells).or_work()?;
            bar.set_position(rows.bytes_read());
        }
        Ok(())
    })?;
    bar.finish_and_clear();
    Ok(())
}

/// The command that plans with what was written; none where there is nothing to plan, or more than
/// it takes.
pub(super) fn plan(out: &Path, workers: usize) -> Option<String> {
    let planned = workers > 1 && WORKERS.contains(&(workers as u64));
    planned.then(|| {
        let file = quoted(&out.display().to_string());
        format!("{} plan --delays {file} --workers {workers}", itself::name())
    })
}
