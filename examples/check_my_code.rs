//! Checks a gradient code of one's own: here a small one with a mistake in it.
//!
//! `cargo run -p codedgrad --no-default-features --example check_my_code`

use codedgrad::codes::{DenseCode, Gate, GradientCode, Verification, verify};
use codedgrad::run::NumberFormat;

/// Whether every set of at most `stragglers` missing workers decodes within the gate of f32
/// messages.
fn check(rows: &[Vec<f64>], stragglers: usize) -> Result<Verification, Box<dyn std::error::Error>> {
    let code = DenseCode::new(rows)?.claiming(stragglers)?;
    Ok(verify(&code, &Gate::new(NumberFormat::F32, code.facts()), 7, &mut |_, _| ()))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Any one of these three workers may be missing (Tandon et al. 2017, Figure 1) ...
    let mut rows = vec![vec![0.5, 1.0, 0.0], vec![0.0, 1.0, -1.0], vec![0.5, 0.0, 1.0]];
    let good = check(&rows, 1)?;
    println!(
        "{} sets tried, {} failed, worst amplification {:.3}",
        good.sets, good.failed, good.worst_amplification
    );
    // ... but not with a wrong sign.
    rows[1][2] = 1.0;
    let bad = check(&rows, 1)?;
    for failure in &bad.failures {
        println!("without worker {}: residual {:.3}", failure.stragglers, failure.report.residual);
    }
    assert!(good.failed == 0 && bad.failed > 0);
    Ok(())
}
