//! Runs things in turn and compares their medians.

use std::time::Duration;

/// One thing that is measured.
pub struct Subject<'a> {
    /// Its name in the table.
    pub name: String,
    /// Does it once; `None` leaves the round out.
    pub run: Box<dyn FnMut(usize) -> Duration + 'a>,
}

impl<'a> Subject<'a> {
    /// A subject; `run` gets the number of the round.
    pub fn new(name: impl Into<String>, run: impl FnMut(usize) -> Duration + 'a) -> Self {
        Self { name: name.into(), run: Box::new(run) }
    }
}

/// Runs all subjects `rounds` times, one after the other in every round, and prints median, fastest, and the ratio of
/// every median to that of the first subject.
pub fn compare(title: &str, rounds: usize, mut subjects: Vec<Subject<'_>>) {
    let mut times: Vec<Vec<Duration>> = subjects.iter().map(|_| Vec::with_capacity(rounds)).collect();
    for round in 0..rounds {
        // The order rotates, so that nobody always follows the same neighbour.
        for offset in 0..subjects.len() {
            let index = (round + offset) % subjects.len();
            let took = (subjects[index].run)(round);
            times[index].push(took);
        }
    }
    println!("{title} ({rounds} rounds)");
    let medians: Vec<f64> = times
        .iter_mut()
        .map(|series| {
            series.sort_unstable();
            series[series.len() / 2].as_secs_f64() * 1e3
        })
        .collect();
    for (index, subject) in subjects.iter().enumerate() {
        let fastest = times[index][0].as_secs_f64() * 1e3;
        println!(
            "  {:44} {:8.3} ms   fastest {:8.3}   x {:.2}",
            subject.name,
            medians[index],
            fastest,
            medians[index] / medians[0]
        );
    }
}
