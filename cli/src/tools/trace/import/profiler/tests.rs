//! Reading a profiler's files.

#![cfg(test)]

use super::*;

fn steps(events: &serde_json::Value) -> Vec<(u64, f64)> {
    let text = events.to_string();
    serde_json::from_str::<Events>(&text).unwrap().steps(false).collect()
}

fn event(name: &str, cat: &str, ts: f64, dur: f64) -> serde_json::Value {
    serde_json::json!({"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur, "args": {}})
}

#[test]
fn a_file_is_read_with_a_bound() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let said = |most| match contents(&path, most) {
        Err(Failure::Input(error)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let text = format!("{{\"traceEvents\": [{}]}}", " ".repeat(2 << 20));
    std::fs::write(&path, &text).unwrap();
    assert_eq!(contents(&path, text.len() as u64).unwrap(), text.as_bytes());
    assert!(said(1 << 20).contains("has more than 1 MiB"), "{}", said(1 << 20));
    std::fs::write(&path, vec![0; 8192]).unwrap();
    assert!(said(u64::MAX).contains("does not begin as JSON does"));
    if cfg!(unix) {
        let endless = contents(Path::new("/dev/zero"), TRACE_MAX);
        assert!(matches!(endless, Err(Failure::Input(_))), "{endless:?}");
    }
}

#[test]
fn what_waits_for_others_is_left_out() {
    let host = [
        event("ProfilerStep#3", "user_annotation", 100.0, 50.0),
        event("ProfilerStep#4", "user_annotation", 150.0, 50.0),
        event("aten::mm", "cpu_op", 100.0, 25.0),
        // Beside a computation for 5, alone for 15, and 10 in the next step.
        event("gloo:all_reduce", "user_annotation", 120.0, 20.0),
        event("c10d::allreduce_", "cpu_op", 130.0, 5.0),
        event("gloo:all_reduce", "user_annotation", 145.0, 15.0),
        event("autograd::engine", "cpu_op", 100.0, 100.0),
    ];
    assert_eq!(steps(&host.to_vec().into()), [(3, 30.0), (4, 40.0)]);
    let mut device = host.to_vec();
    device.extend([
        event("ProfilerStep#3", "gpu_user_annotation", 200.0, 100.0),
        event("sgemm", "kernel", 200.0, 60.0),
        event("ncclDevKernel_AllReduce_Sum", "kernel", 250.0, 40.0),
    ]);
    assert_eq!(steps(&device.into()), [(3, 70.0)]);
}

#[test]
fn what_is_no_span_is_passed_over() {
    let odd = serde_json::json!([
        {"ph": "M", "name": "process_name", "args": {"name": "python"}},
        {"ph": "X", "name": "ProfilerStep#x", "ts": 1.0, "dur": 1.0},
        {"ph": "X", "name": "ProfilerStep#1", "ts": 1.0, "dur": -1.0},
        {"ph": "i", "name": "ProfilerStep#2", "ts": 1.0, "s": "p"},
        {"ph": "X", "name": "quoted \"name\"", "cat": "cpu_op", "ts": 1, "dur": 2},
    ]);
    assert_eq!(steps(&odd), []);
}

#[test]
fn communication_is_told_by_patterns() {
    for name in [
        "ncclDevKernel_AllReduce_Sum_f32",
        "rcclGenericKernel",
        "oneccl_allreduce_local_sum",
        "HcclAllreduce",
        "xccl:all_reduce",
        "hcom_allReduce_",
        "gloo:all_reduce",
        "c10d::allreduce_",
        "void all_gather_kernel<float>",
        "reduce_scatter",
    ] {
        assert!(communicates(&name.to_lowercase()), "{name}");
    }
    for name in ["aten::mm", "sgemm", "reduce_kernel", "occlusion_kernel", "gather_nd"] {
        assert!(!communicates(name), "{name}");
    }
    let old = serde_json::json!([
        {"ph": "X", "name": "ProfilerStep#1", "cat": "Operator", "ts": 0, "dur": 10},
        {"ph": "X", "name": "gemm", "cat": "Kernel", "ts": 0, "dur": 6},
        {"ph": "X", "name": "nccl", "cat": "Kernel", "ts": 6, "dur": 4},
    ]);
    assert_eq!(steps(&old), [(1, 6.0)]);
}
