//! The parameters in a scheme's text, read one by one.

use super::{
    GroupSize, Kind, ParameterError, SEED, SlotKind, SrSgcShape, contents, family, table, within,
};
use std::str::FromStr;

/// What may stand behind a `key=`.
pub(super) trait Value: FromStr {
    const EXPECTED: &'static str = "a whole number of 0 or more";
}

impl Value for usize {}
impl Value for u32 {}
impl Value for u64 {}
impl Value for f64 {
    const EXPECTED: &'static str = "a number";
}
impl Value for String {
    const EXPECTED: &'static str = "a path";
}

/// The `key=value` and flag fields of a scheme text, taken out one by one.
pub(super) struct Fields<'a> {
    text: &'a str,
    example: &'static str,
    left: Vec<(&'a str, Option<&'a str>)>,
}

impl<'a> Fields<'a> {
    pub(super) fn read(
        text: &'a str,
        parameters: &'a str,
        example: &'static str,
    ) -> Result<Self, ParameterError> {
        let mut fields = Self { text, example, left: Vec::new() };
        for field in parameters.split(',').filter(|_| !parameters.is_empty()) {
            let (key, value) =
                field.split_once('=').map_or((field, None), |(key, value)| (key, Some(value)));
            if key.is_empty() {
                return Err(fields.wrong("an empty parameter".into()));
            }
            if fields.left.iter().any(|(known, _)| *known == key) {
                return Err(fields.wrong(format!("{key} is given twice")));
            }
            fields.left.push((key, value));
        }
        Ok(fields)
    }

    fn wrong(&self, problem: String) -> ParameterError {
        ParameterError::Malformed { text: self.text.into(), problem, example: self.example }
    }

    pub(super) fn take<T: Value>(&mut self, key: &str) -> Result<Option<T>, ParameterError> {
        let Some(at) = self.left.iter().position(|(known, _)| *known == key) else {
            return Ok(None);
        };
        let value = self.left.remove(at).1.unwrap_or_default();
        value
            .parse()
            .map(Some)
            .map_err(|_| self.wrong(format!("{key}={value} is not {}", T::EXPECTED)))
    }

    pub(super) fn need(&mut self, key: &str) -> Result<usize, ParameterError> {
        self.take(key)?.ok_or_else(|| self.wrong(format!("{key}= is missing")))
    }

    pub(super) fn size(&mut self) -> Result<GroupSize, ParameterError> {
        match (self.take("s")?, self.take("l")?) {
            (Some(s), None) => Ok(GroupSize::Stragglers(s)),
            (None, Some(l)) => Ok(GroupSize::Groups(l)),
            _ => Err(self.wrong("give either s= (stragglers) or l= (groups)".into())),
        }
    }

    /// The path that stands alone, without a key; it may contain `=`.
    pub(super) fn path(&mut self) -> Result<String, ParameterError> {
        if self.left.is_empty() {
            return Err(self.wrong("the file is missing".into()));
        }
        Ok(match self.left.remove(0) {
            (path, None) => path.into(),
            (start, Some(rest)) => format!("{start}={rest}"),
        })
    }

    pub(super) fn slots(&mut self) -> Result<SlotKind, ParameterError> {
        match (self.flag("rep"), self.flag("cyclic")) {
            (true, true) => {
                Err(self.wrong("give either rep (clusters) or cyclic (random coefficients)".into()))
            }
            (true, false) => Ok(SlotKind::Clusters),
            (false, true) => Ok(SlotKind::Cyclic { seed: self.take("seed")?.unwrap_or(SEED) }),
            (false, false) => Ok(SlotKind::MinLoad),
        }
    }

    pub(super) fn sr_sgc(&mut self) -> Result<SrSgcShape, ParameterError> {
        let (burst, window) = (self.need("B")?, self.need("W")?);
        let (distinct, stragglers, slots) = (self.take("lambda")?, self.take("s")?, self.slots()?);
        if slots != SlotKind::Clusters && (distinct.is_none() || stragglers.is_some()) {
            return Err(self
                .wrong("lambda= is needed, and s= follows from it (s= is for rep alone)".into()));
        }
        Ok(SrSgcShape { burst, window, distinct, stragglers, slots })
    }

    pub(super) fn interval(&mut self) -> Result<Kind, ParameterError> {
        let (cuts, speeds) = (self.take::<String>("cuts")?, self.take::<String>("speeds")?);
        match (cuts, speeds) {
            (Some(path), None) => Ok(Kind::Cuts { text: contents(&path)?, path }),
            (None, Some(path)) => {
                let units = self.take("units")?.ok_or_else(|| {
                    self.wrong("units= is missing: into how many units the batch is cut".into())
                })?;
                let table = table::read(
                    &contents(&path)?,
                    "a speed (a finite number above 0)",
                    |x: &f64| x.is_finite() && *x > 0.0,
                );
                let speeds = table.map_err(|error| within(&path)(error.into()))?.concat();
                Ok(Kind::Speeds { path, speeds, size: self.size()?, units })
            }
            _ => Err(self.wrong(
                "give either cuts= (a file of intervals l,r) or speeds= (a file of speeds)".into(),
            )),
        }
    }

    pub(super) fn flag(&mut self, key: &str) -> bool {
        let at = self.left.iter().position(|field| *field == (key, None));
        at.map(|at| self.left.remove(at)).is_some()
    }

    pub(super) fn done(self) -> Result<(), ParameterError> {
        match self.left.first() {
            None => Ok(()),
            Some((key, _)) => {
                Err(self.wrong(format!("{key:?} is not a parameter of {}", family(self.text))))
            }
        }
    }
}
