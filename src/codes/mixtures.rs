//! The scheme texts of Berrut coded computing, in builds without it too: those say what they lack.

#[cfg(feature = "berrut")]
use super::berrut::{Mixture, MixtureParameters, Points};
use super::family::{Family, Fields, Recipe, Traits};
#[cfg(not(feature = "berrut"))]
use super::{ParameterError, sequential::OneRound};

/// Why there is no matrix to show.
const NO_MATRIX: &str = "mixes data, not gradients: `codedgrad-lab berrut` shows what that does";

/// Berrut codes.
pub(super) const PLAIN: Family = Family {
    name: "bacc",
    examples: &["bacc:K=4"],
    summary: "approximate: workers train on mixtures of K blocks of the batch; s= stragglers are \
        not waited for (research); a batch is a multiple of K micro-batches",
    traits: Traits { mixes: true, approximate: true, ..Traits::NONE },
    ..Family::new(|fields| {
        let (blocks, stragglers) = (fields.need("K")?, fields.take("s")?);
        let recipe = recipe(fields, blocks, stragglers, None);
        Ok(recipe.without_matrix(NO_MATRIX))
    })
};

/// The same over DCT points, which tell Byzantine workers.
pub(super) const SECURED: Family = Family {
    name: "sbacc",
    examples: &["sbacc:K=4,byzantine=2"],
    summary: "the same, finding out workers that return wrong results",
    traits: Traits { byzantine: true, mixes: true, approximate: true, ..Traits::NONE },
    ..Family::new(|fields| {
        let (blocks, wrong) = (fields.need("K")?, fields.need("byzantine")?);
        let stragglers = fields.take("s")?;
        let recipe = recipe(fields, blocks, stragglers, Some(wrong));
        Ok(recipe.without_matrix(NO_MATRIX))
    })
};

#[cfg(feature = "berrut")]
fn recipe(
    _: &Fields<'_>,
    blocks: usize,
    stragglers: Option<usize>,
    wrong: Option<usize>,
) -> Recipe {
    // Locators of wrong outputs need points that a DCT goes with.
    let points = if wrong.is_some() { Points::FirstKind } else { Points::SecondKind };
    let wrong = wrong.unwrap_or(0);
    let parameters = MixtureParameters { blocks, stragglers, byzantine: wrong, points };
    Recipe::mixture(move |workers| Mixture::new(workers, parameters), wrong)
}

#[cfg(not(feature = "berrut"))]
fn recipe(fields: &Fields<'_>, _: usize, _: Option<usize>, wrong: Option<usize>) -> Recipe {
    let text = fields.text().to_owned();
    let recipe = Recipe::scheme(move |_| {
        Err::<OneRound, _>(ParameterError::NotBuilt { text: text.clone() })
    });
    recipe.byzantine(wrong.unwrap_or(0))
}
