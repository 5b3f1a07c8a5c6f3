//! What a person sees: progress lines, and the table at the end.

use std::time::{Duration, Instant};

/// Progress lines with the time since the start.
pub struct Progress {
    start: Instant,
}

impl Progress {
    /// Starts the clock.
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Says what is being done, or what came of it.
    pub fn say(&self, text: &str) {
        println!("[{:5.1} s] {text}", self.elapsed().as_secs_f64());
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}

/// Lays out `rows` below `head` in columns as wide as their widest cell.
pub fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain(head.get(column).map(|cell| cell.chars().count())).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("   ").trim_end().to_owned()
    };
    let rule = widths.iter().map(|width| "-".repeat(*width)).collect::<Vec<_>>();
    let mut lines = vec![line(head.into()), rule.join("   ")];
    lines.extend(rows.iter().map(|row| line(row.iter().map(String::as_str).collect())));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let text =
            table(["pod", "by"], &[["shop/web".to_owned(), "Envoy".to_owned()], ["a".to_owned(), String::new()]]);
        assert_eq!(text, "pod        by\n--------   -----\nshop/web   Envoy\na");
    }
}
