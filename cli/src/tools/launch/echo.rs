//! What a process says, taken apart into lines for those who look on.

/// A line without an end is shown in pieces of so many bytes.
const PIECE: usize = 16 << 10;

/// Bytes as they come, until a line is whole. Of a line that its writer has written over, as bars
/// of progress are, the last state is what counts.
#[derive(Debug, Default)]
pub(super) struct Lines(Vec<u8>);

impl Lines {
    /// Takes some more bytes, and gives the lines that are whole with them, without their ends.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.0.extend_from_slice(piece);
            if self.0.ends_with(b"\n") {
                self.0.pop();
                lines.push(last_state(std::mem::take(&mut self.0)));
            } else if self.0.len() >= PIECE {
                // What was written over is not worth keeping, and may be all there is.
                let rest = std::mem::take(&mut self.0);
                match rest.iter().rposition(|byte| *byte == b'\r') {
                    None | Some(0) => lines.push(last_state(rest)),
                    Some(at) => self.0.extend_from_slice(&rest[at..]),
                }
            }
        }
        lines
    }

    /// What is left at the end, if there is something.
    pub(super) fn rest(&mut self) -> Option<Vec<u8>> {
        let rest = std::mem::take(&mut self.0);
        (!rest.is_empty()).then(|| last_state(rest))
    }
}

/// A line as it stood when it was done.
fn last_state(mut line: Vec<u8>) -> Vec<u8> {
    while line.last() == Some(&b'\r') {
        line.pop();
    }
    match line.iter().rposition(|byte| *byte == b'\r') {
        Some(at) => line.split_off(at + 1),
        None => line,
    }
}

#[cfg(test)]
mod tests;
