//! The step of AdamW, element by element: the CPU reference of its kernel.

/// What a step multiplies by; a kernel's argument.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rates {
    /// Decays of the moments.
    pub(crate) betas: [f32; 2],
    /// Of the gradient, where it is clipped.
    pub(crate) scale: f32,
    /// Of the first moment: the learning rate without the bias of a young moment.
    pub(crate) first_scale: f32,
    /// Of the second moment: without its bias.
    pub(crate) second_scale: f32,
    /// Of the parameters, which decay.
    pub(crate) keep: f32,
    /// Added to the root of the second moment.
    pub(crate) epsilon: f32,
}

/// One step of parameters and both moments; every operation is rounded to f32 by itself.
///
/// # Formula
/// ```text
/// g' = scale g     m = b1 m + (1-b1) g'     v = b2 v + (1-b2) g' g'
/// p = keep p - first_scale m / ( sqrt(second_scale v) + epsilon )
/// ```
pub(crate) fn step(state: [&mut [f32]; 3], gradient: &[f32], rates: Rates) {
    let [parameters, first, second] = state;
    let Rates { betas: [b1, b2], scale, first_scale, second_scale, keep, epsilon } = rates;
    for (((p, g), m), v) in parameters.iter_mut().zip(gradient).zip(first).zip(second) {
        let g = g * scale;
        *m = b1 * *m + (1.0 - b1) * g;
        *v = b2 * *v + (1.0 - b2) * g * g;
        *p = keep * *p - first_scale * *m / ((second_scale * *v).sqrt() + epsilon);
    }
}
