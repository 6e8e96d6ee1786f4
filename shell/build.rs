//! Says in `CODEDGRAD_VERSION` of which commit the program is.
//!
//! Only release builds have it: every commit would compile this crate again. Where there is no git,
//! or this folder is none of its repository's, the version stands alone, but for packages, in which
//! cargo has written the commit down.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

/// What git answers in this folder.
fn git(arguments: &[&str]) -> Option<String> {
    let folder = env::var_os("CARGO_MANIFEST_DIR")?;
    let found = Command::new("git").current_dir(folder).args(arguments).output().ok()?;
    let text = String::from_utf8(found.stdout).ok()?;
    (found.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}

/// The commit of the repository that this file is in.
fn checked_out() -> Option<String> {
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    for file in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", file])?;
        if Path::new(&path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    git(&["rev-parse", "--short=9", "HEAD"])
}

/// The commit of which a package was made.
fn packaged() -> Option<String> {
    let info = fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let (_, rest) = info.split_once("\"sha1\":")?;
    let sha1 = rest.split('"').nth(1)?;
    Some(sha1.chars().take(9).collect())
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let built = match is_release {
        true => checked_out().or_else(packaged),
        false => Some("debug build".into()),
    };
    let version = built.map_or(version.clone(), |built| format!("{version} ({built})"));
    println!("cargo::rustc-env=CODEDGRAD_VERSION={version}");
}
