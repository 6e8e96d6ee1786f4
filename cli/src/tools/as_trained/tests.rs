//! Every door tells the engine the same.

#![cfg(test)]

use super::*;
use codedgrad::codes::registry::Registry;

/// `serve` and the Python package go through [`Builder`], `simulate --rules trainer` through
/// [`TrainerArgs`], the lab's GPT through its `LocalRun`, whose test is like this one: a
/// default must be the same in all of them.
#[test]
fn every_door_tells_the_engine_the_same() {
    let steps = 6;
    for text in Registry::builtin().examples().filter(|text| !text.contains("FILE")) {
        let spec: SchemeSpec = text.parse().unwrap();
        let fits = (2..16).find(|workers| spec.natural(*workers).is_ok());
        let workers = fits.unwrap_or_else(|| panic!("{text} takes no number of workers"));
        let natural = spec.natural(workers).unwrap();
        let models = natural.delay as u64 + 1;
        let units = natural.units * workers as u32;
        let args = TrainerArgs {
            models: Some(models),
            micro_steps: None,
            micro_batches: Some(units),
            grace: None,
            max_wait: None,
        };
        let asked = PredictionRequest {
            scheme: text,
            spec: &spec,
            jobs: steps,
            mu: 1.0,
            slope: None,
            rounds: None,
        };
        let simulated = args.builder(&asked, workers).unwrap().engine().unwrap();
        let run = Coordinator::builder(text).workers(workers).units(units).models(models);
        let built = run.steps(steps).length(1).engine().unwrap();
        assert_eq!(built.plan().facts(), simulated.plan().facts(), "{text}");
        assert_eq!(built.config(), simulated.config(), "{text}");
    }
}
