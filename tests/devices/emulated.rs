//! Where there is no GPU: the tests of devices on a driver that this machine can run.

use super::image;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};
use xxhash_rust::xxh3::xxh3_64;

/// How much memory the last emulated device has, if not as much as is asked for.
pub(crate) const BYTES_OF_LAST: &str = "EMULATED_BYTES_OF_LAST";
pub(crate) const SCARCE: usize = 300_000;

/// One of the C++ files of this folder, compiled with the kernels, unless this very text was
/// compiled before: as `name` in a folder of its own. None, and a line that says so, where there is
/// no C++ compiler.
pub(super) fn built(file: &str, name: &str, options: &[&str]) -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let devices = here.join("tests/devices");
    let text = |file: &str| fs::read_to_string(devices.join(file)).expect("a file of the project");
    let key = xxh3_64(
        [image::SOURCE, &text("host.h"), &text(file), &options.join(" ")].join("\0").as_bytes(),
    );
    let folder = env::temp_dir().join(format!("codedgrad-{key:016x}"));
    let program = folder.join(name);
    if program.exists() {
        return Some(program);
    }
    let compiler = env::var("CXX").unwrap_or_else(|_| "c++".into());
    if Command::new(&compiler)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_err()
    {
        println!("not checked: {file}, for which there is no C++ compiler ({compiler})");
        return None;
    }
    fs::create_dir_all(&folder).expect("a folder");
    let unfinished = folder.join(format!("{name}.{}", std::process::id()));
    let all = ["-std=c++17", "-ffp-contract=off", "-fno-strict-aliasing"];
    let status = Command::new(&compiler)
        .args(all)
        .args(options)
        .arg("-o")
        .arg(&unfinished)
        .arg("-I")
        .arg(here.join("src/gpu/kernels"))
        .arg(devices.join(file))
        .status();
    assert!(status.is_ok_and(|status| status.success()), "{file} compiles");
    fs::rename(&unfinished, &program).expect("what was compiled");
    Some(program)
}

/// The tests that need a device, in a process that finds four: a driver whose kernels run on the
/// host, with streams that are late and memory that is guarded, and an NCCL between them.
#[test]
fn what_needs_a_device_passes_on_an_emulated_one() {
    // With candle's kernels, CUDA's libraries are linked.
    if super::devices() > 0 || cfg!(feature = "cuda-linked") {
        return;
    }
    let Some(driver) = built("driver.cpp", "libcuda.so", &["-O1", "-shared", "-fPIC", "-pthread"])
    else {
        return;
    };
    let libraries = tempfile::tempdir().expect("a folder");
    let place =
        |from: &Path, name: &str| fs::copy(from, libraries.path().join(name)).expect("a copy");
    place(&driver, "libcuda.so");
    place(&driver, "libnvrtc.so");
    if cfg!(feature = "nccl") {
        let nccl =
            built("nccl.cpp", "libnccl.so.2", &["-O1", "-shared", "-fPIC", "-pthread", "-ldl"])
                .expect("the same compiler");
        place(&nccl, "libnccl.so.2");
    }
    let cache = tempfile::tempdir().expect("a folder");
    let others = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let paths =
        env::join_paths(std::iter::once(libraries.path().into()).chain(env::split_paths(&others)))
            .expect("a folder without colons");
    for (filters, bytes_of_last) in [
        (&["device", "gpus", "--skip", "without_memory"][..], None),
        (&["without_memory"][..], Some(SCARCE)),
    ] {
        let mut tests = Command::new(env::current_exe().expect("this program"));
        // A test that passes over something must say so here.
        tests
            .args(filters)
            .args(["--nocapture", "--test-threads=2", "--skip", "what_needs_a_device"])
            .env("LD_LIBRARY_PATH", &paths)
            .env("CODEDGRAD_CACHE", cache.path());
        if let Some(bytes) = bytes_of_last {
            tests.env(BYTES_OF_LAST, bytes.to_string());
        }
        let ran = tests.output().expect("the tests start");
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&ran.stdout),
            String::from_utf8_lossy(&ran.stderr)
        );
        assert!(
            ran.status.success()
                && !said.contains("not checked")
                && !said.contains("running 0 tests"),
            "{}: {said}",
            ran.status
        );
    }
}
