//! A scheme of one's own in both programs: one plans with it and simulates it, the lab's trains
//! with it. Without arguments it runs both, as this program again, and asserts what they say.

use codedgrad::codes::registry::{Family, Recipe, Registry, Space, keyed};
use codedgrad::codes::{DenseCode, ParameterError};
use std::process::{Command, ExitCode, Stdio};
use std::{env, fs};

/// Worker `i` computes what `i + n/r` does: neighbours, often late together, never share.
const SPREAD: Family = Family {
    name: "spread",
    examples: &["spread:r=2"],
    summary: "r workers or more, far from each other, compute the same",
    spaces: Some(|limits| vec![Space::of([keyed("r", 2..=limits.workers)])]),
    ..Family::new(|fields| {
        let replicas = fields.need("r")?;
        let recipe = Recipe::code(move |workers| {
            if replicas == 0 || replicas > workers {
                let problem = format!("r={replicas}: r must be from 1 to {workers}");
                return Err(ParameterError::Conditions { scheme: "spread", problem });
            }
            let shares = workers / replicas;
            let row = |worker| (0..shares).map(move |share| f64::from(worker % shares == share));
            let rows: Vec<Vec<f64>> = (0..workers).map(|worker| row(worker).collect()).collect();
            DenseCode::new(&rows)?.claiming(replicas - 1)
        });
        Ok(recipe.claiming(Some(replicas.saturating_sub(1))))
    })
};

fn show() -> Result<(), Box<dyn std::error::Error>> {
    let folder = env::temp_dir().join(format!("own-scheme-{}", std::process::id()));
    let codedgrad = |arguments: &str| -> Result<String, Box<dyn std::error::Error>> {
        let arguments = arguments.replace("OUT", &folder.to_string_lossy());
        let mut program = Command::new(env::current_exe()?);
        let done = program.args(arguments.split(' ')).stderr(Stdio::inherit()).output()?;
        assert!(done.status.success(), "{arguments}");
        Ok(String::from_utf8(done.stdout)?)
    };
    assert!(
        codedgrad("plan --delays hotspot --workers 4 --families spread")?.contains("spread:r=")
    );
    let train = "train --workers 4 --steps 6 --layers 1 --width 8 --heads 1 --clock virtual -q";
    codedgrad(&format!("{train} --scheme uncoded --out OUT/uncoded"))?;
    let dies = "--fault panic@2:1";
    codedgrad(&format!("{train} --scheme spread:r=2 {dies} --out OUT/spread"))?;
    let model = |run| fs::read(folder.join(run).join("model.safetensors"));
    let [own, plain] = ["spread/model-0-spread-r-2", "uncoded/model-0-uncoded"].map(model);
    assert!(own? == plain?, "without worker 1 as well, the model has the bits of uncoded training");
    Ok(fs::remove_dir_all(folder)?)
}

fn main() -> ExitCode {
    if env::args().len() == 1 {
        show().expect("all of it works");
        return ExitCode::SUCCESS;
    }
    let registry = Registry::default().with(SPREAD).expect("a name of its own");
    match env::args().nth(1).as_deref() {
        Some("plan" | "simulate" | "code") => codedgrad_cli::main_with(registry),
        _ => codedgrad_lab::main_with(registry),
    }
}
