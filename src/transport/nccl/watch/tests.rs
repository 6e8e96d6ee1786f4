//! The verdict follows from statuses and time.

#![cfg(test)]

use super::*;
use Status::{Busy, Failed, Ready};

#[test]
#[expect(clippy::disallowed_methods, reason = "there is no other way to an instant")]
fn the_verdict_follows_from_statuses_and_time() {
    let start = Instant::now();
    let deadline = start + Duration::from_secs(3);
    let after = |seconds| start + Duration::from_secs(seconds);
    let cases: [(&[Status], u64, Verdict); 9] = [
        (&[Ready, Ready], 0, Verdict::Done),
        (&[Ready, Ready], 9, Verdict::Done),
        (&[], 0, Verdict::Done),
        (&[Ready, Busy], 0, Verdict::Wait),
        (&[Busy, Busy], 2, Verdict::Wait),
        (&[Busy, Ready, Busy], 3, Verdict::Late { busy: 2 }),
        (&[Busy, Failed(6)], 0, Verdict::Failed(6)),
        (&[Busy, Failed(6)], 9, Verdict::Failed(6)),
        (&[Failed(1), Ready, Failed(6)], 0, Verdict::Failed(1)),
    ];
    for (statuses, seconds, verdict) in cases {
        assert_eq!(
            judge(statuses, after(seconds), deadline),
            verdict,
            "{statuses:?} after {seconds} s"
        );
    }
}
