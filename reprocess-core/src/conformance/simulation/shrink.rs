//! Makes a history that fails as short as can be.

use super::history::Step;

/// What is left out of a history: whole steps, or single faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cut {
    Step(usize),
    Fault(usize, usize),
}

/// The history without what is cut, each step with its place.
pub(super) fn without(steps: &[Step], cuts: &[Cut]) -> Vec<Step> {
    let mut left = Vec::new();
    for (place, step) in steps.iter().enumerate().filter(|(place, _)| !cuts.contains(&Cut::Step(*place))) {
        let mut step = step.clone();
        let mut fault = 0;
        step.faults.retain(|_| {
            fault += 1;
            !cuts.contains(&Cut::Fault(place, fault - 1))
        });
        left.push(step);
    }
    left
}

/// Cuts greedily, the last step first, as long as the history still fails.
pub(super) fn shrink(steps: &[Step], fails: impl Fn(&[Step]) -> bool) -> Vec<Cut> {
    let mut cuts = Vec::new();
    loop {
        let before = cuts.len();
        for place in (0..steps.len()).rev() {
            attempt(steps, &mut cuts, Cut::Step(place), &fails);
            if cuts.contains(&Cut::Step(place)) {
                continue;
            }
            for fault in 0..steps[place].faults.len() {
                attempt(steps, &mut cuts, Cut::Fault(place, fault), &fails);
            }
        }
        if cuts.len() == before {
            return cuts;
        }
    }
}

fn attempt(steps: &[Step], cuts: &mut Vec<Cut>, cut: Cut, fails: &impl Fn(&[Step]) -> bool) {
    if cuts.contains(&cut) {
        return;
    }
    cuts.push(cut);
    if !fails(&without(steps, cuts)) {
        cuts.pop();
    }
}

/// The cuts as the text that replays them: `2,5.0` leaves out step 2, and the first fault of step 5.
pub(super) fn text(cuts: &[Cut]) -> String {
    let one = |cut: &Cut| match cut {
        Cut::Step(step) => step.to_string(),
        Cut::Fault(step, fault) => format!("{step}.{fault}"),
    };
    cuts.iter().map(one).collect::<Vec<_>>().join(",")
}

/// Reads that text; what makes no sense is passed over.
pub(super) fn parse(text: &str) -> Vec<Cut> {
    let one = |part: &str| match part.split_once('.') {
        Some((step, fault)) => Some(Cut::Fault(step.parse().ok()?, fault.parse().ok()?)),
        None => part.parse().ok().map(Cut::Step),
    };
    text.split(',').filter_map(|part| one(part.trim())).collect()
}
