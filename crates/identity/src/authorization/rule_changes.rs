//! What became of rules when their file was read again.

/// Rules that say something else than before: those of a new list, those of the old one, and those of both that belong together.
#[derive(Debug)]
pub struct RuleChanges<'a, R> {
    /// As it is, and as it was.
    pub changed: Vec<(&'a R, &'a R)>,
    /// That are new.
    pub new: Vec<&'a R>,
    /// That are gone.
    pub gone: Vec<&'a R>,
}

impl<'a, R> RuleChanges<'a, R> {
    /// Compares two lists. A rule has changed if one that is about the same, or stood in the same place of the list, said something else.
    pub fn between(
        before: &'a [R],
        now: &'a [R],
        says_the_same: impl Fn(&R, &R) -> bool,
        is_about_the_same: impl Fn(&R, &R) -> bool,
    ) -> Self {
        let is_in = |rules: &[R], rule: &R| rules.iter().any(|other| says_the_same(rule, other));
        let news = now
            .iter()
            .enumerate()
            .filter(|(_, one)| !is_in(before, one));
        let mut gone: Vec<_> = before
            .iter()
            .enumerate()
            .filter(|(_, one)| !is_in(now, one))
            .collect();
        let (mut changed, mut others, mut new) = (Vec::new(), Vec::new(), Vec::new());
        for (place, rule) in news {
            match gone
                .iter()
                .position(|(_, old)| is_about_the_same(rule, old))
            {
                Some(found) => changed.push((rule, gone.remove(found).1)),
                None => others.push((place, rule)),
            }
        }
        for (place, rule) in others {
            match gone.iter().position(|(old_place, _)| *old_place == place) {
                Some(found) => changed.push((rule, gone.remove(found).1)),
                None => new.push(rule),
            }
        }
        Self {
            changed,
            new,
            gone: gone.into_iter().map(|(_, rule)| rule).collect(),
        }
    }
}
