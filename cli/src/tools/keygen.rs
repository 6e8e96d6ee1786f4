//! `codedgrad keygen`: the certificates of a job.

use clap::Args;
use codedgrad::transport::tcp::security::keygen;
use codedgrad_shell::failure::{Failure, OrInput, OrWork};
use codedgrad_shell::layout::help;
use codedgrad_shell::limits::WORKERS;
use codedgrad_shell::output::Output;
use codedgrad_shell::units::count;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(
    after_help = help("\
Connections that leave a host are encrypted, and both ends show a certificate of the job's own
authority (mutual TLS 1.3). This command makes that authority, one certificate for the
coordinator and one per worker, and a token. No existing file is overwritten. The authority's
own key is thrown away, so that no one can add workers later, unless --keep-ca is given.

Example:
  codedgrad keygen keys --workers 8
  scp keys/ca.pem keys/token keys/worker-3.* host3:keys/
  codedgrad serve --listen 0.0.0.0:7000 --keys keys --workers 8 --scheme groups:s=1
  CODEDGRAD_ADDRESS=host0:7000 CODEDGRAD_KEYS=keys python train.py     on host3")
)]
pub(crate) struct KeygenArgs {
    /// Folder for the files; it is made if it does not exist
    dir: PathBuf,
    /// Number of workers
    #[arg(long, value_parser = count::<u32>(WORKERS))]
    workers: u32,
    /// Keep the authority's key as ca.key, to sign further certificates with; keep it safe
    #[arg(long)]
    keep_ca: bool,
}

pub(crate) fn run(args: &KeygenArgs, output: &mut Output<'_>) -> Result<(), Failure> {
    let written = keygen(&args.dir, args.workers, args.keep_ca).or_input()?;
    let dir = args.dir.display();
    let mut text = format!(
        "{} files are in {dir}. Copy them, and let no other user read them:\n",
        written.len()
    );
    text += "  to the coordinator's host:  ca.pem, token, coordinator.pem, coordinator.key\n";
    text += &format!(
        "  to the host of worker K:    ca.pem, token, worker-K.pem, worker-K.key (K: 0 to {})\n",
        args.workers - 1
    );
    if args.keep_ca {
        text += "  nowhere:                    ca.key; its holder can add workers to the job\n";
    }
    text += "Then pass --keys DIR to `codedgrad run` on every host, or to `codedgrad serve`; other \
             workers find it by CODEDGRAD_KEYS=DIR.\n";
    output.out.write_all(output.width().prose(&text).as_bytes()).or_work()
}
