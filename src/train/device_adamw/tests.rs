//! An optimizer on a device computes what the CPU's does.

#![cfg(test)]

use super::*;
use crate::gpu::cuda::devices;
use crate::train::AdamW;
use crate::train::optimizer::CONFIG;

#[test]
fn an_optimizer_on_a_device_is_the_cpus() {
    if devices() == 0 {
        println!("not checked: the optimizer on a GPU, since there is none");
        return;
    }
    let cuda = Arc::new(Cuda::new(0).expect("the device there is"));
    let numbers = |seed: u32| {
        (0..100_003u32)
            .map(|i| (i.wrapping_mul(seed) % 1009) as f32 / 504.5 - 1.0)
            .collect::<Vec<f32>>()
    };
    let mut parameters = numbers(7919);
    let first = numbers(104_729);
    let gradient = numbers(15_485_863);
    let second: Vec<f32> = numbers(32_452_843).into_iter().map(f32::abs).collect();
    let config = AdamWConfig { clip_norm: 10.0, ..CONFIG };
    let mut found =
        DeviceAdamW::new(&cuda, config, [&parameters, &first, &second]).expect("memory");
    let mut reference = AdamW::with_moments(config, first, second);
    let vector = DeviceVector::of(&cuda, &gradient).expect("memory");
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let mut digests = Vec::new();
    for step in 0..3 {
        digests.push(found.update(&vector, step).expect("a step"));
        reference.update(&mut parameters, &gradient, step);
        let (first, second) = reference.moments();
        let state = found.state().expect("copies");
        assert!(
            [&parameters[..], first, second]
                .into_iter()
                .zip(&state)
                .all(|(reference, found)| bits(found) == bits(reference)),
            "step {step}"
        );
    }
    digests.dedup();
    assert_eq!(digests.len(), 3, "every step changes the parameters");
}
